"""A clock that counts the time in which processes could run, so that no verdict depends on the machine's load."""

import contextlib
import functools
import os
import time
from collections.abc import Sequence

TICK_SECONDS = 0.1
"""How often a clock is looked at. If more passes between two looks, the process that looks stood still for the rest."""

PATIENCE = 20
"""A clock is over after so many times its seconds, even if the machine's load left the processes less."""


@functools.cache
def _all_processes() -> int:
    """The folder of all processes: kept open, it can be read under another root and from another namespace."""
    return os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)


def _read(path: str) -> str:
    with open(path, opener=lambda name, flags: os.open(name, flags, dir_fd=_all_processes())) as file:
        return file.read()


def _figures(pids: Sequence[int]) -> tuple[float, float, float, bool]:
    """The time, the seconds for which all threads of the processes ran and for which they waited for a processor (the
    kernel's run delay), and whether one of them would run now or waits for memory; zeros where the kernel does not say.
    """
    ran, waited, states = 0, 0, ""
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError, StopIteration):
        for pid in pids:
            with open(os.pidfd_open(pid), "rb", 0) as handle:  # the number may be another one in the folder's namespace
                place = f"{_read(f'self/fdinfo/{handle.fileno()}').split('Pid:')[1].split()[0]}/task"
            for name in next(os.fwalk(place, dir_fd=_all_processes()))[1]:
                states += _read(f"{place}/{name}/stat").rpartition(")")[2].split()[0]
                one_ran, one_waited, _ = map(int, _read(f"{place}/{name}/schedstat").split())
                ran, waited = ran + one_ran, waited + one_waited
    return time.monotonic(), ran / 1e9, waited / 1e9, "R" in states or "D" in states


class Clock:
    """Counts the seconds that processes could have `used`, and those for which the caller of `look` was `alive`.

    Time in which the processes waited for a processor or for memory is not theirs, nor is time in which the caller
    stood still. A process that sleeps, or waits for anything else, uses its time. Without the kernel's figures (macOS,
    some containers) all seconds count in which the caller was alive.
    """

    def __init__(self, pids: Sequence[int], seconds: float):
        self.seconds, self.used, self.alive, self._floor = seconds, 0.0, 0.0, 0.0
        self._pids, self._seen = pids, _figures(pids)

    @property
    def over(self) -> bool:
        """Whether the processes have used their seconds, or the machine is too busy to let them."""
        return self.used >= self.seconds or self.alive >= PATIENCE * self.seconds

    @property
    def starved(self) -> bool:
        """Whether it is over though the processes have not used their seconds."""
        return self.over and self.used < self.seconds

    def look(self) -> None:
        """Count the time since the last look."""
        then, self._seen = self._seen, _figures(self._pids)
        passed, ran, waited = (new - old for new, old in zip(self._seen[:3], then[:3], strict=True))
        self.count(passed, ran, waited, self._seen[3])

    def count(self, passed: float, ran: float, waited: float, willing: bool) -> None:
        """Count `passed` seconds, in which the processes ran and `waited` for so long; `willing`: one would run now.

        The kernel tells of a wait when it is over, so that it may reach back to the last one that was told of.
        """
        alive = min(passed, TICK_SECONDS)
        waited = max(0.0, waited, alive if willing and ran <= 0 else 0.0)
        self.alive += alive
        self.used = max(self._floor, self.used + alive - waited)
        self._floor = self.used if waited else self._floor
