"""Supervised pretraining of one decoder for all roles, on what imperfect teachers write.

Axes: B episodes, K calls of all workflows together, L tokens, R roles, V tokens of the vocabulary. Episodes are fresh
at every step, and written on the devices that learn from them.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from flax import struct
from jax.sharding import PartitionSpec

from jaxmarl_llm import mesh
from jaxmarl_llm.arguments import check_number
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.limits import LARGEST_FLOAT
from jaxmarl_llm.llm import Decoder, DecoderConfig, decoder_config, score
from jaxmarl_llm.settings import check_counts, check_flags, check_numbers
from jaxmarl_llm.training.devices import place
from jaxmarl_llm.training.program import QUICKER
from jaxmarl_llm.workflows.bound import BoundWorkflow, bind, build_vocabulary
from jaxmarl_llm.workflows.graph import Workflow
from jaxmarl_llm.workflows.ragged import assemble
from jaxmarl_llm.workflows.tasks.base import Task, check_values
from jaxmarl_llm.workflows.teaching import Skill, teach
from jaxmarl_llm.workflows.team import make_team

STEPS_PER_CHUNK = 50
# Teachers write in a hundredth of the time that learning takes, but are ten times as long to compile: they go without
# the compiler's optimisations.
_QUICK_TO_COMPILE: dict[str, Any] = QUICKER | {"xla_backend_optimization_level": 0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretraining:
    """How a base policy is made; hashable. See `make_pretraining`.

    Attributes:
      task: gives the problems.
      workflows: whose roles are taught, all in one vocabulary.
      decoder: sizes of the one decoder.
      skill: probability that a teacher does what is right: one for all roles, or pairs of role and skill.
      skilled_share: share of the steps, from the start, in which what is learned is always right, though in episodes
        of imperfect teachers. Much is learned far sooner that way; the steps that follow teach how often to be wrong.
      num_steps: steps of the optimiser.
      num_episodes: B, fresh episodes of each workflow a step; each gives one example of each of its calls.
      learning_rate: after the warm-up; it then falls to 0 along half a cosine.
      warmup_steps: over which it rises from 0.
      max_grad_norm: largest global gradient norm.
      constrained: probabilities are among the tokens of a call's format, as when such a policy plays `constrained`.
      seed: of parameters, problems and teachers.

    Raises:
      UserError: settings out of range, a role without a skill, or a decoder that does not fit.
    """

    task: Task
    workflows: tuple[Workflow, ...]
    decoder: DecoderConfig
    skill: float | tuple[tuple[str, float], ...] = 0.6
    skilled_share: float = 0.75
    num_steps: int = 1500
    num_episodes: int = 16
    learning_rate: float = 0.01
    warmup_steps: int = 40
    max_grad_norm: float = 1.0
    constrained: bool = True
    seed: int = 0

    def __post_init__(self):
        if not self.workflows:
            raise UserError("a base policy needs at least one workflow")
        check_counts(self, "num_steps", "num_episodes")
        check_counts(self, "warmup_steps", "seed", at_least=0)
        check_numbers(self, "skilled_share")
        check_numbers(self, "learning_rate", "max_grad_norm", above=0.0)
        check_number("learning_rate", self.learning_rate, at_most=LARGEST_FLOAT)
        check_flags(self)
        for bound in self.bounds:
            make_team(bound.workflow, Decoder(self.decoder)).check_fits(bound)
        skills = self.skill_of_role
        for role, skill in skills.items():
            if role not in self.roles:
                raise unknown_name("role of the workflows", role, self.roles)
            check_number(f"the skill of role '{role}'", skill, at_most=1.0)
        missing = [role for role in self.roles if role not in skills]
        if missing:
            raise UserError(f"the skills miss the roles {', '.join(missing)}: give each one between 0 and 1")

    @property
    def bounds(self) -> tuple[BoundWorkflow, ...]:
        """The workflows at work on the task, in the vocabulary that they share."""
        vocabulary = build_vocabulary(self.task, *self.workflows)
        return tuple(bind(workflow, self.task, vocabulary=vocabulary) for workflow in self.workflows)

    @property
    def skill_of_role(self) -> dict[str, float]:
        """Role to skill."""
        return dict(self.skill) if isinstance(self.skill, tuple) else dict.fromkeys(self.roles, self.skill)

    @property
    def roles(self) -> tuple[str, ...]:
        """R names, each once; workflows that have a role of the same name teach it together."""
        return tuple(dict.fromkeys(role for workflow in self.workflows for role in workflow.roles))


def make_pretraining(
    task: Task,
    *workflows: Workflow,
    decoder: str | DecoderConfig = "tiny",
    skill: float | Mapping[str, float] | None = None,
    **settings: Any,
) -> Pretraining:
    """The configuration of a base policy for some workflows.

    Args:
      task: gives the problems.
      *workflows: whose roles are taught.
      decoder: a preset of `llm.decoder_config`, here given the vocabulary and the context of these workflows, norms of
        queries and keys, with which it learns sooner, and a value head; or a configuration of your own.
      skill: of all teachers, or by role.
      **settings: other fields of `Pretraining`.

    Raises:
      UserError: as for `Pretraining`, or an unknown preset or setting.
    """
    names = [field.name for field in dataclasses.fields(Pretraining)]
    for name in settings:
        if name not in names:
            raise unknown_name("setting of pretraining", name, names)
    if isinstance(decoder, str):
        vocabulary = build_vocabulary(task, *workflows)
        lengths = [bind(workflow, task, vocabulary=vocabulary).context_length for workflow in workflows]
        changes = {"qk_norm": True, "value_head": True}
        decoder = decoder_config(decoder, len(vocabulary), max(lengths, default=1), **changes)
    if skill is not None:
        settings["skill"] = (
            tuple(sorted(skill.items(), key=lambda pair: str(pair[0]))) if isinstance(skill, Mapping) else skill
        )
    return Pretraining(task=task, workflows=workflows, decoder=decoder, **settings)


@struct.dataclass
class Examples:
    """Prompts with what teachers wrote behind them, without a gap.

    Attributes:
      tokens: `[..., L]` int32, right-padded.
      mask: `[..., L - 1]` bool, which of the tokens after the first belong to a completion, `end` included.
    """

    tokens: jax.Array
    mask: jax.Array


def draw_examples(bound: BoundWorkflow, key: jax.Array, skill: Skill, advice: Skill, length: int) -> Examples:
    """One example of each call of one episode; pure, for `jax.vmap`.

    Args:
      bound: the workflow at work on its task.
      key: consumed.
      skill, advice: of the teachers who play and of those who are learned from, see `workflows.teach`.
      length: L, at least `bound.context_length`.

    Returns:
      `[K]` examples, K calls of this workflow: each drawn from the rounds and copies that were asked; no token of a
      call that was never asked counts.
    """
    problem_key, teach_key, pick_key = jax.random.split(key, 3)
    exchanges, _ = teach(bound, teach_key, bound.task.sample(problem_key), skill, advice)
    found = []
    calls = bound.workflow.calls
    for call, call_key in zip(calls, jax.random.split(pick_key, len(calls)), strict=True):
        rounds = [exchange for turn, exchange in zip(bound.workflow.turns, exchanges, strict=True) if turn.call == call]
        written = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rounds)
        chosen = jax.random.categorical(call_key, jnp.where(written.asked, 0.0, -jnp.inf))
        one = jax.tree.map(lambda leaf, chosen=chosen: leaf[chosen], written)
        parts = [(one.prompt, one.prompt_length), (one.completion, one.completion_length)]
        tokens, size = assemble(parts, length)
        place = jnp.arange(1, tokens.shape[0])
        found.append(Examples(tokens, one.asked & (place >= one.prompt_length) & (place < size)))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)


def sums_by_role(values: jax.Array, mask: jax.Array, role: jax.Array, num_roles: int) -> jax.Array:
    """Sums of what counts, role by role.

    Args:
      values: `[B, L]` float.
      mask: `[B, L]` bool, what counts.
      role: `[B]` int32.
      num_roles: R.

    Returns:
      `[R]` float32.
    """
    is_role = role[:, None] == jnp.arange(num_roles)[None]
    return jnp.sum(is_role * jnp.sum(values * mask, axis=1)[:, None], axis=0)


def role_mean_weights(mask: jax.Array, role: jax.Array, count: jax.Array) -> jax.Array:
    """Weights of tokens whose weighted sum is the mean over roles of the mean over a role's tokens.

    Args:
      mask: `[B, L]` bool, what counts.
      role: `[B]` int32.
      count: `[R]` float, tokens of each role that count, of the whole batch; a role without any is left out.

    Returns:
      `[B, L]` float32; they sum to 1 over the whole batch.
    """
    present = jnp.maximum(jnp.sum(count > 0), 1)
    return mask / (jnp.maximum(count, 1.0)[role][:, None] * present)


def loss_and_sums(
    decoder: Decoder, params: Any, examples: Examples, role: jax.Array, allowed: jax.Array | None, num_roles: int
) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy of completions, and what is logged; this device's part of both.

    Args:
      decoder, params: of the policy.
      examples: `[B]`.
      role: `[B]` int32.
      allowed: `[B, 1, V]` bool, see `llm.score`.
      num_roles: R.

    Returns:
      `(loss [], sums [3, R])`: the loss in nats, mean over roles of the mean over their tokens; sums by role over
      tokens of cross-entropy and of probability, and their number.
    """
    first = jnp.ones(role.shape, jnp.int32)
    prompt, rest = examples.tokens[:, :1], examples.tokens[:, 1:]
    inside = jnp.cumsum(examples.mask[:, ::-1], axis=1)[:, ::-1] > 0
    log_prob = score(decoder, params, prompt, first, rest, inside, allowed=allowed).log_prob
    # A teacher's token outside the format would count with the lowest number there is.
    log_prob = jnp.where(examples.mask, log_prob, 0.0)
    values = jnp.stack([-log_prob, jnp.exp(log_prob), jnp.ones_like(log_prob)])
    sums = jax.vmap(lambda value: sums_by_role(value, examples.mask, role, num_roles))(values)
    count = jax.lax.stop_gradient(mesh.sum_over_devices(sums[2]))
    return -jnp.sum(log_prob * role_mean_weights(examples.mask, role, count)), sums


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A base policy.

    Attributes:
      params: of one policy, without an axis P; `TeamPolicy.replicate` makes a team of it.
      metrics: one mapping for each chunk of steps: `step`, steps so far; `loss/<role>` in nats a token;
        `token_accuracy/<role>`, the probability that a sampled token is the teacher's; `steps_per_s`.
      compile_s: seconds before the first step.
    """

    params: Any
    metrics: tuple[dict[str, float], ...]
    compile_s: float


def pretrain(
    config: Pretraining, *, num_devices: int = 0, on_metrics: Callable[[dict[str, float]], None] | None = None
) -> Pretrained:
    """Makes a base policy from scratch.

    Args:
      config: everything that the result depends on, up to rounding.
      num_devices: how many share the episodes; 0 for as many as can share them evenly.
      on_metrics: called with the metrics of each chunk of steps.

    Raises:
      UserError: so many devices do not exist, or cannot share the episodes, or the task gives something out of range.
      FloatingPointError: the loss is no number any more.
    """
    check_values(config.task)
    start = time.perf_counter()
    placement = place(num_devices, config.num_episodes)
    length = min(STEPS_PER_CHUNK, config.num_steps)
    init, write, learn = _programs(config, config.num_episodes // placement.num_devices)
    whole, split = PartitionSpec(), PartitionSpec(None, mesh.ENV_AXIS)
    write = placement.share(write, (whole,), split)
    learn = placement.share(learn, (whole, whole, split), (whole, whole))
    state = jax.jit(init, out_shardings=placement.replicated)()

    def numbers(first):
        return jax.device_put(np.arange(first, first + length, dtype=np.int32), placement.replicated)

    options: dict[str, Any] = placement.compiler_options
    write = jax.jit(write).lower(numbers(0)).compile(options | (_QUICK_TO_COMPILE if placement.on_cpu else {}))
    learn = jax.jit(learn, donate_argnums=0).lower(state, numbers(0), write(numbers(0))).compile(options)
    compile_s = time.perf_counter() - start
    metrics = []
    for first in range(0, config.num_steps, length):
        start = time.perf_counter()
        state, sums = learn(state, numbers(first), write(numbers(first)))
        loss, probability, count = np.asarray(sums).sum(0)
        if not np.isfinite(loss).all():
            raise FloatingPointError(f"pretraining diverged after step {first}: lower learning_rate")
        done = min(first + length, config.num_steps)
        count = np.maximum(count, 1)
        found = {"step": float(done), "steps_per_s": (done - first) / (time.perf_counter() - start)}
        for name, of_role in (("loss", loss / count), ("token_accuracy", probability / count)):
            found |= {f"{name}/{role}": float(value) for role, value in zip(config.roles, of_role, strict=True)}
        metrics.append(found)
        if on_metrics is not None:
            on_metrics(found)
    return Pretrained(state[0], tuple(metrics), compile_s)


def _programs(config: Pretraining, num_local: int) -> tuple[Callable, Callable, Callable]:
    """What one device does with `num_local` of the B episodes.

    Returns:
      `init() -> state`, parameters and the optimiser's state; `write(steps [n]) -> examples [n, B, K]`,
      which teachers write; `learn(state, steps [n], examples) -> (state, sums [n, 3, R])`, see `loss_and_sums`.
    """
    decoder = Decoder(config.decoder)
    bounds, roles = config.bounds, config.roles
    calls = [(bound, call) for bound in bounds for call in bound.workflow.calls]
    role = jnp.tile(jnp.asarray([roles.index(call.role) for _, call in calls], jnp.int32), num_local)
    allowed = None
    if config.constrained:
        of_call = jnp.asarray(np.stack([bound.allowed_tokens(call) for bound, call in calls]))
        allowed = jnp.tile(of_call, (num_local, 1))[:, None]
    rate = optax.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, config.warmup_steps, max(config.num_steps, config.warmup_steps + 1)
    )
    optimizer = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), _muon(rate))
    params_key, data_key = jax.random.split(jax.random.key(config.seed))

    def init():
        params = decoder.init(params_key, jnp.zeros((1, 1), jnp.int32))["params"]
        return params, optimizer.init(params)

    def episode(key, step):
        slips = step >= round(config.skilled_share * config.num_steps)
        skill = {role: jnp.asarray(of_role, jnp.float32) for role, of_role in config.skill_of_role.items()}
        advice = {role: jnp.where(slips, of_role, 1.0) for role, of_role in skill.items()}
        drawn = [
            draw_examples(bound, bound_key, skill, advice, config.decoder.max_length)
            for bound, bound_key in zip(bounds, jax.random.split(key, len(bounds)), strict=True)
        ]
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *drawn)

    def write(steps):
        keys = jax.vmap(lambda step: mesh.local_keys(jax.random.fold_in(data_key, step), num_local))(steps)
        return jax.vmap(jax.vmap(episode, in_axes=(0, None)))(keys, steps)

    def one_step(state, step_and_examples):
        params, optimizer_state = state
        step, examples = step_and_examples
        batch = jax.tree.map(lambda leaf: leaf.reshape(-1, leaf.shape[-1]), examples)

        def loss(params):
            return loss_and_sums(decoder, params, batch, role, allowed, len(roles))

        gradient, sums = mesh.sum_over_devices(jax.grad(loss, has_aux=True)(params))
        update, optimizer_state = optimizer.update(gradient, optimizer_state, params)
        new = optax.apply_updates(params, update), optimizer_state
        # The last chunk may reach beyond the end.
        runs = step < config.num_steps
        return jax.tree.map(lambda after, before: jnp.where(runs, after, before), new, state), sums * runs

    def learn(state, steps, examples):
        return jax.lax.scan(one_step, state, (steps, examples))

    return init, write, learn


def _muon(rate: optax.Schedule) -> optax.GradientTransformation:
    """Muon for the matrices of layers, and Adam for the rest (Jordan et al. 2024)."""

    def axes(params):
        def of_leaf(path, leaf):
            in_layer = path[0].key.startswith("layers_") and leaf.ndim == 2
            return optax.contrib.MuonDimensionNumbers(0, 1) if in_layer else None

        return jax.tree_util.tree_map_with_path(of_leaf, params)

    return optax.contrib.muon(rate, adam_learning_rate=rate, muon_weight_dimension_numbers=axes)
