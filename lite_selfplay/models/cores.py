"""The cores that a process may use, who works on them, and how a base's threads share them with other processes.

The threads of a product of matrices wait for the last of them. Where another process has one of two cores for half of
the time, both threads lose that half. Two threads on one core lose nothing: while one waits, the other works. So as
long as other processes need about half of the cores, the threads keep to the other half (`Sharing`). Their number stays
what it is: another would round differently, and the run would depend on its neighbours.
"""

import contextlib
import math
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_NEEDED, _FREE_AGAIN = 0.3, 0.2
"""Cores that others keep busy, for each of this process's threads, from which on half of them are left to others, and
below which all are used again."""
_BETTER = 0.3
"""How much less others must work on other cores, of their time, to move there."""
_WINDOW = (1.5, 2.5)
"""Seconds between two decisions: two processes that both moved to the same core soon decide at different times."""
_OWN_POLICIES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""What users set who bind threads to cores themselves."""


@dataclass(frozen=True)
class Work:
    """Seconds so far: by the clock, of everyone's work on each of some cores, and of this process's."""

    clock: float = 0.0
    everyone: Mapping[int, float] = field(default_factory=dict)
    own: float = 0.0

    def since(self, before: "Work") -> "Work":
        everyone = {core: seconds - before.everyone.get(core, seconds) for core, seconds in self.everyone.items()}
        return Work(self.clock - before.clock, everyone, self.own - before.own)

    def plus(self, other: "Work") -> "Work":
        everyone = {core: seconds + self.everyone.get(core, 0.0) for core, seconds in other.everyone.items()}
        return Work(self.clock + other.clock, everyone, self.own + other.own)

    def by_others(self) -> float:
        """Cores that other processes kept busy meanwhile, of a `Work` between two moments."""
        return (sum(self.everyone.values()) - self.own) / self.clock if self.clock else 0.0


def work_so_far(of: Collection[int], root: Path = Path("/")) -> Work | None:
    """What has been worked on some cores since the system began, where it says so. `root` is where `proc` is."""
    names = {f"cpu{core}": core for core in of}
    lines = [line.split() for line in _lines(root / "proc/stat")]
    # user, nice, system, idle, waiting for disks, interrupts of two kinds; what follows is not this system's own work
    ticks = {names[line[0]]: sum(map(int, [*line[1:4], *line[6:8]])) for line in lines if line and line[0] in names}
    if not ticks:
        return None
    each = os.sysconf("SC_CLK_TCK")
    return Work(time.monotonic(), {core: n / each for core, n in ticks.items()}, time.process_time())


class BriefWaits:
    """Lets threads that wait for each other sleep almost at once.

    A thread that spins on a core which it shares keeps the one that it waits for from working. GNU's OpenMP, torch's on
    Linux, spins a tenth as long while a process has more threads than cores; so for as long as that is wanted, a thread
    is held that once computed with others of its own, which then sleep.
    """

    def __init__(self) -> None:
        self._release: weakref.finalize[..., BriefWaits] | None = None

    def want(self, wanted: bool) -> None:
        if wanted and self._release is None:
            released = threading.Event()
            threading.Thread(target=_compute_once, args=(released,), name="brief-waits", daemon=True).start()
            self._release = weakref.finalize(self, released.set)
            self._release.atexit = False  # when the interpreter ends, the thread may sleep on
        elif not wanted and self._release is not None:
            self._release()
            self._release = None


def _compute_once(released: threading.Event) -> None:
    """Compute something so large that torch does it with all threads, and wait."""
    import torch

    torch.ones(2**20).add_(1.0)
    released.wait()


class Sharing:
    """Keeps a process's threads to half of its cores while other processes need the other half.

    Only while something is computed: what the process starts in between, and what it does otherwise, has all cores.
    Where the system tells nothing of its cores, or the user binds threads to them, nothing happens. `threads` gives the
    number of threads of a product, `work` what has been worked so far.
    """

    def __init__(
        self,
        threads: Callable[[], int],
        *,
        active: bool = True,
        work: Callable[[Collection[int]], Work | None] = work_so_far,
        chance: random.Random | None = None,
    ):
        self._threads, self._work, self._chance = threads, work, chance or random.Random()
        self._active = active and bool(allowed()) and not any(name in os.environ for name in _OWN_POLICIES)
        self._all: frozenset[int] | None = None
        """The cores of the process while something is computed."""
        self.kept: frozenset[int] | None = None
        """Those that are kept to, where others need the rest."""
        self._found, self._seen, self._window = Work(), Work(), self._chance.uniform(*_WINDOW)
        self._waits = BriefWaits()

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """The length of a computation. Within another one it does nothing."""
        every = frozenset(allowed())
        before = self._work(every) if self._active and self._all is None and self._threads() > 1 else None
        if before is None:
            yield
            return
        self._seen, self._all = before, every
        if self.kept is not None and not self.kept < every:
            self.close()
        _move(every, self.kept or every)
        try:
            yield
        finally:
            self._count(every)
            _move(self.kept or every, every)
            self._all = None

    def look(self) -> None:
        """To be called often while something is computed: every few seconds the cores are chosen anew."""
        every = self._all
        if every is None or time.monotonic() < self._seen.clock + self._window - self._found.clock:
            return
        self._count(every)
        chosen = self._choice(every)
        _move(self.kept or every, chosen or every)
        self.kept = chosen
        self._waits.want(chosen is not None)
        self._found, self._window = Work(), self._chance.uniform(*_WINDOW)

    def close(self) -> None:
        """Forget what others needed: the next computation begins with all cores."""
        self.kept = None
        self._waits.want(False)

    def _count(self, every: Collection[int]) -> None:
        if (now := self._work(every)) is not None:
            self._found, self._seen = self._found.plus(now.since(self._seen)), now

    def _choice(self, every: frozenset[int]) -> frozenset[int] | None:
        """The cores to keep to from now on; None for all."""
        found, threads = self._found, min(self._threads(), len(every))
        needed = found.by_others() - (len(every) - threads)
        if threads == 1 or needed <= _FREE_AGAIN * threads:
            return None
        if self.kept is None and needed < _NEEDED * threads:
            return None
        here = self.kept or every
        others = {
            core: found.everyone.get(core, 0.0) - (found.own / len(here) if core in here else 0.0) for core in every
        }
        in_any_order = self._chance.sample(sorted(every), len(every))
        calm = frozenset(sorted(in_any_order, key=lambda core: others[core])[: math.ceil(threads / 2)])
        if self.kept is None:
            return calm
        gain = (sum(others[core] for core in self.kept) - sum(others[core] for core in calm)) / found.clock
        return calm if gain > _BETTER * len(self.kept) else self.kept


def allowed() -> set[int]:
    """The cores that this process is bound to; none where the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def cores(root: Path = Path("/")) -> int:
    """The number of cores that this process may use: those it is bound to, and no more than its container's share of
    their time, rounded up."""
    bound = len(allowed()) or os.cpu_count() or 1
    return max(1, math.ceil(min(bound, _quota(root))))


def _move(here: frozenset[int], there: frozenset[int]) -> None:
    """Bind those threads of this process that may use the cores `here` to others. A thread that the user bound
    elsewhere is left alone."""
    if here == there:
        return
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if os.sched_getaffinity(int(thread)) == here:
                os.sched_setaffinity(int(thread), there)


def _quota(root: Path) -> float:
    """Cores' worth of time that the control groups of this process allow, those above it included; infinite where there
    is no bound. `root` is where `proc` and `sys` are."""
    bound = math.inf
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            bound = min(bound, *map(_unified, _upwards(root / "sys/fs/cgroup", path)))
        elif "cpu" in controllers.split(","):
            bound = min(bound, *map(_by_files, _upwards(root / "sys/fs/cgroup/cpu", path)))
    return bound


def _upwards(top: Path, path: str) -> list[Path]:
    """The folder of a control group and those above it. In a container its path may be the host's: `top` is always
    among them."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [top.joinpath(*parts[:n]) for n in range(len(parts) + 1)]


def _unified(group: Path) -> float:
    """Version 2: `max 100000`, or `150000 100000`, microseconds of each period."""
    return _ratio(" ".join(_lines(group / "cpu.max")).split())


def _by_files(group: Path) -> float:
    """Version 1: a file for each, and -1 for no bound."""
    return _ratio([*_lines(group / "cpu.cfs_quota_us"), *_lines(group / "cpu.cfs_period_us")])


def _ratio(words: list[str]) -> float:
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return math.inf
    return int(words[0]) / int(words[1])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
