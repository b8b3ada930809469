"""SQLM's rewards (equations 1 to 4), as arithmetic."""

from typing import Literal


def solver_reward(score: float, well_formed: bool, kind: Literal["majority", "format"] = "majority") -> float:
    """1 for an answer that is the majority's, else 0 (equation 1), or the share of tests that a program passes
    (equation 3); the baseline (section 5.2): 1 for its format."""
    return float(well_formed if kind == "format" else score)


def proposer_reward(votes: int, n: int) -> float:
    """1 where more than one of a question's `n` answers agree and not all do, else 0 (equation 2, section 5.1)."""
    return float(1 < votes < n)


def proposer_reward_by_tests(share: float) -> float:
    """1 where the answers to a question pass some of its tests and not all, else 0 (equation 4, over all n answers)."""
    return float(0 < share < 1)
