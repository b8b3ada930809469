"""A pool of processes for checks that may never end.

Another package's scorer of a model's answer, which may evaluate it as code or algebra, can loop, use up memory or
crash, and no signal or thread stops it reliably. So scorers run in separate processes, each in its own session and
killed with its whole group at the deadline. They are started as plain programs, not forked, so that notebooks and
scripts without a main guard work.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from lite_selfplay.errors import WorkerStartError

Question = Mapping[str, Any]
Events = queue.SimpleQueue[tuple["Worker", str | None]]

# Importing reasoning-gym takes seconds, far more on a loaded machine.
START_SECONDS = 120.0
# The longest wait between two calls of `poll`.
POLL_SECONDS = 0.5
# After this many crashes of new workers a question is given up.
MAX_CRASHES = 2


class Worker:
    """One checking process. `job` is the index of its current question, `due` the time by which it must reply."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], events: Events):
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self.ready = False
        self.job: int | None = None
        self.due = time.monotonic() + START_SECONDS
        self._reader = threading.Thread(target=_read, args=(self, events), daemon=True)
        self._reader.start()

    def give(self, job: int, question: Question, deadline: float) -> None:
        self.job, self.due = job, time.monotonic() + deadline
        assert self.process.stdin is not None
        # If the process has died, its reader reports this, and the question goes to another worker.
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()

    def kill(self) -> None:
        """Kill the process and everything it started, and wait until it has ended."""
        if self.process.poll() is None:
            if sys.platform == "win32":
                self.process.kill()
            else:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # what it has not read is lost, as intended
            self.process.stdin.close()


def _read(worker: Worker, events: Events) -> None:
    """Pass on a worker's lines, then None once its output is closed. Runs in a thread: pipes have no timeouts."""
    assert worker.process.stdout is not None
    with worker.process.stdout as lines:
        for line in lines:
            events.put((worker, line))
    events.put((worker, None))


@dataclass
class _Batch:
    """Questions in progress. `outcomes[i]` is None until question i is answered."""

    questions: Sequence[Question]
    outcomes: list[str | None] = field(init=False)
    waiting: deque[int] = field(init=False)
    crashes: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.outcomes = [None] * len(self.questions)
        self.waiting = deque(range(len(self.questions)))


class WorkerPool:
    """Up to `size` checking processes, started at the first question and kept for later ones.

    Args:
        size: Maximum number of processes; by default 2, or 1 on a machine with one core.
        deadline: Seconds that a question may take once it has been given to a process.
        memory_mb: Limit of a process's address space in MiB, if the system supports one.
        command: Program to run instead of `lite_selfplay.extras.gym.scoring`, with the protocol of
            `lite_selfplay.extras.gym.worker`.
        poll: Called at least every half second while waiting for answers; it may raise to stop.

    A pool may be used from several threads; their batches take turns. After `close`, the next question starts new
    processes.
    """

    def __init__(
        self,
        size: int | None = None,
        deadline: float = 5.0,
        memory_mb: int = 4096,
        command: Sequence[str] | None = None,
        poll: Callable[[], None] = lambda: None,
    ):
        self.size = size or min(2, os.cpu_count() or 1)
        self.deadline, self.poll = deadline, poll
        module = [sys.executable, "-P", "-m", "lite_selfplay.extras.gym.scoring"]
        self._command = list(command) if command else [*module, str(deadline), str(memory_mb)]
        self._events: Events = queue.SimpleQueue()
        self._workers: list[Worker] = []
        self._looked = time.monotonic()
        self._lock = threading.Lock()
        # Runs when the pool is garbage-collected or the interpreter exits, whichever comes first.
        self._cleanup = weakref.finalize(self, _kill_all, self._workers)

    def pids(self) -> list[int]:
        """Process ids of the current workers."""
        return [worker.process.pid for worker in self._workers]

    def ask(self, questions: Sequence[Question]) -> list[str]:
        """Outcomes in the order of the questions: the program's own, "timeout" or "crash".

        "timeout" means that the worker was killed at the deadline, "crash" that two new workers died on the question.
        Raises WorkerStartError if the workers cannot be started.
        """
        with self._lock:
            batch = _Batch(questions)
            self._looked = time.monotonic()
            try:
                while any(outcome is None for outcome in batch.outcomes):
                    self.poll()
                    self._hire(batch)
                    self._hand_out(batch)
                    self._wait(batch)
            finally:
                # Only an exception, such as Ctrl-C, leaves a worker busy; its late reply must not reach the next batch.
                self._dismiss([worker for worker in self._workers if worker.job is not None])
        return [outcome or "" for outcome in batch.outcomes]

    def close(self) -> None:
        """End all workers and wait for them."""
        with self._lock:
            self._dismiss(list(self._workers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hire(self, batch: _Batch) -> None:
        open_questions = len(batch.waiting) + sum(worker.job is not None for worker in self._workers)
        while len(self._workers) < min(self.size, open_questions):
            self._workers.append(Worker(self._command, _environment(), self._events))

    def _hand_out(self, batch: _Batch) -> None:
        for worker in self._workers:
            if batch.waiting and worker.ready and worker.job is None:
                job = batch.waiting.popleft()
                worker.give(job, batch.questions[job], self.deadline)

    def _wait(self, batch: _Batch) -> None:
        """Process the next event, or the deadline that passes without one."""
        pending = [worker for worker in self._workers if not worker.ready or worker.job is not None]
        due = min((worker.due for worker in pending), default=time.monotonic())
        try:
            worker, line = self._events.get(timeout=min(POLL_SECONDS, max(0.0, due - time.monotonic())))
        except queue.Empty:
            pass
        else:
            # A worker that has been killed may still have left a line.
            if worker in self._workers:
                self._take(worker, line, batch)
        self._excuse()
        self._expire(batch)

    def _excuse(self) -> None:
        """Add to every deadline the time for which this process itself was stopped, and could read no reply.

        Stopped with Ctrl-Z, by SIGSTOP, or frozen with its container; then the workers may have stood still, too.
        """
        now = time.monotonic()
        stopped, self._looked = now - self._looked - POLL_SECONDS, now
        if stopped > POLL_SECONDS:
            for worker in self._workers:
                worker.due += stopped

    def _take(self, worker: Worker, line: str | None, batch: _Batch) -> None:
        message = _parse(line)
        if not worker.ready:
            if "ready" not in message:
                raise self._not_started(worker, message.get("failed", "it ended at once"))
            worker.ready = True
        elif worker.job is not None and "outcome" in message:
            batch.outcomes[worker.job] = message["outcome"]
            worker.job = None
        else:
            self._crashed(worker, batch)

    def _crashed(self, worker: Worker, batch: _Batch) -> None:
        job, worker.job = worker.job, None
        self._dismiss([worker])
        if job is None:
            return
        batch.crashes[job] += 1
        if batch.crashes[job] >= MAX_CRASHES:
            batch.outcomes[job] = "crash"
        else:
            batch.waiting.appendleft(job)

    def _expire(self, batch: _Batch) -> None:
        now = time.monotonic()
        for worker in list(self._workers):
            if not worker.ready and worker.due <= now:
                raise self._not_started(worker, f"it was not ready after {START_SECONDS:.0f} s")
            if worker.job is not None and worker.due <= now:
                batch.outcomes[worker.job], worker.job = "timeout", None
                self._dismiss([worker])

    def _not_started(self, worker: Worker, reason: str) -> WorkerStartError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(timeout=1)  # so that the exit code is its own and not that of the kill
        self._dismiss([worker])
        code = worker.process.returncode
        return WorkerStartError(
            f"the answer checker's process did not start: {reason} (exit code {code}). "
            f"To see why, run: {' '.join(self._command)}"
        )

    def _dismiss(self, workers: Iterable[Worker]) -> None:
        for worker in workers:
            self._workers.remove(worker)
            worker.kill()


def _kill_all(workers: list[Worker]) -> None:
    for worker in workers:
        worker.kill()
    workers.clear()


def _parse(line: str | None) -> dict[str, Any]:
    """A worker's message; empty if the worker has ended or written anything else."""
    try:
        message = json.loads(line or "{}")
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _environment() -> dict[str, str]:
    """This process's environment, extended so that a worker imports the same copy of this package as its parent.

    An installed copy is found without that, and site-packages must not come before the standard library.
    """
    environment = dict(os.environ)
    root = str(Path(__file__).resolve().parents[3])
    if root not in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    return environment
