"""Where the sandboxed interpreter starts, with `-I -S`: it finds its own folder and leaves the path as it was."""

import sys

sys.path.insert(0, sys.argv[1])
from child import runner  # pyright: ignore

sys.path.pop(0)
runner.main(float(sys.argv[2]))
