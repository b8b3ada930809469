"""What vLLM accepts, and how its servers are asked to serve seats as LoRA adapters (by the sources of vLLM 0.33).

vLLM serves a LoRA by its id, even if its files have changed, and finds the prompts that it has read by the LoRA's name
and path. So each state of a seat has an id, a name and a folder of its own.
"""

import itertools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lite_selfplay.data import BASE
from lite_selfplay.errors import RequestError
from lite_selfplay.models.adapters import Adapters
from lite_selfplay.tasks.files import written_whole_folder

SEED_BITS = 0x7FFF_FFFF_FFFF_FFFF
"""The bits of a seed that vLLM uses."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The allowed values of `max_lora_rank` (`vllm/config/lora.py`)."""
COLDEST, HOTTEST = 1e-2, 2.0
"""The temperatures that vLLM does not change (`vllm/sampling_params.py`), besides 0."""


def lora_limits(ranks: Mapping[str, int]) -> dict[str, Any]:
    """vLLM's settings for seats of these ranks: as many LoRAs in memory, room for the largest. Raises RequestError for
    a rank beyond vLLM's largest."""
    largest = max(ranks.values())
    if largest > RANKS[-1]:
        raise RequestError(f"vLLM serves adapters up to rank {RANKS[-1]}, and a seat has rank {largest}")
    return {"max_lora_rank": next(rank for rank in RANKS if rank >= largest), "max_loras": len(ranks)}


def require_temperature(temperature: float, remedy: str) -> None:
    """Raises RequestError for a temperature that vLLM would change; `remedy` says what to do."""
    if temperature > HOTTEST or 0 < temperature < COLDEST:
        raise RequestError(
            f"vLLM samples at temperatures from {COLDEST:g} to {HOTTEST:g}, and {temperature:g} is asked for: {remedy}"
        )


class LoraRequests:
    """The requests that serve seats and snapshots: a new one after every change of their weights.

    `make(name, id, folder)` builds the request for an adapter in PEFT's format. At most `most` are kept; the least
    recently used is dropped first, and made anew when it is asked for again.
    """

    def __init__(self, adapters: Adapters, folder: Path, make: Callable[[str, int, Path], Any], most: int):
        self._adapters, self._folder, self._make, self._most = adapters, folder, make, most
        self._ids = itertools.count(1)
        # State key, folder and request of each name, the least recently used first.
        self._served: dict[str, tuple[tuple[int, ...], Path, Any]] = {}

    def of(self, name: str) -> Any:
        """The request that serves a seat or a snapshot as it is now; None for the base. Raises UnknownNameError for any
        other name."""
        if name == BASE:
            return None
        key, served = self._adapters.state_key(name), self._served.get(name)
        if served is None or served[0] != key:
            self._drop(name)
            number = next(self._ids)
            folder = self._folder / f"{number}-{name}"
            with written_whole_folder(folder) as aside:
                self._adapters.save(name, aside)
            served = key, folder, self._make(f"{number}-{name}", number, folder)
        self._served.pop(name, None)
        self._served[name] = served
        while len(self._served) > self._most:
            self._drop(next(iter(self._served)))
        return served[-1]

    def _drop(self, name: str) -> None:
        if name in self._served:
            shutil.rmtree(self._served.pop(name)[1], ignore_errors=True)
