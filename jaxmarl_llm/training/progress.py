"""What the user sees while a run trains: a progress bar on a terminal, plain lines elsewhere."""

import math
import time
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

# Before that many updates a guess of the time left is worth nothing.
_FEW = 4


class Reporter:
    """Receives the events of a run; this one shows nothing."""

    @contextmanager
    def compiling(self):
        """Surrounds compilation: the settings are known to be sound."""
        yield

    def start(self, env_steps: int, total_env_steps: int, compile_seconds: float) -> None:
        """Training begins, at `env_steps` of `total_env_steps` of each seed."""

    def advance(self, env_steps: int, steps: int, seconds: float, train_return: float) -> None:
        """An update of all seeds, of so many steps, is done; the return is nan while no episode has finished."""

    def evaluated(self, env_steps: int, mean: float, low: float, high: float) -> None:
        """An evaluation is done: mean return and its 95 % interval."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def stop(self) -> None:
        """Training has ended, one way or another; may be called twice."""


def format_count(count: float) -> str:
    """A count with three digits and a suffix: 950, 12.3k, 1.2M."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            digits = f"{count / limit:.3g}" if count < 999.5 * limit else f"{count / limit:.0f}"
            return f"{digits}{suffix}"
    return f"{count:.0f}"


def format_duration(seconds: float) -> str:
    """A time as 45s, 3m 05s or 2h 07m."""
    if not math.isfinite(seconds):
        return "-"
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m {seconds % 60:02d}s"
    return f"{seconds // 3600}h {seconds % 3600 // 60:02d}m"


class _Percent(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{int(task.percentage):3d} %")


class TerminalReporter(Reporter):
    """Draws a progress bar where the console is a terminal, and prints plain lines where it is not.

    Args:
      console: where to draw.
      title: a line that is printed before the run is compiled.
      seconds_between_lines: plain lines come at every evaluation, and at least so often.
    """

    def __init__(self, console: Console, title: str, seconds_between_lines: float = 30.0):
        self._console = console
        self._title = title
        self._seconds_between_lines = seconds_between_lines
        self._progress: Progress | None = None
        self._task = None
        self._total = self._first = self._updates = 0
        self._return = math.nan
        self._evaluation = ""
        self._first_time = self._line_time = 0.0
        self._steps = self._seconds = 0.0

    @contextmanager
    def compiling(self):
        """Says what is trained, and that compilation takes its time."""
        self.note(self._title)
        if self._console.is_terminal:
            with self._console.status("compiling"):
                yield
        else:
            self._console.print("compiling", highlight=False)
            yield

    def start(self, env_steps, total_env_steps, compile_seconds):
        """Draws the bar."""
        self._total = total_env_steps
        self._line_time = time.monotonic()
        self._console.print(f"compiled in {compile_seconds:.1f} s", highlight=False)
        if not self._console.is_terminal:
            return
        self._progress = Progress(
            BarColumn(bar_width=24),
            _Percent(),
            TextColumn("{task.fields[text]}"),
            console=self._console,
            refresh_per_second=5,
        )
        self._task = self._progress.add_task("", total=total_env_steps, completed=env_steps, text="")
        self._progress.start()

    def advance(self, env_steps, steps, seconds, train_return):
        """Moves the bar on."""
        self._updates += 1
        if self._updates == 1:
            # The first update returns before it is done, or warms the machine up.
            self._first, self._first_time = env_steps, time.monotonic()
        else:
            # One update's speed is noisy: a moving average is what a reader can use.
            self._steps, self._seconds = 0.8 * self._steps + steps, 0.8 * self._seconds + seconds
        if math.isfinite(train_return):
            old = self._return if math.isfinite(self._return) else train_return
            self._return = 0.8 * old + 0.2 * train_return
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=env_steps, text=self._text(env_steps))
        elif time.monotonic() - self._line_time > self._seconds_between_lines:
            self._print_line(env_steps)

    def evaluated(self, env_steps, mean, low, high):
        """Shows the evaluation."""
        self._evaluation = f"eval {mean:.4g}"
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=env_steps, text=self._text(env_steps))
        else:
            self._print_line(env_steps)

    def note(self, text):
        """Prints a line above the bar."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def stop(self):
        """Leaves the bar as it is."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _text(self, env_steps: int) -> str:
        parts = [f"{format_count(env_steps)} steps"]
        knows_speed = self._updates > _FEW and self._seconds > 0
        if knows_speed:
            parts.append(f"{format_count(self._steps / self._seconds)}/s")
        if math.isfinite(self._return):
            parts.append(f"return {self._return:.4g}")
        if self._evaluation:
            parts.append(self._evaluation)
        if knows_speed and self._first < env_steps < self._total:
            seconds_a_step = (time.monotonic() - self._first_time) / (env_steps - self._first)
            left = seconds_a_step * (self._total - env_steps)
            parts.append(f"{format_duration(left)} left")
        return "  ".join(parts)

    def _print_line(self, env_steps: int) -> None:
        self._line_time = time.monotonic()
        percent = 100 * env_steps // max(self._total, 1)
        self._console.print(f"{percent:3d} %  {self._text(env_steps)}", highlight=False, soft_wrap=True)
