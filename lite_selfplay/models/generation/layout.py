"""How many rows are sampled side by side, and how many columns of keys and values each has for its place.

It follows from what is asked for and from how much may be held, never from what happens to be there: a resumed run has
the same places, and `plan` knows them.
"""

from dataclasses import dataclass

LOOK_EVERY = 16
"""Tokens after which the host looks whether a row repeats itself and, on a card, which rows have ended."""
FINEST = 128
"""Columns by which a view grows at the least, and what those of a place are a multiple of: so attention on a card need
not copy a mask, as it does where its rows are not aligned."""
MOST_ROWS = 512
"""Rows that are sampled side by side at most: their logits alone take gigabytes beyond that."""
LEAST_PROMPT, LEAST_ANSWER = 256, 256
"""Columns for a prompt and for an answer that a place has at the least, if a completion may be so long."""
LONG = 16
"""Of so many rows one has a place for the longest completion, where not all can have one."""


def rounded_up(count: int, finest: int = 1) -> int:
    """`count` in steps of an eighth to a quarter of it, and of `finest` at the least: few sizes, and little unused."""
    step = max(finest, 1 << max(0, (count - 1).bit_length() - 3))
    return -(-count // step) * step


def row_size(count: int) -> int:
    """So many rows or a few more: few sizes, since each is recorded as a graph of its own."""
    return rounded_up(count) if count > 64 else max(2, 1 << max(0, count - 1).bit_length())


@dataclass(frozen=True)
class Place:
    """Where a row's keys and values are: the number of the first of its columns, and how many it has."""

    first: int
    columns: int

    def starts(self, heads: int) -> list[int]:
        """Where each key head's columns begin in a store (N * K, D)."""
        return [self.first * heads + head * self.columns for head in range(heads)]


@dataclass(frozen=True)
class Layout:
    """So many rows side by side, with `columns` each; `longs` further places have as many as the longest prompt and
    completion need, `longest`."""

    rows: int
    columns: int
    longest: int
    longs: int = 0

    @classmethod
    def of(cls, rows: int, prompt: int, completion: int, tokens: int, *, mixed: bool) -> "Layout":
        """For so many rows at the most, with prompts of up to `prompt` tokens, where `tokens` may be held: with `mixed`
        lengths if not all rows can have the longest."""
        room = 1 << (max(prompt, LEAST_PROMPT) - 1).bit_length()
        longest = _whole(room + completion + LOOK_EVERY)  # what is drawn beyond a row's end has to go somewhere
        least = min(longest, _whole(room + LEAST_ANSWER)) if mixed else longest
        # From the number of rows that has room for all of them down.
        for size in sorted({row_size(count) for count in range(1, min(rows, MOST_ROWS) + 1)}, reverse=True):
            if size * longest <= tokens:
                return cls(size, longest, longest)
            longs = -(-size // LONG)
            columns = min((tokens - longs * longest) // size // FINEST * FINEST, longest)
            if least <= columns < longest:
                return cls(size, columns, longest, longs)
        return cls(1, longest, longest)

    @property
    def total(self) -> int:
        """Columns of all places."""
        return self.rows * self.columns + self.longs * self.longest

    def held(self, tokens: int) -> int:
        """Columns to take where so many may be held: a quarter more than there are now, for longer prompts to find them
        there with all that was recorded over them."""
        return max(self.total, min(tokens, self.total * 5 // 4))

    @property
    def places(self) -> tuple[list[Place], list[Place]]:
        """One for each row, and those for rows that outgrow theirs."""
        end = self.rows * self.columns
        homes = [Place(i * self.columns, self.columns) for i in range(self.rows)]
        return homes, [Place(end + i * self.longest, self.longest) for i in range(self.longs)]


def _whole(columns: int) -> int:
    return -(-columns // FINEST) * FINEST
