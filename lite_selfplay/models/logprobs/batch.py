"""Rows that a model reads together: a prompt and its completion each, and the prefixes that neighbours share.

Completions of a group share a prompt, and the challenges of a problem share its beginning. A shared prefix is read
once, and the rest of each row over its keys and values. This is exact, forwards and backwards.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property, partial
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

T = TypeVar("T")

Row = tuple[Sequence[int], Sequence[int]]
"""The ids of a prompt (at least one) and of its completion."""


class Way(Enum):
    """How a model reads rows: `WHOLE`, padded on the right, or `PACKED`, in one pass without padding that reads shared
    prefixes once."""

    WHOLE = auto()
    PACKED = auto()


@dataclass(frozen=True)
class SharedPrefix:
    """Consecutive rows whose prompts share their first `length` tokens. `longest` is the length of the longest row,
    prompt and completion, and `tokens` that of all rows together."""

    prompt: Sequence[int]
    length: int
    rows: int
    longest: int
    tokens: int

    @property
    def ids(self) -> Sequence[int]:
        return self.prompt[: self.length]

    @property
    def cost(self) -> int:
        """Tokens of the rows, shared ones counted once."""
        return self.tokens - (self.rows - 1) * self.length

    def followed_by(self, other: "SharedPrefix") -> "SharedPrefix":
        """The prefix shared by these rows and those of another, which follow them."""
        return SharedPrefix(
            self.prompt,
            min(self.length, other.length, _common(self.prompt, other.prompt)),
            self.rows + other.rows,
            max(self.longest, other.longest),
            self.tokens + other.tokens,
        )


@dataclass(frozen=True)
class Batch:
    """Rows in reading order, their shared prefixes, and how they are read. Rows that share a prefix must be neighbours.
    `longest` is the length of the longest, prompt and completion."""

    rows: tuple[Row, ...] = ()
    way: Way = Way.WHOLE
    prefixes: tuple[SharedPrefix, ...] = field(default=(), repr=False)
    longest: int = 0
    _prompts: tuple[tuple["Batch", SharedPrefix], ...] = field(default=(), repr=False, compare=False)
    """For each new prompt: the batch before it, and the prefix of that prompt's rows."""

    @classmethod
    def of(cls, rows: Iterable[Row], way: Way = Way.WHOLE) -> "Batch":
        batch = cls(way=way)
        for row in rows:
            batch = batch.with_row(row)
        return batch

    def with_row(self, row: Row) -> "Batch":
        """This batch with one more row, divided among prefixes so that the fewest tokens are read. A prompt's last
        token always belongs to the row: it predicts the completion's first token."""
        prompt, total = row[0], len(row[0]) + len(row[1])
        last = SharedPrefix(prompt, max(0, len(prompt) - 1), 1, total, total)
        prompts, before = self._prompts, self
        if prompts and prompts[-1][1].prompt == prompt:
            before, same = prompts[-1]
            prompts, last = prompts[:-1], same.followed_by(last)
        best, least = (*before.prefixes, last), before.packed_cost + last.cost
        joined = last
        for earlier, shared in reversed(prompts):  # the last prefix may begin with any of these
            joined = shared.followed_by(joined)
            if joined.length == 0:
                break
            if (cost := earlier.packed_cost + joined.cost) < least:
                best, least = (*earlier.prefixes, joined), cost
        return Batch((*self.rows, row), self.way, best, max(self.longest, total), (*prompts, (before, last)))

    @property
    def owners(self) -> list[int]:
        """Each row's index of its prefix."""
        return [i for i, prefix in enumerate(self.prefixes) for _ in range(prefix.rows)]

    @property
    def own(self) -> list[list[int]]:
        """Each row's ids after its shared prefix."""
        owners = zip(self.owners, self.rows, strict=True)
        return [[*prompt[self.prefixes[i].length :], *completion] for i, (prompt, completion) in owners]

    @property
    def completion_ids(self) -> list[int]:
        """All completion ids, row after row."""
        return [token for _, completion in self.rows for token in completion]

    def split(self, values: Sequence[T]) -> list[Sequence[T]]:
        """Values of all completion tokens as one sequence per row."""
        lengths = [len(completion) for _, completion in self.rows]
        return [values[end - length : end] for length, end in zip(lengths, accumulate(lengths), strict=True)]

    @property
    def plain_cost(self) -> int:
        """Tokens of one pass over whole rows, padded to the longest."""
        return len(self.rows) * self.longest

    @property
    def shared_cost(self) -> int:
        """Padded tokens of two passes: over the prefixes, then over the rest."""
        if not self.prefixes:
            return 0
        first = len(self.prefixes) * max(prefix.length for prefix in self.prefixes)
        return first + len(self.rows) * max(prefix.longest - prefix.length for prefix in self.prefixes)

    @property
    def shares(self) -> bool:
        """Whether two passes are worth it: their own cost requires saving a tenth."""
        return all(prefix.length for prefix in self.prefixes) and self.shared_cost < 0.9 * self.plain_cost

    @cached_property
    def packed_cost(self) -> int:
        """Tokens without padding, shared ones counted once."""
        return sum(prefix.cost for prefix in self.prefixes)

    @property
    def cost(self) -> int:
        """Tokens read, including padding."""
        return self.packed_cost if self.way is Way.PACKED else self.plain_cost


def cut(
    items: Sequence[T],
    row_of: Callable[[T], Row],
    budget: int,
    way: Way,
    *,
    kind: Callable[[T], object] = lambda item: None,
) -> list[tuple[list[T], Batch]]:
    """Items in order, cut into chunks of at most `budget` tokens (or one item), with their batches. `row_of` returns an
    item's row, `way` is how rows are read; items of different `kind` never share a chunk."""
    chunks: list[tuple[list[T], Batch]] = []
    for item in items:
        row = row_of(item)
        if chunks and kind(chunks[-1][0][0]) == kind(item):
            members, batch = chunks[-1]
            if (longer := batch.with_row(row)).cost <= budget:
                chunks[-1] = [*members, item], longer
                continue
        chunks.append(([item], Batch.of([row], way)))
    return chunks


def pad(rows: Sequence[Sequence[int]], *, left: bool = False) -> tuple[Tensor, Tensor]:
    """Ids (B, L) padded to the longest row on one side, and their mask, both int64."""
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    padded = partial(pad_sequence, batch_first=True, padding_side="left" if left else "right")
    return padded(ids), padded([torch.ones_like(row) for row in ids])


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of two prompts' common beginning."""
    if a is b or a == b:
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
