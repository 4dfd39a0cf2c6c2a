"""The checkout of the JaxMARL repository that a peer's script is given: its training scripts are not in its package.

Import this first: it makes the checkout and `serve` importable and keeps its logging to a web service quiet.
"""

import os
import sys
import warnings

import yaml

warnings.filterwarnings("ignore")
os.environ["WANDB_MODE"] = "disabled"
CHECKOUT = os.path.abspath(sys.argv[1])
sys.path.insert(0, CHECKOUT)
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "jaxmarl_llm", "benchmark"))


def read_config(path: str) -> dict:
    """A configuration of the checkout, as its script gets it."""
    import wandb

    wandb.log = lambda *_, **__: None
    with open(os.path.join(CHECKOUT, path)) as file:
        return yaml.safe_load(file)
