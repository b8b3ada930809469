"""The nouns of running programs: what one may use, what is asked of the sandbox, how a run ended, how tests went.

`ended` finds the reason in how processes ended. It tells why a program failed, never that one is right.
"""

import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lite_selfplay.errors import ConfigError, RequestError

KIND = "program"
"""The kind of problems whose answer is a program."""

LAYERS = ("seccomp", "landlock", "namespaces", "chroot", "uid")
"""The layers around a program, by name; the first is the one that no other replaces."""

Reason = Literal[
    "", "wrong_answer", "time", "memory", "output", "syntax", "forbidden", "error", "no_program", "not_judged"
]
"""Why a program did not pass; empty where it did.

`wrong_answer`: it ended with another result. `time`, `memory`, `output`: it went over a limit. `syntax`: Python cannot
read it. `forbidden`: it asked for what a confined program may not do. `error`: it raised anything else, or ended with a
code other than 0. `no_program`: there was none to run. `not_judged`: the machine gave it no time.
"""

_MOST_DETAIL = 300
_FORBIDDEN = re.compile(
    r"PermissionError|Operation not permitted|Permission denied|can't start new thread|BlockingIOError"
)


class SandboxError(RequestError):
    """Programs cannot be run safely here."""


@dataclass(frozen=True)
class Limits:
    """What one run of a program may use.

    `seconds` of the processor, of which the kernel counts whole ones, and twice as many by the clock, without the time
    in which the machine was busy with others; `memory_mb` of address space in MiB, 30 of which the interpreter takes;
    `output_kb` of what it writes, in KiB. Raises ConfigError for a number out of its range.
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
        """The seconds that it may take by `inside.clock`."""
        return 2 * self.seconds


@dataclass(frozen=True)
class ProgramRun:
    """How a program's run ended.

    `reason` is empty where the program ran to its end by itself; what it then wrote may still be wrong. `detail` is a
    line for people. `seconds` are of the processor, `memory_mb` the most that it held, in MiB. `reply` is what a role
    wrote beside its output. None of it is to be believed: the program wrote it.
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
        """What it wrote to stdout, as text."""
        return self.stdout.decode("utf-8", "replace")


@dataclass(frozen=True)
class Job:
    """What a sandbox is asked to run.

    `kind`: a whole program (`stdio`), calls of one of its functions (`call`), or assertions in a process beside it
    (`check`). `bodies` is what each of its processes reads, as JSON. `program` numbers the program that it is a part
    of: once a program has run out of time in one job, its other jobs are not run.
    """

    kind: Literal["stdio", "call", "check"]
    bodies: Sequence[Mapping[str, Any]]
    stdin: bytes = b""
    program: int = 0


@dataclass(frozen=True)
class Report:
    """How a program did. `results[i]` says whether it passed test i.

    `reason` is empty where it passed all, else why it failed the first that it failed; `detail` says more, for people.
    `seconds` of the processor are the sum over its runs.
    """

    results: tuple[bool, ...]
    reason: Reason = ""
    detail: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> int:
        """How many tests it passed."""
        return sum(self.results)

    @property
    def total(self) -> int:
        """How many tests there are."""
        return len(self.results)

    @property
    def score(self) -> float:
        """The share of tests that it passed, 1 exactly where all."""
        return self.passed / self.total if self.total else 0.0


def ended(
    rows: Sequence[Mapping[str, Any]],
    late: bool,
    stdout: bytes,
    stderr: bytes,
    reply: bytes,
    limits: Limits,
) -> ProgramRun:
    """A job's run. `rows` say of each of its processes how it ended; that of the program comes last."""
    seconds = max(row["cpu"] for row in rows)
    memory = max(row["memory"] for row in rows) / 2**20
    reason, detail = _reason(rows, late, stdout, stderr, limits)
    return ProgramRun(reason, detail, stdout, stderr, reply, seconds, memory)


def _reason(
    rows: Sequence[Mapping[str, Any]], late: bool, stdout: bytes, stderr: bytes, limits: Limits
) -> tuple[Reason, str]:
    signals = {os.WTERMSIG(row["status"]) for row in rows if os.WIFSIGNALED(row["status"])}
    spent = any(row["cpu"] >= limits.seconds / 2 for row in rows)  # two clocks, which disagree on a busy machine
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    last = lines[-1].strip()[:_MOST_DETAIL] if lines else ""
    if late:
        return "time", f"more than {limits.wall:g} s by the clock"
    if signal.SIGXCPU in signals or (signal.SIGKILL in signals and spent):
        return "time", f"more than {limits.seconds:g} s of the processor"
    if len(stdout) >= limits.output_kb << 10 or "File too large" in last:
        return "output", f"more than {limits.output_kb} KiB of output"
    if last.startswith("MemoryError"):
        return "memory", f"more than {limits.memory_mb} MiB of memory"
    if signal.SIGSYS in signals:
        return "forbidden", "a system call that no program needs"
    first = rows[0]["status"]  # of a test's process, or the program's own: the others are killed after it
    if os.WIFSIGNALED(first):
        number = os.WTERMSIG(first)
        if number == signal.SIGKILL:
            return "memory", "it was killed, as happens where memory runs out"
        known = {each.value: each.name for each in signal.Signals}
        return "error", f"it was ended by {known.get(number, f'signal {number}')}"
    if os.WEXITSTATUS(first) == 0:
        return "", ""
    if re.match(r"(SyntaxError|IndentationError|TabError)\b", last) and b'File "program.py"' in stderr:
        return "syntax", last
    return ("forbidden" if _FORBIDDEN.search(last) else "error"), last or f"exit code {os.WEXITSTATUS(first)}"
