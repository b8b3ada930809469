"""Degenerate repetition: a model that repeats itself never stops, so its completion is ended.

Tokens after that point cost time, teach nothing and delay other rows: two of 256 made a step three times as long. Only
the completion's own tokens decide, so it ends alike in any batch and after any resume.
"""

from collections.abc import Sequence

import numpy as np

LONGEST = 256
"""The longest period in tokens."""
LEAST, TIMES = 256, 4
"""A completion ends if its last 256 tokens, and at least four periods, repeat: a table of zeros repeats itself for a
while, too."""
KEY = 32
"""Tokens whose earlier occurrence shows that a short stretch may end a repetition."""


def loop_end(ids: Sequence[int], begin: int = 0) -> int | None:
    """The length, above `begin`, at which a completion ends as repetition, or None. That is the first at which the last
    max(256, 4 p) tokens have a period p of at most 256."""
    begin = max(begin, LEAST - 1)
    if len(ids) <= begin:
        return None
    first = max(0, begin + 1 - TIMES * LONGEST)
    tail = np.asarray(ids[first:])
    found = [end for period in _periods(tail, begin - first) if (end := _end(tail, period, begin - first))]
    return first + min(found) if found else None


def _periods(tail: np.ndarray, begin: int) -> Sequence[int]:
    """Possible periods of a repetition that ends above `begin`, judged by the tokens before it."""
    if len(tail) - begin > KEY:
        return range(1, min(LONGEST, len(tail) - 1) + 1)
    # A repetition that ends here spans at least 192 tokens, including those just before `begin`.
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
