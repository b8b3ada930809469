"""Shares in words, with their intervals."""

from lite_selfplay.games.presentation import MISSING, percent
from lite_selfplay.stats import clopper_pearson


def share_with_interval(part: int, whole: int) -> str:
    """A share in percent and its 95% Clopper-Pearson interval: `41% [31, 52]`; `-` of nothing."""
    if not whole:
        return MISSING
    low, high = clopper_pearson(part, whole)
    return f"{percent(part / whole)} [{100 * low:.0f}, {100 * high:.0f}]"
