"""Completions that say the same again and again: a model in a loop never ends by itself.

What is sampled after a loop has begun is paid for and teaches nothing, and rows in loops hold up all others: two of 256
made a step three times as long. A completion's own tokens decide, so it is the same in any batch and after any resume.
"""

from collections.abc import Sequence

import numpy as np

LONGEST = 256
"""The most tokens that a loop may have."""
LEAST, TIMES = 256, 4
"""A completion ends once its last 256 tokens, and four times the loop at the least, are nothing but the loop: a table
of zeros repeats itself for a while as well."""
KEY = 32
"""Tokens by which it is seen that a short stretch ends no loop: they would stand there once before."""


def loop_end(ids: Sequence[int], begin: int = 0) -> int | None:
    """The number of tokens, above `begin`, at which a completion ends as a loop: the first at which the last
    max(256, 4 p) tokens repeat themselves with a period p of at most 256. None where there is none."""
    begin = max(begin, LEAST - 1)
    if len(ids) <= begin:
        return None
    first = max(0, begin + 1 - TIMES * LONGEST)
    tail = np.asarray(ids[first:])
    found = [end for period in _periods(tail, begin - first) if (end := _end(tail, period, begin - first))]
    return first + min(found) if found else None


def _periods(tail: np.ndarray, begin: int) -> Sequence[int]:
    """The periods with which a loop could end above `begin`, from what stands before it."""
    if len(tail) - begin > KEY:
        return range(1, min(LONGEST, len(tail) - 1) + 1)
    # A loop that ends here repeats itself for 192 tokens at the least: those just before `begin` are among them.
    key = tail[begin - KEY : begin]
    earlier = tail[max(0, begin - KEY - LONGEST) : begin - 1]
    same = (np.lib.stride_tricks.sliding_window_view(earlier, KEY) == key).all(1)
    return (len(same) - np.flatnonzero(same)).tolist()


def _end(tail: np.ndarray, period: int, begin: int) -> int | None:
    same = tail[period:] == tail[:-period]
    breaks = np.concatenate(([period - 1], np.flatnonzero(~same) + period, [len(tail)]))
    ends = np.maximum(breaks[:-1] + 1 + max(LEAST, TIMES * period) - period, begin + 1)
    reached = ends[ends <= breaks[1:]]
    return int(reached[0]) if len(reached) else None
