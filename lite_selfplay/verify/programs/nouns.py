"""Data types for running programs: limits, jobs of the sandbox, the end of a run, the report of tests.

`ended` derives why a run failed from how its processes ended. This never proves that a program is right.
"""

import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lite_selfplay.errors import ConfigError, RequestError

KIND = "program"  # of problems whose answer is a program
LAYERS = ("seccomp", "landlock", "namespaces", "chroot", "uid")  # around a program; only the first is indispensable

Reason = Literal[
    "", "wrong_answer", "time", "memory", "output", "syntax", "forbidden", "error", "no_program", "not_judged"
]
"""Why a program did not pass; empty if it did.

`wrong_answer`: it ended with another result. `time`, `memory`, `output`: it exceeded a limit. `syntax`: it is not valid
Python. `forbidden`: it tried something that a confined program may not do. `error`: it raised another error, or ended
with a code other than 0. `no_program`: there was none to run. `not_judged`: it got no CPU time on a busy machine.
"""

_FORBIDDEN = re.compile(
    r"PermissionError|Operation not permitted|Permission denied|can't start new thread|BlockingIOError"
)


class SandboxError(RequestError):
    """Programs cannot be run safely here."""


@dataclass(frozen=True)
class Limits:
    """Limits of one run of a program.

    `seconds`: CPU time, rounded up by the kernel; wall-clock time may be twice as long, not counting time in which the
    machine was busy with other processes. `memory_mb`: address space in MiB, of which the interpreter takes 30.
    `output_kb`: output in KiB. Raises ConfigError for a number out of its range.
    """

    seconds: float = 5.0
    memory_mb: int = 512
    output_kb: int = 1024

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("seconds", self.seconds, 0.1, 3600),
            ("memory_mb", self.memory_mb, 64, 1 << 20),
            ("output_kb", self.output_kb, 1, 1 << 20),
        ):
            if not low <= value <= high:
                raise ConfigError(f"a program's {name} must be from {low} to {high}, got {value}")

    @property
    def wall(self) -> float:
        """The limit of wall-clock seconds, as `inside.clock` counts them."""
        return 2 * self.seconds


@dataclass(frozen=True)
class ProgramRun:
    """How a program's run ended.

    `reason` is empty if the program ended by itself; its output may still be wrong. `detail` is a line for people.
    `seconds` are of CPU time, `memory_mb` is its peak memory in MiB. `reply` has the results of calls and tests.
    The texts are not trusted: the program may have written them.
    """

    reason: Reason
    detail: str = ""
    stdout: bytes = b""
    stderr: bytes = b""
    reply: bytes = b""
    seconds: float = 0.0
    memory_mb: float = 0.0

    @property
    def text(self) -> str:
        """Its stdout as text."""
        return self.stdout.decode("utf-8", "replace")


@dataclass(frozen=True)
class Job:
    """A job of a sandbox.

    `kind`: a whole program (`stdio`), calls of one of its functions (`call`), or assertions in a separate process
    (`check`). `bodies` has the JSON input of each of its processes. `program` is the number of the program that it
    belongs to: after a program has run out of time in one job, its other jobs are not run. `packages`: whether its
    processes may import those of `inside.names.SERVED`.
    """

    kind: Literal["stdio", "call", "check"]
    bodies: Sequence[Mapping[str, Any]]
    stdin: bytes = b""
    program: int = 0
    packages: bool = False


@dataclass(frozen=True)
class Report:
    """The results of a program's tests. `results[i]` says whether it passed test i.

    `reason` is empty if it passed all, else the reason of its first failure; `detail` says more, for people. `seconds`
    is the CPU time of all runs.
    """

    results: tuple[bool, ...]
    reason: Reason = ""
    detail: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> int:
        """The number of passed tests."""
        return sum(self.results)

    @property
    def total(self) -> int:
        """The number of tests."""
        return len(self.results)

    @property
    def score(self) -> float:
        """The share of passed tests, exactly 1 if it passed all."""
        return self.passed / self.total if self.total else 0.0


def ended(
    rows: Sequence[Mapping[str, Any]], late: bool, stdout: bytes, stderr: bytes, reply: bytes, limits: Limits
) -> ProgramRun:
    """A job's run. `rows` say how each of its processes ended; the program's own is the last."""
    signals = {os.WTERMSIG(row["status"]) for row in rows if os.WIFSIGNALED(row["status"])}
    spent = any(row["cpu"] >= limits.seconds / 2 for row in rows)  # two clocks, which disagree on a busy machine
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    last = lines[-1].strip()[:300] if lines else ""
    # The first is the test's process, or the program's own: the others are killed after it.
    code, killed = os.WEXITSTATUS(rows[0]["status"]), os.WTERMSIG(rows[0]["status"])
    names = {each.value: each.name for each in signal.Signals}
    wrong = re.match(r"(SyntaxError|IndentationError|TabError)\b", last) and b'File "program.py"' in stderr
    reasons: list[tuple[object, Reason, str]] = [
        (late, "time", f"more than {limits.wall:g} s of wall-clock time"),
        (signal.SIGXCPU in signals, "time", f"more than {limits.seconds:g} s of CPU time"),
        (signal.SIGKILL in signals and spent, "time", f"more than {limits.seconds:g} s of CPU time"),
        (len(stdout) >= limits.output_kb << 10, "output", f"more than {limits.output_kb} KiB of output"),
        ("File too large" in last, "output", f"more than {limits.output_kb} KiB of output"),
        (last.startswith("MemoryError"), "memory", f"more than {limits.memory_mb} MiB of memory"),
        (signal.SIGSYS in signals, "forbidden", "a system call that no program needs"),
        (killed == signal.SIGKILL, "memory", "it was killed, probably because memory ran out"),
        (killed, "error", f"it was ended by {names.get(killed, f'signal {killed}')}"),
        (code == 0, "", ""),
        (wrong, "syntax", last),
        (_FORBIDDEN.search(last), "forbidden", last),
        (True, "error", last or f"exit code {code}"),
    ]
    reason, detail = next((reason, detail) for holds, reason, detail in reasons if holds)
    seconds, memory = (max(row[what] for row in rows) for what in ("cpu", "memory"))
    return ProgramRun(reason, detail, stdout, stderr, reply, seconds, memory / 2**20)
