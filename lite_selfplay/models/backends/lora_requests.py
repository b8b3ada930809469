"""Which LoRA an inference engine is to serve for a seat: a fresh request after every change of its weights.

An engine keeps what it has loaded under an integer id, and goes on serving it under that id whatever has happened to
the weights since, without an error; what it keeps of prompts that it has read goes by the adapter's name and path. So
an id, a name and a folder are never used for two states of a seat.
"""

import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lite_selfplay.data import BASE
from lite_selfplay.models.adapters import Adapters


@dataclass(frozen=True)
class _Served:
    key: tuple[int, ...]
    id: int
    folder: Path
    request: Any


class LoraRequests:
    """The requests under which an engine serves seats and snapshots, at most one each.

    `make(name, id, folder)` builds the engine's request for an adapter in PEFT's format; `forget(id)` tells the engine
    to drop one that will not be asked for again. There are at most `most`: those that were asked for longest ago go
    first, and are made anew when they are asked for again.
    """

    def __init__(
        self,
        adapters: Adapters,
        folder: Path,
        make: Callable[[str, int, Path], Any],
        forget: Callable[[int], Any] = lambda number: None,
        most: int | None = None,
    ):
        self._adapters, self._folder, self._make, self._forget = adapters, folder, make, forget
        self._most = most
        self._ids = itertools.count(1)
        self._served: dict[str, _Served] = {}

    def of(self, name: str) -> Any:
        """The request that serves a seat or a snapshot as it is now; None for the base.

        Raises UnknownNameError for any other name.
        """
        if name == BASE:
            return None
        key, served = self._adapters.state_key(name), self._served.pop(name, None)
        if served is None or served.key != key:
            if served is not None:
                self._drop(served)
            number = next(self._ids)
            folder, aside = self._folder / f"{number}-{name}", self._folder / f".{number}-{name}"
            self._adapters.save(name, aside)
            aside.rename(folder)  # whole from the moment that it is there
            served = _Served(key, number, folder, self._make(f"{number}-{name}", number, folder))
        self._served[name] = served  # behind all others
        while self._most is not None and len(self._served) > self._most:
            self._drop(self._served.pop(next(iter(self._served))))
        return served.request

    def _drop(self, served: _Served) -> None:
        self._forget(served.id)
        shutil.rmtree(served.folder, ignore_errors=True)
