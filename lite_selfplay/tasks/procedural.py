"""What procedural tasks share: a sequence whose rows are made when they are asked for."""

from collections.abc import Callable, Sequence
from typing import overload

from lite_selfplay.data import Problem


class Procedural(Sequence[Problem]):
    """Problem i is `make(i)`; none is held in memory."""

    def __init__(self, size: int, make: Callable[[int], Problem]):
        self._size, self._make = size, make

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(index)
        return self._make(index % self._size)
