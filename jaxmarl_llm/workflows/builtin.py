"""The workflows of the SP and IP study (arXiv 2605.24202), and the single agent as their control."""

from jaxmarl_llm.registry import Registry
from jaxmarl_llm.workflows.graph import PROBLEM, Call, Last, Loop, Selected, Slot, Until, Workflow
from jaxmarl_llm.workflows.messages import CORRECT, Choice, Solution, Strategies, Synthesis, Verdict


def single() -> Workflow:
    """One generator, asked once."""
    return Workflow("single", (_generator(),), answer=Last("generator"))


def eval_opt(rounds: int = 3) -> Workflow:
    """A generator and an evaluator in turns, until the evaluator is satisfied.

    From the second round on, the generator reads its last attempt and the verdict on it.

    Args:
      rounds: R, the most rounds; the answer is the latest attempt.
    """
    generator = Call(
        "generator",
        prompt=(PROBLEM, Slot("generator", label="<attempt>"), Slot("evaluator"), "<generator>"),
        writes=Solution(),
    )
    evaluator = Call(
        "evaluator",
        prompt=(PROBLEM, Slot("generator", label="<attempt>"), "<evaluator>"),
        writes=Verdict("generator"),
    )
    loop = Loop((generator, evaluator), rounds=rounds, until=Until("evaluator", CORRECT))
    return Workflow("eval_opt", (loop,), answer=Last("generator"))


def voting(n: int = 3) -> Workflow:
    """Generators on one prompt, and an aggregator that names the number of a solution; the answer is that solution.

    Args:
      n: N, how many generators.
    """
    aggregator = Call(
        "aggregator",
        prompt=(PROBLEM, Slot("generator", numbered=True), "<aggregator>"),
        writes=Choice("generator"),
    )
    return Workflow("voting", (_generator(n), aggregator), answer=Selected("aggregator"))


def orch_workers(n: int = 3) -> Workflow:
    """An orchestrator that writes strategies, a worker for each, and a synthesizer that writes the answer.

    Args:
      n: N, the most strategies; a worker without one is not asked.
    """
    orchestrator = Call("orchestrator", prompt=(PROBLEM, "<orchestrator>"), writes=Strategies(n))
    worker = Call(
        "worker",
        prompt=(PROBLEM, Slot("orchestrator", label="<strategy>", part=True), "<worker>"),
        writes=Solution(),
        copies=n,
    )
    synthesizer = Call(
        "synthesizer",
        prompt=(PROBLEM, Slot("worker", numbered=True), "<synthesizer>"),
        writes=Synthesis("worker"),
    )
    return Workflow("orch_workers", (orchestrator, worker, synthesizer), answer=Last("synthesizer"))


def _generator(copies: int = 1) -> Call:
    return Call("generator", prompt=(PROBLEM, "<generator>"), writes=Solution(), copies=copies)


_MODULES = {"builtin": ("single", "eval_opt", "voting", "orch_workers"), "coordination": ("coordinator", "hierarchy")}
_WORKFLOWS: Registry[Workflow] = Registry(
    "workflow", {name: f"{__package__}.{module}:{name}" for module, names in _MODULES.items() for name in names}
)
make_workflow = _WORKFLOWS.make
register_workflow = _WORKFLOWS.register
workflow_names = _WORKFLOWS.names
workflow_factory = _WORKFLOWS.factory
