"""Ctrl-C and termination, turned into a request that the loop answers between two updates."""

import contextlib
import signal
import sys
import threading

STOPPING = "stopping after this step; Ctrl-C again stops at once"


class StopSignal:
    """Turns the first SIGINT or SIGTERM into a flag; the second acts as it always does.

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
        del frame
        self.number = number
        self._restore()
        if self._notice:
            # The signal may have come while this very stream was written to.
            with contextlib.suppress(RuntimeError):
                print(self._notice, file=sys.stderr, flush=True)

    def _restore(self):
        for number, handler in self._old.items():
            signal.signal(number, handler)
