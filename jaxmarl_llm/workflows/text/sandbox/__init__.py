"""Runs Python code that nobody has read: without network, other files, other processes, and within limits."""

from jaxmarl_llm.workflows.text.sandbox.host import run, run_many
from jaxmarl_llm.workflows.text.sandbox.layers import SANDBOXES
from jaxmarl_llm.workflows.text.sandbox.probe import sandbox_name
from jaxmarl_llm.workflows.text.sandbox.program import Limits, Program, Result, Status

__all__ = ["SANDBOXES", "Limits", "Program", "Result", "Status", "run", "run_many", "sandbox_name"]
