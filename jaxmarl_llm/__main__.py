"""`python -m jaxmarl_llm`, the command line without its script."""

import sys

from jaxmarl_llm.cli import main

sys.exit(main())
