"""Episodes as pictures: record one, write it as a GIF. Axes: T steps, N agents."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.envs.base import Environment, EnvState, TimeStep
from jaxmarl_llm.errors import UserError


@dataclasses.dataclass(frozen=True)
class Episode:
    """One episode on the host.

    Attributes:
      states: T + 1 states, from the first to the one that ended the episode.
      actions: `[T, N]` int32.
      rewards: `[T, N]` float32.
      terminated: whether all agents terminated; if not, the time limit (or the caller's) ended it.
    """

    states: list[EnvState]
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool

    @property
    def team_return(self) -> float:
        """Mean over agents of the sum of rewards."""
        return float(self.rewards.sum(0).mean())

    def __len__(self) -> int:
        return len(self.rewards)


def record_episode(
    env: Environment,
    act: Callable[[TimeStep, Any, jax.Array], tuple[jax.Array, Any]],
    key: jax.Array,
    *,
    memory: Any = (),
    max_steps: int | None = None,
) -> Episode:
    """Plays one episode in a single compiled loop.

    Args:
      env: a raw environment (one that does not reset itself).
      act: `(timestep, memory, key) -> (action [N] int32, memory)`, traceable; for a learner
        `lambda timestep, memory, key: learner.act(params, timestep, memory, key, greedy=True)`.
      key: consumed.
      memory: the policy's first memory; `()` without one.
      max_steps: records at most so many steps; the environment's own limit when not given.

    Returns:
      The episode, cut at its end.
    """
    limit = env.max_steps if max_steps is None else min(max_steps, env.max_steps)

    def play(key, memory):
        key_reset, key_run = jax.random.split(key)
        timestep, first_state = env.reset(key_reset)

        def step(carry, key):
            timestep, state, memory = carry
            key_act, key_step = jax.random.split(key)
            action, memory = act(timestep, memory, key_act)
            timestep, state = env.step(key_step, state, action)
            return (timestep, state, memory), (state, action, timestep.reward, timestep.done, timestep.terminated)

        carry = (timestep, first_state, memory)
        return first_state, jax.lax.scan(step, carry, jax.random.split(key_run, limit))[1]

    first_state, (states, actions, rewards, done, terminated) = jax.device_get(jax.jit(play)(key, memory))
    length = int(np.argmax(done)) + 1 if done.any() else limit
    later = [jax.tree.map(lambda leaf, t=t: leaf[t], states) for t in range(length)]
    return Episode(
        states=[first_state, *later],
        actions=np.asarray(actions[:length], np.int32),
        rewards=np.asarray(rewards[:length], np.float32),
        terminated=bool(terminated[length - 1].all()),
    )


def write_episode_gif(
    path: str | Path,
    env: Environment,
    episode: Episode,
    *,
    frames_per_second: float = 8.0,
    max_frames: int = 1001,
    max_side: int = 480,
    colors: int = 64,
) -> Path:
    """Writes an episode as an animated GIF with step, reward and return in a strip above the picture.

    Args:
      path: where to write; its folder is made.
      env: the environment, which must have a renderer.
      episode: what `record_episode` returned.
      frames_per_second: of the animation; the last frame stays for two seconds.
      max_frames: of longer episodes only the beginning and the last picture are shown.
      max_side: larger pictures are scaled down to this many pixels a side.
      colors: size of the palette, shared by all frames.

    Returns:
      The path.

    Raises:
      UserError: the environment has no renderer.
    """
    from PIL import Image

    frames = []
    returns = np.concatenate([[0.0], np.cumsum(episode.rewards.mean(-1))])
    rewards = np.concatenate([[0.0], episode.rewards.mean(-1)])
    shown = list(range(len(episode.states)))
    if len(shown) > max_frames:
        # The end is what the return stands for.
        shown = [*shown[: max_frames - 1], shown[-1]]
    for t in shown:
        try:
            picture = np.asarray(env.render(episode.states[t]), np.uint8)
        except NotImplementedError as error:
            raise UserError(str(error)) from error
        image = Image.fromarray(picture)
        scale = max_side / max(image.size)
        if scale < 1:
            image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)
        frames.append(_with_strip(image, t, len(episode), rewards[t], returns[t]))
    palette = _shared_palette(frames, colors)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    duration = [round(1000 / frames_per_second)] * (len(shown) - 1) + [2000]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=duration, loop=0, optimize=True)
    return path


def _with_strip(image, step: int, length: int, reward: float, total: float):
    from PIL import Image, ImageDraw, ImageFont

    height = 22
    # Narrow worlds get a margin, so that the text always fits.
    width = max(image.width, 252)
    frame = Image.new("RGB", (width, image.height + height), (255, 255, 255))
    frame.paste(image, ((width - image.width) // 2, height))
    draw = ImageDraw.Draw(frame)
    font = ImageFont.load_default(12)
    ink, accent = (40, 42, 54), (0, 114, 178) if reward > 0 else (213, 94, 0)
    draw.text((6, 4), f"step {step}/{length}", fill=ink, font=font)
    draw.text((width // 2, 4), f"reward {reward:+.4g}", fill=accent if reward else ink, font=font, anchor="ma")
    draw.text((width - 6, 4), f"return {total:.4g}", fill=ink, font=font, anchor="ra")
    return frame


def _shared_palette(frames, colors: int):
    """One palette from frames spread over the episode: colours do not flicker, and unchanged pixels compress away."""
    from PIL import Image

    picks = [frames[i] for i in np.unique(np.linspace(0, len(frames) - 1, min(len(frames), 12)).astype(int))]
    sheet = Image.new("RGB", (picks[0].width, sum(pick.height for pick in picks)))
    top = 0
    for pick in picks:
        sheet.paste(pick, (0, top))
        top += pick.height
    return sheet.quantize(colors=colors, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
