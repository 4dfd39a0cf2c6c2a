"""A process that prepares pieces of work and times them on request, so that two engines can take turns.

Standard library alone: a peer's interpreter, which has none of this package installed, can load this file by itself.
Requests are JSON lines on standard input; replies are JSON lines on standard output:

    {"prepare": {...}}   ->  {"compile_s": ..., "steps": ..., ...}
    {"run": seed}        ->  {"seconds": ..., "checksum": ..., ...}
    {"memory": true}     ->  {"peak_mib": ...}
"""

import json
import os
import subprocess
import sys


class WorkerError(RuntimeError):
    """A worker could not do what was asked; the message ends with the last lines it wrote."""


def serve(prepare):
    """Answers requests until standard input ends.

    Args:
      prepare: `settings -> (description, run)`: a dict for the reply, and `run(seed)`, which returns a dict with
        `seconds`.
    """
    # Libraries print as they like: the replies get the real output to themselves.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "prepare" in request:
                # The old program goes before the new one comes.
                run = None
                reply, run = prepare(request["prepare"])
            elif "run" in request:
                if run is None:
                    raise ValueError("nothing is prepared")
                reply = run(request["run"])
            else:
                import resource

                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                reply = {"peak_mib": peak / (2**20 if sys.platform == "darwin" else 2**10)}
        except Exception as error:
            import traceback

            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


class Worker:
    """The other end: starts a process that calls `serve`, and asks it.

    Args:
      command: the process.
      log: path of a file for what it writes on standard error.
    """

    def __init__(self, command, log):
        self.log = log
        self._stderr = open(log, "w")  # noqa: SIM115 - closed with the worker
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True
        )
        assert self._process.stdin and self._process.stdout
        self._requests, self._replies = self._process.stdin, self._process.stdout

    def ask(self, **request):
        """One request; returns the reply.

        Raises:
          WorkerError: the process failed or reported an error.
        """
        try:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
        except BrokenPipeError:
            pass
        line = self._replies.readline()
        if not line:
            raise WorkerError(f"the process ended: {self._tail()}")
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply

    def _tail(self):
        self._stderr.flush()
        with open(self.log) as file:
            return " / ".join(file.read().strip().splitlines()[-3:]) or "it wrote nothing"

    def close(self):
        """Ends the process."""
        self._requests.close()
        self._process.wait()
        self._replies.close()
        self._stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
