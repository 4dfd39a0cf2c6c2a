"""Ctrl-C and termination, turned into a request that the loop answers between two updates."""

import signal
import threading


class StopSignal:
    """Turns the first SIGINT or SIGTERM into a flag; the second acts as it always does.

    Attributes:
      number: the signal that came, or None.
    """

    def __init__(self):
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

    def _restore(self):
        for number, handler in self._old.items():
            signal.signal(number, handler)
