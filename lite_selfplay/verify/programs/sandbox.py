"""Which way programs are run on this machine, and the one sandbox that a process shares.

1. `kernel`: zygotes on Linux. Seccomp is required; namespaces, an empty root, another user and Landlock are added
   where a trial succeeds.
2. `none`: where the first cannot be had, nothing is run, and `SandboxError` says why. With `unsafe_code` programs then
   run in the same processes with whatever layers there are, perhaps none but limits.
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lite_selfplay.errors import RequestError
from lite_selfplay.verify.programs.nouns import Job, Limits, Run

LAYERS = ("seccomp", "landlock", "namespaces", "chroot", "uid")
"""The layers around a program, by name; the first is the one that no other replaces."""


class SandboxError(RequestError):
    """Programs cannot be run safely here."""


@dataclass(frozen=True)
class Sandbox:
    """A way to run programs that holds.

    `tier` is `kernel` or `unsafe`; `layers` stand around each program, `missing` says why others do not; `tried` is
    what a canary tried in vain.
    """

    tier: str
    layers: tuple[str, ...]
    missing: dict[str, str]
    tried: tuple[str, ...]
    _runner: Any = field(repr=False)

    def run(self, jobs: Sequence[Job], limits: Limits, poll: Callable[[], None] = lambda: None) -> list[Run]:
        """How each job ended: see `zygotes.Zygotes.run`."""
        runs: list[Run] = self._runner.run(jobs, limits, poll)
        return runs

    def pids(self) -> list[int]:
        """The processes that start programs."""
        pids: list[int] = self._runner.pids()
        return pids

    def close(self) -> None:
        """End its processes; the next program starts them again."""
        self._runner.close()

    def sentence(self) -> str:
        """What it is, for people."""
        around = f"each program is confined by {', '.join(self.layers) or 'limits alone'}"
        without = "; ".join(f"no {name}: {why}" for name, why in self.missing.items())
        seen = f"; a canary tried in vain: {', '.join(self.tried)}" if self.tried else ""
        return f"{self.tier}, {around}{f' ({without})' if without else ''}{seen}"


def open_sandbox(
    *, size: int | None = None, unsafe_code: bool = False, layers: Sequence[str] = LAYERS, marks: Sequence[str] = ()
) -> Sandbox:
    """A sandbox of this process's own with `size` processes (by default 2, or 1 on a machine with one core).

    It is probed before it is given out. `layers` are asked for; `marks` are further arguments of its interpreters.
    Raises SandboxError where it does not hold, unless `unsafe_code`.
    """
    if not sys.platform.startswith("linux"):
        raise SandboxError(
            f"programs that a model wrote are run on Linux alone, and this is {sys.platform}: use Linux, a container "
            "or WSL 2. --unsafe-code does not help here"
        )
    from lite_selfplay.verify.programs.probe import Probe, probe
    from lite_selfplay.verify.programs.zygotes import ZygoteError, Zygotes

    runner = Zygotes(size, layers, marks=marks)
    try:
        first = runner.first()
        found, missing = first.layers, dict(first.missing)
        if unsafe_code and "seccomp" not in found:
            return Sandbox("unsafe", found, missing, (), runner)
        if "seccomp" not in found:
            seen = Probe(problem=f"this kernel gives it no seccomp filter ({missing.get('seccomp', 'not asked for')})")
        else:
            seen = probe(runner)
    except ZygoteError as error:
        seen, found, missing = Probe(problem=str(error)), (), {}
    if seen.problem and not unsafe_code:
        runner.close()
        raise SandboxError(
            f"programs that a model wrote cannot be run safely here: {seen.problem}. Where nothing on this machine can "
            "be lost, --unsafe-code runs them without that protection"
        )
    tier = "unsafe" if seen.problem else "kernel"
    in_order = tuple(name for name in LAYERS if name in found)
    return Sandbox(tier, in_order, missing, seen.tried, runner)


_lock = threading.Lock()
_shared: dict[bool, tuple[int, Sandbox]] = {}


def shared_sandbox(*, unsafe_code: bool = False) -> Sandbox:
    """The sandbox of this process, opened and probed at its first use. Raises SandboxError: see `open_sandbox`."""
    with _lock:
        pid, sandbox = _shared.get(unsafe_code, (0, None))
        if sandbox is None or pid != os.getpid():
            sandbox = open_sandbox(unsafe_code=unsafe_code)
            _shared[unsafe_code] = os.getpid(), sandbox
        return sandbox


def close_sandbox() -> None:
    """End the processes of the shared sandbox, if there are any. The next program starts them again."""
    with _lock:
        for pid, sandbox in _shared.values():
            if pid == os.getpid():
                sandbox.close()


atexit.register(close_sandbox)
