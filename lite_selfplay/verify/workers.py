"""Processes that do jobs which may loop, crash or use up memory: started when needed, supervised, and replaced.

No signal or thread stops such a job reliably. So it is done in a separate process, in a session of its own, which is
killed with its whole group. It is started as a plain program, not forked, so that notebooks and scripts without a main
guard work.
"""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import threading
import weakref
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

from lite_selfplay.verify.programs.inside.clock import TICK_SECONDS, Clock

MOST_LOST = 2
"""After so many workers that died over it, a job is given up."""


@dataclass(eq=False)
class Worker:
    """A process, and the socket to it, which can be read once it has answered or ended.

    `job` is the number of its current job; once `clock` is over it must have answered, or be `ready`.
    """

    process: subprocess.Popen[bytes]
    control: socket.socket
    ready: bool = True
    job: int | None = None
    clock: Clock = field(default_factory=lambda: Clock((), 0.0))

    def done(self) -> None:
        """Forget the job."""
        self.job = None

    def close(self) -> None:
        """Kill it with everything it started, and wait for it."""
        self.done()
        if self.process.returncode is None:  # not waited for yet: the number cannot be another's
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.control.close()


W = TypeVar("W", bound=Worker)
J = TypeVar("J")
R = TypeVar("R")


@dataclass
class _Batch(Generic[J, R]):
    """Jobs in progress: results, those that wait, those to be done again `alone`, and how often one was lost."""

    jobs: Sequence[J]
    waiting: deque[int]
    results: dict[int, R] = field(default_factory=dict)
    losses: Counter[int] = field(default_factory=Counter)
    alone: list[int] = field(default_factory=list)


class Workers(ABC, Generic[W, J, R]):
    """Up to `size` workers (by default 2, or 1 on a machine with one core), started at the first job and kept.

    They may be used from several threads, whose batches take turns, and a forked process starts its own. After `close`
    the next job starts new ones.
    """

    late: R | None = None
    """What a job comes to that is past its deadline; None: its worker is lost, and another one tries."""
    given_up: R
    """What a job comes to over which too many workers were lost."""
    not_judged: R
    """The result of a job that the busy machine gave no time, not even alone."""

    def __init__(self, size: int | None):
        self.size = size or min(2, os.cpu_count() or 1)
        self._workers: list[W] = []
        self._lock = threading.RLock()
        self._belong()

    @abstractmethod
    def _start(self) -> W:
        """A new worker. One that is not yet ready has a clock that says when it has to be."""

    @abstractmethod
    def _give(self, worker: W, job: J) -> float:
        """Hand over a job, and say how many seconds it may take. Raises OSError where the worker has died."""

    @abstractmethod
    def _take(self, worker: W, job: J) -> R | None:
        """What came of the job; None where the worker has ended itself, or talks nonsense."""

    def _answered(self, worker: W) -> bool:
        """Whether an answer can be taken, now that its socket can be read."""
        return True

    def _greet(self, worker: W, late: bool) -> None:
        """Look at a worker that is not ready, and has said something or is late. Raises where it cannot be used."""

    def _known(self, job: J) -> R | None:
        """What a job comes to that need not be done."""
        return None

    def pids(self) -> list[int]:
        """Process ids of the current workers."""
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """End all workers and wait for them."""
        with self._lock:
            self._own_process()
            _close_all(self._workers, self._pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def work(self, jobs: Sequence[J], poll: Callable[[], None]) -> list[R]:
        """What came of each job, in their order. `poll` is called at least every half second; it may raise to stop."""
        with self._lock:
            self._own_process()
            batch = _Batch[J, R](jobs, deque(range(len(jobs))))
            try:
                while len(batch.results) < len(jobs):
                    poll()
                    self._hand_out(batch)
                    self._wait(batch)
            finally:
                # Only an exception, such as Ctrl-C, leaves one busy; its late answer must not meet the next batch.
                for worker in [each for each in self._workers if each.job is not None]:
                    self._drop(worker)
            return [batch.results[number] for number in range(len(jobs))]

    def _belong(self) -> None:
        """Be this process's: its workers end when this object is collected or the interpreter exits."""
        self._pid = os.getpid()
        self._cleanup = weakref.finalize(self, _close_all, self._workers, self._pid)

    def _own_process(self) -> None:
        """A fork has copies of sockets and no children: it lets go of the first, and starts anew."""
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
                except OSError:  # it died while it waited: killed for memory, say
                    self._lose(worker, batch, number)
                    break

    def _wait(self, batch: _Batch[J, R]) -> None:
        """Hear those that have something to say, and look at the clock for the others."""
        pending = [worker for worker in self._workers if worker.job is not None or not worker.ready]
        if not pending:
            return
        with selectors.DefaultSelector() as selector:
            for worker in pending:
                selector.register(worker.control, selectors.EVENT_READ, worker)
            heard = [key.data for key, _ in selector.select(TICK_SECONDS)]
        for worker in pending:
            late = worker not in heard and worker.clock.look()
            if not late and (worker not in heard or not self._answered(worker)):
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
