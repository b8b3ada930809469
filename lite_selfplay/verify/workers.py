"""Worker processes for jobs that may loop, crash or use up memory: started on demand, supervised, and replaced.

No signal or thread stops such a job reliably. So it runs in a separate process with its own session, which is killed
with its whole group. The process is a new program, not a fork, so that notebooks and scripts without a main guard work.
"""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import weakref
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Generic, TypeVar

from lite_selfplay.verify.programs.inside.clock import TICK_SECONDS, Clock

MOST_LOST = 2  # workers that died during a job, before it is given up


@dataclass(eq=False)
class Worker:
    """A process, and the socket to it, which becomes readable when it answers or ends. `job` is the number of its
    current job. It must answer, or become `ready`, before its `clock` runs out."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    ready: bool = True
    job: int | None = None
    clock: Clock = field(default_factory=lambda: Clock((), 0.0))

    def done(self) -> None:
        self.job = None

    def close(self) -> None:
        """Kill it with everything it started, and wait for it."""
        self.done()
        if self.process.returncode is None:  # not reaped yet, so its process id cannot have been reused
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.control.close()


W = TypeVar("W", bound=Worker)
J = TypeVar("J")
R = TypeVar("R")


@dataclass
class _Batch(Generic[J, R]):
    """Jobs in progress: results, waiting jobs, jobs to repeat `alone`, and how often each was lost."""

    jobs: Sequence[J]
    waiting: deque[int]
    results: dict[int, R] = field(default_factory=dict)
    losses: Counter[int] = field(default_factory=Counter)
    alone: list[int] = field(default_factory=list)


class Workers(ABC, Generic[W, J, R]):
    """Up to `size` workers (by default 2, or 1 on a machine with one core), started at the first job and kept.

    Several threads may use them; their batches take turns. A forked process starts its own. After `close` the next job
    starts new ones.
    """

    late: R | None = None
    """The result of a job that missed its deadline; None: its worker is lost, and another one tries."""
    given_up: R
    """The result of a job during which too many workers were lost."""
    not_judged: R
    """The result of a job that got no CPU time on a busy machine, not even alone."""

    def __init__(self, size: int | None):
        self.size = size or min(2, os.cpu_count() or 1)
        self._workers: list[W] = []
        self._lock = threading.RLock()
        self._belong()

    @abstractmethod
    def _start(self) -> W:
        """A new worker. If it is not ready yet, its clock is the deadline for that."""

    @abstractmethod
    def _give(self, worker: W, job: J) -> float:
        """Send a job to a worker; returns the seconds that it may take. Raises OSError if the worker has died."""

    @abstractmethod
    def _take(self, worker: W, job: J) -> R | None:
        """The job's result; None if the worker has ended or its answer is malformed."""

    def _answered(self, worker: W) -> bool:
        """Whether the answer is complete, when the worker's socket is readable."""
        return True

    def _greet(self, worker: W, late: bool) -> None:
        """Handle a message from a worker that is not ready, or its delay. Raises if the worker cannot be used."""

    def _known(self, job: J) -> R | None:
        """The result of a job that need not be run, else None."""
        return None

    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """End all workers and wait for them."""
        with self._lock:
            self._own_process()
            _close_all(self._workers, self._pid)

    def work(self, jobs: Sequence[J], poll: Callable[[], None]) -> list[R]:
        """The jobs' results, in their order. `poll` is called at least every half second; it may raise to stop."""
        with self._lock:
            self._own_process()
            batch = _Batch[J, R](jobs, deque(range(len(jobs))))
            try:
                while len(batch.results) < len(jobs):
                    poll()
                    self._hand_out(batch)
                    self._wait(batch)
            finally:
                # A worker is busy only after an exception, such as Ctrl-C; its answer must not reach the next batch.
                for worker in [each for each in self._workers if each.job is not None]:
                    self._drop(worker)
            return [batch.results[number] for number in range(len(jobs))]

    def _belong(self) -> None:
        """Close the workers when this object is collected or the interpreter exits, in this process only."""
        self._pid = os.getpid()
        self._cleanup = weakref.finalize(self, _close_all, self._workers, self._pid)

    def _own_process(self) -> None:
        """In a fork, close the copied sockets and forget the parent's workers."""
        if os.getpid() != self._pid:
            for worker in self._workers:
                worker.control.close()
            self._workers.clear()
            self._cleanup.detach()
            self._belong()

    def _hand_out(self, batch: _Batch[J, R]) -> None:
        if not batch.waiting and not any(worker.job is not None for worker in self._workers):
            batch.waiting += [number for number in batch.alone if number not in batch.results][:1]
        while len(self._workers) < self.size and sum(w.job is None for w in self._workers) < len(batch.waiting):
            self._workers.append(self._start())
        for worker in [each for each in self._workers if each.ready and each.job is None]:
            while batch.waiting and worker.job is None:
                number = batch.waiting.popleft()
                if (known := self._known(batch.jobs[number])) is not None:
                    batch.results[number] = known
                    continue
                worker.job = number
                try:
                    worker.clock = Clock([worker.process.pid], self._give(worker, batch.jobs[number]))
                except OSError:  # it died while idle, for example for lack of memory
                    self._lose(worker, batch, number)
                    break

    def _wait(self, batch: _Batch[J, R]) -> None:
        """Receive answers, and check the clocks of the other workers."""
        pending = [worker for worker in self._workers if worker.job is not None or not worker.ready]
        if not pending:
            return
        readable = wait([worker.control for worker in pending], TICK_SECONDS)
        for worker in pending:
            heard = worker.control in readable
            late = not heard and worker.clock.poll()
            if not late and not (heard and self._answered(worker)):
                continue
            number = worker.job
            if number is None:
                self._greet(worker, late)
                continue
            otherwise = self.late if worker.clock.used >= worker.clock.seconds else self.not_judged
            result = otherwise if late else self._take(worker, batch.jobs[number])
            if result is None:
                self._lose(worker, batch, number)
                continue
            if result is self.not_judged and number not in batch.alone:
                batch.alone.append(number)
            else:
                batch.results[number] = result
            if late:
                self._drop(worker)
            worker.done()

    def _lose(self, worker: W, batch: _Batch[J, R], number: int) -> None:
        batch.losses[number] += 1
        if batch.losses[number] < MOST_LOST:
            batch.waiting.appendleft(number)
        else:
            batch.results[number] = self.given_up
        self._drop(worker)

    def _drop(self, worker: W) -> None:
        self._workers.remove(worker)
        worker.close()


def _close_all(workers: list[W], owner: int) -> None:
    if os.getpid() == owner:
        for worker in workers:
            worker.close()
    workers.clear()
