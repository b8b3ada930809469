"""The processes in which answers are scored: another package's rule may evaluate one as code or algebra.

They are supervised as `lite_selfplay.verify.workers` does it, and speak the lines of `scoring`.
"""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lite_selfplay.errors import WorkerStartError
from lite_selfplay.verify.workers import Worker, Workers

Question = Mapping[str, Any]

# Importing reasoning-gym takes seconds, far more on a loaded machine.
START_SECONDS = 120.0


@dataclass(eq=False)
class Scorer(Worker):
    """A scoring process; `heard` is the beginning of a line that it has not ended yet."""

    heard: bytes = b""

    def message(self) -> dict[str, Any]:
        """What it said; empty if it has ended or written anything but one line."""
        line, self.heard = self.heard, b""
        try:
            found = json.loads(line or b"{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


class WorkerPool(Workers[Scorer, Question, str]):
    """Up to `size` scoring processes.

    Args:
        size: Maximum number of processes; by default 2, or 1 on a machine with one core.
        deadline: Seconds that a question may take once it has been given to a process.
        memory_mb: Limit of a process's address space in MiB, if the system supports one.
        command: Program to run instead of `lite_selfplay.extras.gym.scoring`, with its protocol.
        poll: Called at least every half second while waiting for answers; it may raise to stop.
    """

    late, given_up = "timeout", "crash"

    def __init__(
        self,
        size: int | None = None,
        deadline: float = 5.0,
        memory_mb: int = 4096,
        command: Sequence[str] | None = None,
        poll: Callable[[], None] = lambda: None,
    ):
        super().__init__(size)
        self.deadline, self.poll = deadline, poll
        module = [sys.executable, "-P", "-m", "lite_selfplay.extras.gym.scoring"]
        self._command = list(command) if command else [*module, str(deadline), str(memory_mb)]

    def ask(self, questions: Sequence[Question]) -> list[str]:
        """Outcomes in the order of the questions: the program's own, "timeout" or "crash".

        "timeout" means that the worker was killed at the deadline, "crash" that two new workers died on the question.
        Raises WorkerStartError if the workers cannot be started.
        """
        return self.work(questions, self.poll)

    def _start(self) -> Scorer:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                self._command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
        return Scorer(process, ours, ready=False, due=time.monotonic() + START_SECONDS)

    def _give(self, worker: Scorer, job: Question) -> float:
        if select.select([worker.control], [], [], 0)[0]:
            raise BrokenPipeError("it has ended, or spoke unasked")
        worker.control.sendall(json.dumps(job).encode() + b"\n")
        return self.deadline

    def _answered(self, worker: Scorer) -> bool:
        with contextlib.suppress(ConnectionResetError):
            part = worker.control.recv(1 << 16)
            worker.heard += part
            return not part or part.endswith(b"\n")
        return True

    def _take(self, worker: Scorer, job: Question) -> str | None:
        return worker.message().get("outcome")

    def _greet(self, worker: Scorer, late: bool) -> None:
        message = {"failed": f"it was not ready after {START_SECONDS:.0f} s"} if late else worker.message()
        if "ready" in message:
            worker.ready = True
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(timeout=1)  # so that the exit code is its own and not that of the kill
        self._drop(worker)
        raise WorkerStartError(
            f"the answer checker's process did not start: {message.get('failed', 'it ended at once')} "
            f"(exit code {worker.process.returncode}). To see why, run: {' '.join(self._command)}"
        )


def _environment() -> dict[str, str]:
    """This process's environment, extended so that a worker imports the same copy of this package as its parent.

    An installed copy is found without that, and site-packages must not come before the standard library.
    """
    environment = dict(os.environ)
    root = str(Path(__file__).resolve().parents[3])
    if root not in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    return environment
