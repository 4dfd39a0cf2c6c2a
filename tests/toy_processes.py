"""Programs that are killed while they train."""

import signal
import time


def kill_when_trained(process, metrics, iterations=3):
    """Kills a process, as nothing can catch, once its `metrics.jsonl` tells of so many iterations."""
    deadline = time.monotonic() + 500
    while not (metrics.exists() and metrics.read_text().count('"train"') >= iterations):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
