"""Tasks for teams of language-model roles: problems, exact verification, imperfect teachers; all inside jit."""

from jaxmarl_llm.registry import Registry
from jaxmarl_llm.workflows.tasks.base import Problem, Task
from jaxmarl_llm.workflows.tasks.checks import check_task

_TASKS: Registry[Task] = Registry(
    "task",
    {
        "arithmetic": "jaxmarl_llm.workflows.tasks.arithmetic:Arithmetic",
        "stack_code": "jaxmarl_llm.workflows.tasks.stack_code:StackCode",
    },
)
make_task = _TASKS.make
register_task = _TASKS.register
task_names = _TASKS.names

__all__ = ["Problem", "Task", "check_task", "make_task", "register_task", "task_names"]
