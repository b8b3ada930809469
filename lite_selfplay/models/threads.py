"""How many threads a base on a CPU works with, and how they wait for each other.

The threads of a product of matrices wait for each other at its end. Those of OpenMP spin meanwhile, which costs nothing
on an idle machine; where another process has the core that one of them needs, the others burn their own until the
scheduler comes round. So they spin for microseconds only and then sleep (`spin_briefly`), and small matrices are left
to one thread (`choose`). Beside processes that are busy all the time fewer threads are faster: `crowded` says so.
"""

import math
import os
import sys
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

SMALL = 2**18
"""Numbers in the largest matrix of a layer below which more threads than one are no faster."""
# Turns of a waiting thread before it sleeps, a few microseconds: longer than the parts of a product differ, and far
# below a scheduler's slice.
_SPINS = "1000"
# What users set who want another policy: then nothing is changed.
_POLICIES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
# Cores that others keep busy from which on it matters, and seconds that say so.
_CROWDED, _LONG_ENOUGH = 0.5, 0.5


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


class Work(NamedTuple):
    """Seconds so far: by the clock, of everyone's work on the cores of this process, and of this process's own."""

    clock: float
    everyone: float
    own: float


def work_so_far() -> Work:
    """What has been worked since the system began; nothing on cores that the system does not tell of."""
    import psutil

    bound = allowed()
    times = [each for core, each in enumerate(psutil.cpu_times(percpu=True)) if not bound or core in bound]
    kinds = ("user", "nice", "system", "irq", "softirq")  # the others are rest, or another system's work
    everyone = sum(getattr(each, kind, 0.0) for each in times for kind in kinds)
    return Work(time.monotonic(), everyone, time.process_time())


def crowded(before: Work, now: Work, threads: int) -> str | None:
    """A sentence for whoever runs `threads` threads while other processes keep cores busy; None where they do not, and
    for two threads, which do as well on one core."""
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
    """Numbers in the largest matrix of the base, embeddings and output layer apart. A byte of packed weights holds two
    numbers of four bits each."""
    ends = {id(end.weight) for end in (base.get_input_embeddings(), base.get_output_embeddings()) if end is not None}
    inner = (p for p in base.parameters() if id(p) not in ends)
    return max((p.numel() * (1 if p.is_floating_point() else 2) for p in inner), default=0)


def allowed() -> set[int]:
    """The cores that this process is bound to; none where the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def cores(root: Path = Path("/")) -> int:
    """The number of cores that this process may use: those it is bound to, and no more than its container's share of
    their time, rounded up. `root` is where `proc` and `sys` are."""
    return max(1, math.ceil(min(len(allowed()) or os.cpu_count() or 1, _quota(root))))


def _quota(root: Path) -> float:
    """Cores' worth of time that the control groups of this process allow, those above it included; infinite where there
    is no bound. In a container a group's path may be the host's: the top is always looked at."""
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
