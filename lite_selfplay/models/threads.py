"""How many threads a base on a CPU uses, and how they wait for each other.

At the end of a product OpenMP's threads wait for each other by spinning, which is free on an idle machine; if another
process takes a core, the others burn theirs until the scheduler comes round. So they spin only for microseconds and
then sleep (`spin_briefly`), and small matrices get one thread (`choose`). Beside busy processes fewer threads are
faster: `crowded` says so.
"""

import math
import os
import sys
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

SMALL = 2**18
"""With fewer numbers in a layer's largest matrix, more than one thread is no faster."""
# Spins of a waiting thread before it sleeps, a few microseconds: longer than the parts of a product differ, and far
# below a scheduler's slice.
_SPINS = "1000"
# Users set these for another policy; then nothing is changed.
_POLICIES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
# The least busy cores of others that matter, and the least seconds of measurement.
_CROWDED, _LONG_ENOUGH = 0.5, 0.5


def spin_briefly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let waiting threads sleep soon, by a variable that GNU's OpenMP (torch's on Linux) reads as torch is imported."""
    if "torch" not in sys.modules and not any(name in environment for name in _POLICIES):
        environment["GOMP_SPINCOUNT"] = _SPINS


def set_threads(base: Any, asked: int | None = None) -> Callable[[], None]:
    """Set this process's threads for a base: `asked`, or one if all its layers are small, or torch's own number up to
    the cores available. Returns a call that restores the former number."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(asked or (1 if _largest_of_a_layer(base) < SMALL else min(before, cores())))
    return lambda: torch.set_num_threads(before)


Work = tuple[float, float, float]
"""Seconds so far: by the clock, of all work on this process's cores, and of its own work."""


def work_so_far() -> Work:
    """The work since the system began; zero on cores that it does not report."""
    import psutil

    bound = allowed()
    times = [each for core, each in enumerate(psutil.cpu_times(percpu=True)) if not bound or core in bound]
    kinds = ("user", "nice", "system", "irq", "softirq")  # the others are rest, or another system's work
    everyone = sum(getattr(each, kind, 0.0) for each in times for kind in kinds)
    return time.monotonic(), everyone, time.process_time()


def crowded(before: Work, now: Work, threads: int) -> str | None:
    """A warning if other processes keep busy the cores that this one's `threads` need; else None. Never for two
    threads, which are as fast on one core."""
    seconds, everyone, own = (b - a for a, b in zip(before, now, strict=True))
    if seconds < _LONG_ENOUGH or threads <= 2:
        return None
    busy = (everyone - own) / seconds
    fewer = max(1, threads - round(busy))
    if busy < _CROWDED or fewer == threads:
        return None
    return (
        f"other processes keep about {busy:.1f} cores busy: while they do, --threads {fewer} is likely faster than "
        f"{threads} (it rounds differently, so other completions are sampled)"
    )


def _largest_of_a_layer(base: Any) -> int:
    """Numbers in the base's largest matrix besides embeddings and output layer. A byte of packed weights holds two
    numbers of four bits."""
    ends = {id(end.weight) for end in (base.get_input_embeddings(), base.get_output_embeddings()) if end is not None}
    inner = (p for p in base.parameters() if id(p) not in ends)
    return max((p.numel() * (1 if p.is_floating_point() else 2) for p in inner), default=0)


def allowed() -> set[int]:
    """The cores that this process is bound to; empty if the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def cores(root: Path = Path("/")) -> int:
    """The number of cores that this process may use: those it is bound to, within its container's share of their time,
    rounded up. `root` is where `proc` and `sys` are."""
    return max(1, math.ceil(min(len(allowed()) or os.cpu_count() or 1, _quota(root))))


def _quota(root: Path) -> float:
    """Cores' worth of time allowed by this process's control groups and their parents; infinite without a bound. In a
    container a group's path may be the host's, so the top is always read."""
    found = [math.inf]
    for line in _words(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for group in (top.joinpath(*parts[:n]) for n in range(len(parts) + 1)):
            # `max 100000` or `150000 100000`, microseconds of each period; in version 1 a file for each.
            ratio = _words(group / "cpu.max") or [
                *_words(group / "cpu.cfs_quota_us"),
                *_words(group / "cpu.cfs_period_us"),
            ]
            if len(ratio) == 2 and all(word.isdigit() for word in ratio) and int(ratio[1]):
                found.append(int(ratio[0]) / int(ratio[1]))
    return min(found)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except OSError:
        return []
