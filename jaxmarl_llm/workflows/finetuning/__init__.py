"""Fine-tuning of teams: adapters of roles on a real language model, by TeamTR, GRPO or PPO.

Names are loaded on first use, so that importing the package costs nothing.
"""

from typing import TYPE_CHECKING

from jaxmarl_llm.lazy import lazy_names

if TYPE_CHECKING:
    from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig as FinetuneConfig
    from jaxmarl_llm.workflows.finetuning.config import load_finetune_config as load_finetune_config
    from jaxmarl_llm.workflows.finetuning.finished import FinetunedTeam as FinetunedTeam
    from jaxmarl_llm.workflows.finetuning.finished import best_team as best_team
    from jaxmarl_llm.workflows.finetuning.finished import load_finetuned_team as load_finetuned_team
    from jaxmarl_llm.workflows.finetuning.loading import load_trainer as load_trainer
    from jaxmarl_llm.workflows.finetuning.loading import make_trainer as make_trainer
    from jaxmarl_llm.workflows.finetuning.run import FinetuneResult as FinetuneResult
    from jaxmarl_llm.workflows.finetuning.run import Watcher as Watcher
    from jaxmarl_llm.workflows.finetuning.run import finetune as finetune
    from jaxmarl_llm.workflows.finetuning.run import load_finetuned as load_finetuned
    from jaxmarl_llm.workflows.finetuning.swap import Swap as Swap
    from jaxmarl_llm.workflows.finetuning.swap import swap_agent as swap_agent
    from jaxmarl_llm.workflows.finetuning.trainer import Trainer as Trainer

_MODULES = {
    "config": ("FinetuneConfig", "load_finetune_config"),
    "finished": ("FinetunedTeam", "best_team", "load_finetuned_team"),
    "loading": ("load_trainer", "make_trainer"),
    "run": ("FinetuneResult", "Watcher", "finetune", "load_finetuned"),
    "swap": ("Swap", "swap_agent"),
    "trainer": ("Trainer",),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
