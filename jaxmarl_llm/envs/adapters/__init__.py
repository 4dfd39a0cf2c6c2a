"""Environments of other libraries here, and ours in theirs."""

from jaxmarl_llm.envs.adapters.jaxmarl_export import ToJaxMARL, to_jaxmarl
from jaxmarl_llm.envs.adapters.jaxmarl_import import FromJaxMARL, from_jaxmarl

__all__ = ["FromJaxMARL", "ToJaxMARL", "from_jaxmarl", "to_jaxmarl"]
