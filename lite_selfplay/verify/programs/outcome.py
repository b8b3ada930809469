"""From how processes ended to a reason. All of it tells why a program failed; none of it that a program is right."""

import os
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from lite_selfplay.verify.programs.nouns import Limits, Reason, Run

_MOST_DETAIL = 300
_FORBIDDEN = re.compile(
    r"PermissionError|Operation not permitted|Permission denied|can't start new thread|BlockingIOError"
)


def ended(
    rows: Sequence[Mapping[str, Any]],
    late: bool,
    stdout: bytes,
    stderr: bytes,
    reply: bytes,
    limits: Limits,
) -> Run:
    """A job's run. `rows` say of each of its processes how it ended; that of the program comes last."""
    seconds = max(row["cpu"] for row in rows)
    memory = max(row["memory"] for row in rows) / 2**20
    reason, detail = _reason(rows, late, stdout, stderr, limits)
    return Run(reason, detail, stdout, stderr, reply, seconds, memory)


def _reason(
    rows: Sequence[Mapping[str, Any]], late: bool, stdout: bytes, stderr: bytes, limits: Limits
) -> tuple[Reason, str]:
    signals = {os.WTERMSIG(row["status"]) for row in rows if os.WIFSIGNALED(row["status"])}
    spent = any(row["cpu"] >= limits.seconds / 2 for row in rows)  # two clocks, which disagree on a busy machine
    last = _last_line(stderr)
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


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip()[:_MOST_DETAIL] if lines else ""
