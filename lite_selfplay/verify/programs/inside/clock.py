"""A clock that counts only the time in which processes could run, so that verdicts do not depend on machine load."""

import contextlib
import os
import time
from collections.abc import Sequence

# How often a clock is polled. If more time passes between two polls, the polling process was suspended for the rest.
TICK_SECONDS = 0.1
# A clock runs out after this many times its seconds at the latest, even if the processes got less time.
PATIENCE = 40
# An open descriptor of /proc, which still works under another root and in another namespace.
_PROCESSES = os.open("/proc", os.O_RDONLY) if os.path.isdir("/proc") else -1


def _read(path: str) -> str:
    with open(path, opener=lambda name, flags: os.open(name, flags, dir_fd=_PROCESSES)) as file:
        return file.read()


def figures(pids: Sequence[int]) -> tuple[float, float, float, bool]:
    """(the time, the seconds for which all threads of the processes ran, the seconds for which they waited for a CPU
    (the kernel's run delay), whether one is runnable or waits for memory). Zeros if the kernel does not tell."""
    ran, waited, states = 0, 0, ""
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError, StopIteration):
        for pid in pids:
            with open(os.pidfd_open(pid), "rb", 0) as handle:  # its id may differ in the namespace of /proc
                tasks = f"{_read(f'self/fdinfo/{handle.fileno()}').split('Pid:')[1].split()[0]}/task"
            for name in next(os.fwalk(tasks, dir_fd=_PROCESSES))[1]:
                states += _read(f"{tasks}/{name}/stat").rpartition(")")[2].split()[0]
                spent = [int(figure) for figure in _read(f"{tasks}/{name}/schedstat").split()]
                ran, waited = ran + spent[0], waited + spent[1]
    return time.monotonic(), ran / 1e9, waited / 1e9, "R" in states or "D" in states


class Clock:
    """Counts the seconds that processes could have `used`, and those in which the caller of `poll` was `alive`.

    Time in which the processes waited for a CPU or for memory does not count, nor does time in which the caller was
    suspended. Sleeping and other waiting does count. Without the kernel's figures (macOS, some containers) all time
    counts in which the caller was alive.
    """

    def __init__(self, pids: Sequence[int], seconds: float):
        self.seconds, self.used, self.alive = seconds, 0.0, 0.0
        self._waited, self._unsettled = 0.0, 0.0
        self._pids, self._seen = pids, figures(pids)

    def poll(self) -> bool:
        """Count the time since the last call. True if the processes have used their seconds, or the machine is too busy
        to let them.

        The kernel reports a wait only after it has ended. So while a process is runnable, only the seconds in which it
        ran count; the others are settled at the next call that finds it asleep.
        """
        (then, ran, waited, _), self._seen = self._seen, figures(self._pids)
        now, ran_now, waited_now, willing = self._seen
        passed = max(now - then, 1e-9)
        alive, run_for = min(passed, TICK_SECONDS), max(0.0, min(passed, ran_now - ran))
        settled = max(0.0, waited_now - waited) * alive / passed
        self._unsettled = 0.0 if settled else self._unsettled + alive * (willing and not run_for)
        self.alive, self.used, self._waited = self.alive + alive, self.used + run_for, self._waited + settled
        if not willing:
            self._waited, self._unsettled = self._waited + self._unsettled, 0.0
            self.used = max(self.used, self.alive - self._waited)
        return self.used >= self.seconds or self.alive >= PATIENCE * self.seconds
