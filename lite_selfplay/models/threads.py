"""How many threads a base on a CPU works with, and how they wait for each other.

The threads of a product of matrices wait for each other at its end. Those of OpenMP spin meanwhile, which costs nothing
on an idle machine; where another process has the core that one of them needs, the others burn their own until the
scheduler comes round. So they spin for microseconds only and then sleep (`spin_briefly`), and small matrices are left
to one thread (`choose`). A core that others keep busy is still lost twice: whoever starts a run beside them is told
(`crowded`). Fewer threads are not chosen for that: they round differently, and neighbours come and go.
"""

import math
import os
import sys
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SMALL = 2**18
"""Numbers in the largest matrix of a layer below which more threads than one are no faster."""
_SPINS = "1000"
"""Turns of a waiting thread before it sleeps, a few microseconds: longer than the parts of a product differ, and far
below a scheduler's slice."""
_POLICIES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""What users set who want another policy: then nothing is changed."""
_CROWDED, _LONG_ENOUGH = 0.5, 0.5
"""Cores that others keep busy from which on it matters, and seconds that say so."""


@dataclass(frozen=True)
class Work:
    """Seconds so far: by the clock, of everyone's work on the cores that this process may use, and of its own."""

    clock: float
    everyone: float
    own: float


def spin_briefly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let waiting threads sleep soon. GNU's OpenMP, torch's on Linux, reads this once, when torch is imported."""
    if "torch" not in sys.modules and not any(name in environment for name in _POLICIES):
        environment["GOMP_SPINCOUNT"] = _SPINS


def choose(base: Any, asked: int | None = None) -> Callable[[], None]:
    """Set the threads of this process's products for a base: as many as asked, else one where all its layers are small,
    else torch's own number as far as the process may use it. What is returned sets the former number again."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(asked or (1 if _largest_of_a_layer(base) < SMALL else min(before, cores())))
    return lambda: torch.set_num_threads(before)


def work_so_far(root: Path = Path("/")) -> Work | None:
    """What has been worked since the system began, where it says so. `root` is where `proc` is."""
    names = {f"cpu{core}" for core in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set[str]()
    lines = [line.split() for line in _lines(root / "proc/stat")]
    # user, nice, system, idle, waiting for disks, interrupts of two kinds; what follows is not this system's own work
    ticks = [sum(map(int, [*line[1:4], *line[6:8]])) for line in lines if line and line[0] in names]
    return Work(time.monotonic(), sum(ticks) / os.sysconf("SC_CLK_TCK"), time.process_time()) if ticks else None


def crowded(before: Work | None, now: Work | None, threads: int) -> str | None:
    """A sentence for whoever runs `threads` threads while other processes keep cores busy; None where they do not."""
    if before is None or now is None or now.clock - before.clock < _LONG_ENOUGH:
        return None
    busy = ((now.everyone - before.everyone) - (now.own - before.own)) / (now.clock - before.clock)
    fewer = max(1, threads - round(busy))
    if busy < _CROWDED or fewer == threads:
        return None
    return (
        f"other processes keep about {busy:.1f} cores busy: while they do, --threads {fewer} is likely faster than "
        f"{threads} (it rounds differently, so other completions are sampled)"
    )


def _largest_of_a_layer(base: Any) -> int:
    """Numbers in the largest matrix of the base, embeddings and output layer apart. A byte of packed weights holds two
    numbers of four bits each."""
    ends = {id(end.weight) for end in (base.get_input_embeddings(), base.get_output_embeddings()) if end is not None}
    inner = (p for p in base.parameters() if id(p) not in ends)
    return max((p.numel() * (1 if p.is_floating_point() else 2) for p in inner), default=0)


def cores(root: Path = Path("/")) -> int:
    """The cores that this process may use: those it is bound to, and no more than its container's share of their time,
    rounded up."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(bound, _quota(root))))


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
