"""The library's side of the sandbox: it starts zygotes, sends them jobs, and reads back bytes.

A zygote is a clean interpreter that forks a confined process for each program. Linux only: all data are in memory
files, and input files are sealed. A job's files are closed when it ends, and there are no others, so nothing is left
behind even if this process is killed.
"""

import contextlib
import fcntl
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from lite_selfplay.errors import LiteSelfPlayError
from lite_selfplay.verify.programs.inside.clock import PATIENCE
from lite_selfplay.verify.programs.inside.roles import CHANNEL, JOB, STDERR, STDOUT
from lite_selfplay.verify.programs.nouns import LAYERS, Job, Limits, ProgramRun, ended
from lite_selfplay.verify.workers import Worker, Workers

START_SECONDS = 120.0
GRACE_SECONDS = 10.0  # after a job's deadline, in which a zygote must report how it ended

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC0",
}
_FIRST_USER = 2_000_000_000


class ZygoteError(LiteSelfPlayError):
    """The processes that run programs cannot be started."""


@dataclass(eq=False)
class Zygote(Worker):
    """A zygote's process. `layers` confine its programs; `missing` says why others do not. `files` are those of its
    job."""

    layers: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    files: list[int] = field(default_factory=list)

    @classmethod
    def start(cls, layers: Sequence[str], marks: Sequence[str] = (), folders: Sequence[str] = ()) -> Self:
        """Start a zygote and wait until it is ready. `marks`: further arguments of its interpreter. `folders`: where it
        finds packages."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = {
            "layers": list(layers),
            "control": theirs.fileno(),
            "uid": _FIRST_USER + secrets.randbelow(100_000_000),
            "folders": list(folders),
        }
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
        zygote = cls(process, ours, layers=tuple(hello.get("ready", ())), missing=hello.get("missing", {}))
        if "ready" not in hello or "all" in zygote.missing:
            zygote.close()
            why = zygote.missing.get("all", f"it ended with code {process.returncode}")
            raise ZygoteError(f"the process that runs programs did not start: {why}")
        return zygote

    def done(self) -> None:
        """Forget the job, and close its files."""
        for file in self.files:
            os.close(file)
        self.job, self.files = None, []


def _sealed(data: bytes) -> int:
    """A file in memory with this content, sealed against changes."""
    file = os.memfd_create("in", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(file, "wb", closefd=False) as stream:
        stream.write(data)
    os.lseek(file, 0, os.SEEK_SET)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    return file


class Zygotes(Workers[Zygote, Job, ProgramRun]):
    """Up to `size` zygotes with the same layers."""

    given_up = ProgramRun("memory", "its parent process was killed, probably because memory ran out")
    not_judged = ProgramRun("not_judged", "the machine was too busy to run it")

    def __init__(
        self,
        size: int | None = None,
        layers: Sequence[str] = LAYERS,
        *,
        marks: Sequence[str] = (),
        folders: Sequence[str] = (),
    ):
        super().__init__(size)
        self._asked = (tuple(layers), tuple(marks), tuple(folders))
        self._limits = Limits()
        self._spent: set[int] = set()

    def first(self) -> Zygote:
        """A zygote, started if there is none. Raises ZygoteError."""
        with self._lock:
            self._own_process()
            if not self._workers:
                self._workers.append(self._start())
            return self._workers[0]

    def run(self, jobs: Sequence[Job], limits: Limits, poll: Callable[[], None] = lambda: None) -> list[ProgramRun]:
        """How each job ended, in their order. After a program ran out of time, its other jobs are not run. `poll` is
        called at least every half second; it may raise to stop. Raises ZygoteError if no zygote can be started."""
        with self._lock:
            self._limits, self._spent = limits, set()
            return self.work(jobs, poll)

    def _start(self) -> Zygote:
        """A new zygote; one that did not start, for example because it was killed, is started again, once."""
        with contextlib.suppress(ZygoteError):
            return Zygote.start(*self._asked)
        return Zygote.start(*self._asked)

    def _known(self, job: Job) -> ProgramRun | None:
        return ProgramRun("time", "it ran out of time in an earlier test") if job.program in self._spent else None

    def _give(self, worker: Zygote, job: Job) -> float:
        limits = self._limits
        for body in job.bodies:  # the files of each process, in the order of their descriptors
            outputs = (os.memfd_create("out", os.MFD_CLOEXEC) for _ in range(STDOUT, JOB))
            worker.files += [_sealed(job.stdin), *outputs, _sealed(json.dumps(body).encode())]
        header = {
            "kind": job.kind,
            "seconds": limits.seconds,
            "wall": limits.wall,
            "memory": limits.memory_mb << 20,
            "output": limits.output_kb << 10,
        }
        socket.send_fds(worker.control, [json.dumps(header).encode()], worker.files)
        return PATIENCE * limits.wall + GRACE_SECONDS

    def _take(self, worker: Zygote, job: Job) -> ProgramRun | None:
        try:
            answer = json.loads(worker.control.recv(1 << 16))
            rows = answer["rows"]
        except (OSError, ValueError, LookupError, TypeError):
            return None
        written = [os.pread(file, self._limits.output_kb << 10, 0) for file in worker.files]
        stdout, stderr, reply = written[STDOUT:JOB]
        if len(rows) > 1:  # the program's own error comes last: it is more useful than its test's
            stderr += written[CHANNEL + STDERR]
        run = ended(rows, answer["late"], stdout, stderr, reply, self._limits)
        if run.reason == "time" and not answer["starved"]:
            self._spent.add(job.program)
        return self.not_judged if answer["starved"] else run
