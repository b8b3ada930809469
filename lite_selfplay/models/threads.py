"""How many threads a base on a CPU works with, and how they wait for each other.

The threads of a product of matrices wait for each other at its end. Those of OpenMP spin meanwhile, which costs nothing
on an idle machine; where another process has the core that one of them needs, the others burn their own until the
scheduler comes round. So they spin for microseconds only and then sleep (`spin_briefly`), and small matrices are left
to one thread (`choose`). Beside busy processes they also keep to fewer cores: see `cores.Sharing`.
"""

import os
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

from lite_selfplay.models.cores import Work, cores

SMALL = 2**18
"""Numbers in the largest matrix of a layer below which more threads than one are no faster."""
_SPINS = "1000"
"""Turns of a waiting thread before it sleeps, a few microseconds: longer than the parts of a product differ, and far
below a scheduler's slice."""
_POLICIES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""What users set who want another policy: then nothing is changed."""
_CROWDED, _LONG_ENOUGH = 0.5, 0.5
"""Cores that others keep busy from which on it matters, and seconds that say so."""


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


def crowded(before: Work | None, now: Work | None, threads: int) -> str | None:
    """A sentence for whoever runs `threads` threads while other processes keep cores busy; None where they do not, and
    for two threads, which do as well on one core."""
    if before is None or now is None or now.clock - before.clock < _LONG_ENOUGH or threads <= 2:
        return None
    busy = now.since(before).by_others()
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
