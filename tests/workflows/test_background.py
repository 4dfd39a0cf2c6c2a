import os
import signal
import threading
import time

import pytest

from jaxmarl_llm.training.interruption import STOPPING, StopSignal
from jaxmarl_llm.workflows.ablation.background import in_background


def test_a_signal_is_answered_while_something_is_prepared(capfd):
    ends = threading.Event()
    with StopSignal(STOPPING) as stop:

        def prepare():
            os.kill(os.getpid(), signal.SIGINT)
            ends.wait(20)

        def on_wait():
            if stop.number is not None:
                raise InterruptedError

        start = time.monotonic()
        with pytest.raises(InterruptedError):
            in_background(prepare, on_wait)
        assert time.monotonic() - start < 10
    ends.set()
    assert capfd.readouterr().err == "stopping after this step; Ctrl-C again stops at once\n"


def test_results_and_faults_come_back():
    assert in_background(lambda: 7, lambda: None) == 7
    with pytest.raises(FloatingPointError, match="diverged"):
        in_background(lambda: (_ for _ in ()).throw(FloatingPointError("diverged")), lambda: None)
