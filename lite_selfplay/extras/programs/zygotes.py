"""The library's side of the sandbox: it starts zygotes, hands them jobs, and reads back bytes.

Linux alone: memory files, sealed ones for what goes in, carry everything. A job's files are closed as soon as it has
ended, and no other file is made: whatever ends this process leaves nothing behind.
"""

import contextlib
import fcntl
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from lite_selfplay.errors import LiteSelfPlayError
from lite_selfplay.extras.programs.inside.child import FILES
from lite_selfplay.extras.programs.nouns import LAYERS, Job, Limits, Run, ended

START_SECONDS = 120.0
GRACE_SECONDS = 10.0
"""How long after a job's own deadline a zygote may take to say how it ended."""
POLL_SECONDS = 0.5
MOST_LOST = 2
"""After so many zygotes that died over it, a job is given up."""

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8", "TZ": "UTC0"}
_FIRST_USER = 2_000_000_000


class ZygoteError(LiteSelfPlayError):
    """The processes that run programs cannot be started."""


class SilentZygoteError(ZygoteError):
    """One ended before it could say anything, as one does that is killed."""


@dataclass(eq=False)
class Zygote:
    """A zygote's process. `layers` stand around its programs; `missing` says why others do not.

    `job` is the number of its current job, `files` are that job's, `due` is when it must have answered.
    """

    process: subprocess.Popen[bytes]
    control: socket.socket
    layers: tuple[str, ...]
    missing: Mapping[str, str]
    job: int | None = None
    files: list[int] = field(default_factory=list)
    due: float = 0.0

    @classmethod
    def start(cls, layers: Sequence[str], marks: Sequence[str] = ()) -> Self:
        """Start a zygote and wait until it is ready. `marks`: further arguments of its interpreter."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        uid = _FIRST_USER + secrets.randbelow(100_000_000)
        config = {"layers": list(layers), "control": theirs.fileno(), "uid": uid}
        inside = str(Path(__file__).with_name("inside") / "__main__.py")
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-S", "-s", "-P", "-B", *marks, inside, json.dumps(config)],
                env=_ENVIRONMENT,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        ours.settimeout(START_SECONDS)
        try:
            hello = json.loads(ours.recv(1 << 16) or b"{}")
        except (OSError, ValueError) as error:
            hello = {"missing": {"all": str(error) or type(error).__name__}}
        ours.settimeout(None)
        zygote = cls(process, ours, tuple(hello.get("ready", ())), hello.get("missing", {}))
        if "ready" not in hello or "all" in zygote.missing:
            zygote.close()
            why = zygote.missing.get("all", f"it ended with code {process.returncode}")
            kind = ZygoteError if hello else SilentZygoteError
            raise kind(f"the process that runs programs did not start: {why}")
        return zygote

    def give(self, number: int, job: Job, limits: Limits) -> None:
        """Hand it a job. Raises OSError where it has died."""
        self.job, self.due = number, time.monotonic() + limits.wall + GRACE_SECONDS
        for body in job.bodies:
            inputs = [_sealed(json.dumps(body).encode()), _sealed(job.stdin)]
            self.files += [*inputs, *(os.memfd_create("out", os.MFD_CLOEXEC) for _ in range(FILES - len(inputs)))]
        bounds = {"seconds": limits.seconds, "wall": limits.wall}
        bounds |= {"memory": limits.memory_mb << 20, "output": limits.output_kb << 10}
        header = {"id": number, "kind": job.kind, **bounds}
        socket.send_fds(self.control, [json.dumps(header).encode()], self.files)

    def take(self, limits: Limits) -> Run | None:
        """How its job ended; None where the zygote has ended itself, or talks nonsense."""
        try:
            answer = json.loads(self.control.recv(1 << 16))
            rows = answer["rows"]
        except (OSError, ValueError, LookupError, TypeError):
            return None
        most = limits.output_kb << 10
        written = [os.pread(file, most, 0) for file in self.files]
        stdout, stderr, reply = written[FILES - 3 : FILES]
        if len(rows) > 1:  # what the program itself says comes last: it tells more than that its test found nobody
            stderr += written[2 * FILES - 2]
        return ended(rows, answer["late"], stdout, stderr, reply, limits)

    def done(self) -> None:
        """Forget the job, and close its files."""
        for file in self.files:
            os.close(file)
        self.job, self.files = None, []

    def close(self) -> None:
        """Kill it with everything it started, and wait for it."""
        self.done()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.control.close()


def _sealed(data: bytes) -> int:
    """A file in memory that nobody can change."""
    file = os.memfd_create("in", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    os.lseek(file, 0, os.SEEK_SET)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    return file


class Zygotes:
    """Up to `size` zygotes with the same layers, started at the first job and replaced where they die.

    It may be used from several threads, whose batches take turns. In a forked child it starts zygotes of its own.
    `lost` counts the zygotes that died or hung.
    """

    def __init__(
        self,
        size: int | None = None,
        layers: Sequence[str] = LAYERS,
        *,
        marks: Sequence[str] = (),
    ):
        self.size = size or min(2, os.cpu_count() or 1)
        self.lost = 0
        self._asked, self._marks = tuple(layers), tuple(marks)
        self._zygotes: list[Zygote] = []
        self._lock, self._pid = threading.RLock(), os.getpid()
        # Runs when this object is collected or the interpreter exits, whichever comes first.
        self._cleanup = weakref.finalize(self, _close_all, self._zygotes, self._pid)

    def first(self) -> Zygote:
        """A zygote, started if there is none. Raises ZygoteError."""
        with self._lock:
            self._own_process()
            if not self._zygotes:
                self._zygotes.append(self._start())
            return self._zygotes[0]

    def pids(self) -> list[int]:
        """Process ids of the current zygotes."""
        return [zygote.process.pid for zygote in self._zygotes]

    def run(self, jobs: Sequence[Job], limits: Limits, poll: Callable[[], None] = lambda: None) -> list[Run]:
        """How each job ended, in their order.

        `poll` is called at least every half second; it may raise to stop. Raises ZygoteError where no zygote can be
        started.
        """
        with self._lock:
            self._own_process()
            batch = _Batch(jobs, limits)
            try:
                while batch.open:
                    poll()
                    self._hand_out(batch)
                    self._wait(batch)
            finally:
                # Only an exception, such as Ctrl-C, leaves one busy; its late answer must not meet the next batch.
                for zygote in [each for each in self._zygotes if each.job is not None]:
                    self._drop(zygote)
            return [run or Run("error", "it was not run") for run in batch.runs]

    def close(self) -> None:
        """End all zygotes; the next job starts them again."""
        with self._lock:
            self._own_process()
            _close_all(self._zygotes, self._pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _own_process(self) -> None:
        """A fork has copies of sockets and no children: it lets go of the first, and starts anew."""
        if os.getpid() != self._pid:
            for zygote in self._zygotes:
                zygote.control.close()
            self._zygotes.clear()
            self._pid = os.getpid()
            self._cleanup.detach()
            self._cleanup = weakref.finalize(self, _close_all, self._zygotes, self._pid)

    def _start(self) -> Zygote:
        """A new zygote; one that was killed before it was ready is started again, once."""
        try:
            return Zygote.start(self._asked, self._marks)
        except SilentZygoteError:
            self.lost += 1
            return Zygote.start(self._asked, self._marks)

    def _hand_out(self, batch: "_Batch") -> None:
        while len(self._zygotes) < self.size and sum(z.job is None for z in self._zygotes) < len(batch.waiting):
            self._zygotes.append(self._start())
        for zygote in [each for each in self._zygotes if each.job is None]:
            number = batch.next()
            if number is None:
                return
            try:
                zygote.give(number, batch.jobs[number], batch.limits)
            except OSError:  # it died while it waited: killed for memory, say
                self._lose(zygote, batch)

    def _wait(self, batch: "_Batch") -> None:
        busy = [zygote for zygote in self._zygotes if zygote.job is not None]
        if not busy:
            return
        with selectors.DefaultSelector() as selector:
            for zygote in busy:
                selector.register(zygote.control, selectors.EVENT_READ, zygote)
            due = min(zygote.due for zygote in busy) - time.monotonic()
            ready = [key.data for key, _ in selector.select(min(POLL_SECONDS, max(0.0, due)))]
        for zygote in busy:
            if zygote in ready:
                run = zygote.take(batch.limits)
                if run is None:
                    self._lose(zygote, batch)
                else:
                    batch.finish(zygote.job, run)
                    zygote.done()
            elif time.monotonic() > zygote.due:  # it hangs, or was stopped
                self._lose(zygote, batch)

    def _lose(self, zygote: Zygote, batch: "_Batch") -> None:
        self.lost += 1
        batch.lose(zygote.job)
        self._drop(zygote)

    def _drop(self, zygote: Zygote) -> None:
        self._zygotes.remove(zygote)
        zygote.close()


class _Batch:
    """Jobs in progress."""

    def __init__(self, jobs: Sequence[Job], limits: Limits):
        self.jobs, self.limits = jobs, limits
        self.runs: list[Run | None] = [None] * len(jobs)
        self.waiting = deque(range(len(jobs)))
        self._losses: dict[int, int] = {}
        self._late: set[int] = set()

    @property
    def open(self) -> bool:
        return any(run is None for run in self.runs)

    def next(self) -> int | None:
        """The next job to run; the rest of a program that ran out of time is not run."""
        while self.waiting:
            number = self.waiting.popleft()
            if self.jobs[number].program not in self._late:
                return number
            self.runs[number] = Run("time", "it ran out of time in a test before this one")
        return None

    def finish(self, number: int | None, run: Run) -> None:
        assert number is not None
        self.runs[number] = run
        if run.reason == "time":
            self._late.add(self.jobs[number].program)

    def lose(self, number: int | None) -> None:
        assert number is not None
        self._losses[number] = self._losses.get(number, 0) + 1
        if self._losses[number] < MOST_LOST:
            self.waiting.appendleft(number)
        else:
            self.runs[number] = Run("memory", "the process over it was killed, as happens where memory runs out")


def _close_all(zygotes: list[Zygote], owner: int) -> None:
    if os.getpid() == owner:
        for zygote in zygotes:
            zygote.close()
    zygotes.clear()
