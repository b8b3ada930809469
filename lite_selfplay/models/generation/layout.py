"""How many sequences are sampled side by side, and how many positions of keys and values each slot has.

The layout follows from the request and the budget, never from free memory: a resumed run has the same slots, and `plan`
knows them.
"""

from dataclasses import dataclass

CHECK_EVERY = 16
"""Tokens between two checks for repetition and, on a GPU, for finished sequences."""
FINEST = 128
"""A slot's positions are a multiple of this, and views grow by it: GPU attention copies a mask with unaligned rows."""
MOST_ROWS = 512
"""The most sequences sampled side by side: the logits of more take gigabytes."""
LEAST_PROMPT, LEAST_ANSWER = 256, 256
"""The fewest positions of a slot for a prompt and for an answer, unless completions must be shorter."""
LONG = 16
"""If not all slots can hold the longest completion, one in this many can."""


def rounded_up(count: int, finest: int = 1) -> int:
    """`count`, rounded up to steps of an eighth to a quarter of it, at least of `finest`: few sizes, little waste."""
    step = max(finest, 1 << max(0, (count - 1).bit_length() - 3))
    return -(-count // step) * step


def row_size(count: int) -> int:
    """`count` or a few more rows: few sizes, because each is recorded as a graph of its own."""
    return rounded_up(count) if count > 64 else max(2, 1 << max(0, count - 1).bit_length())


@dataclass(frozen=True)
class Slot:
    """Where a sequence's keys and values are in the pool: the first position, and the number of positions."""

    first: int
    positions: int

    def starts(self, heads: int) -> list[int]:
        """Where each key head begins in a store (N * K, D)."""
        return [self.first * heads + head * self.positions for head in range(heads)]


@dataclass(frozen=True)
class Layout:
    """`rows` slots of `positions` each, and `longs` spare slots of `longest` positions for the longest sequences."""

    rows: int
    positions: int
    longest: int
    longs: int = 0

    @classmethod
    def of(cls, rows: int, prompt: int, completion: int, tokens: int, *, mixed: bool) -> "Layout":
        """A layout for up to `rows` sequences of up to `prompt` + `completion` tokens, within a budget of `tokens`.
        If not every slot can hold that many, `mixed` allows shorter slots and a few long ones."""
        room = 1 << (max(prompt, LEAST_PROMPT) - 1).bit_length()
        longest = _whole(room + completion + CHECK_EVERY)  # tokens sampled after a sequence's end need room
        least = min(longest, _whole(room + LEAST_ANSWER)) if mixed else longest
        for size in sorted({row_size(count) for count in range(1, min(rows, MOST_ROWS) + 1)}, reverse=True):
            if size * longest <= tokens:
                return cls(size, longest, longest)
            longs = -(-size // LONG)
            positions = min((tokens - longs * longest) // size // FINEST * FINEST, longest)
            if least <= positions < longest:
                return cls(size, positions, longest, longs)
        return cls(1, longest, longest)

    @property
    def total(self) -> int:
        """Positions of all slots."""
        return self.rows * self.positions + self.longs * self.longest

    def held(self, tokens: int) -> int:
        """Positions to allocate within a budget of `tokens`: a quarter more than now, so that longer prompts fit into
        the same pool and keep its graphs."""
        return max(self.total, min(tokens, self.total * 5 // 4))

    @property
    def slots(self) -> tuple[list[Slot], list[Slot]]:
        """Each row's own slot, and the spare ones."""
        end = self.rows * self.positions
        own = [Slot(i * self.positions, self.positions) for i in range(self.rows)]
        return own, [Slot(end + i * self.longest, self.longest) for i in range(self.longs)]


def _whole(positions: int) -> int:
    return -(-positions // FINEST) * FINEST
