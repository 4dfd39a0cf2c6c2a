"""Ctrl-C and termination, turned into a request that the loop answers between two updates."""

import contextlib
import signal
import sys
import threading

STOPPING = "stopping after this step; Ctrl-C again stops at once"


class StopSignal:
    """Turns the first SIGINT or SIGTERM into a flag; the second acts as it always does.

    Where one is inside another, the first signal sets the flags of both.

    Args:
      notice: one line, printed when the first comes.

    Attributes:
      number: the signal that came, or None.
    """

    def __init__(self, notice: str = ""):
        self._notice = notice
        self.number: int | None = None
        self._old = {}

    def __enter__(self):
        # Only the main thread may install handlers; elsewhere the flag is never set.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_):
        self._restore()

    def _handle(self, number, frame):
        self.number = number
        outer = getattr(self._old.get(number), "__self__", None)
        self._restore()
        if isinstance(outer, StopSignal):
            outer._handle(number, frame)
        elif self._notice:
            # The signal may have come while this very stream was written to.
            with contextlib.suppress(RuntimeError):
                print(self._notice, file=sys.stderr, flush=True)

    def _restore(self):
        while self._old:
            number, handler = self._old.popitem()
            signal.signal(number, handler)
