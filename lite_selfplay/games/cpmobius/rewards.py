"""CPMobius's arithmetic: what the player and the coach earn, and how the player's progress is measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lite_selfplay.data import Completion, completion_from_json

PlayerReward = Literal["zero_one", "signed"]
CoachReward = Literal["mean", "delta", "advantage"]


@dataclass(frozen=True)
class Taught:
    """A task that the player was trained on, until its coach is paid: the mean of the player's 0/1 rewards, and the
    token-weighted mean of its advantages that are not 0."""

    name: str
    completion: Completion
    share: float
    advantage: float

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Taught":
        """What `asdict` gives, read back."""
        return cls(**{**values, "completion": completion_from_json(values["completion"])})


def player_reward(agrees: bool, kind: PlayerReward = "zero_one") -> float:
    """Equation 7: 1 where an answer is the majority's, else 0; `signed` (release): +1 and -1."""
    return float(agrees) if kind == "zero_one" else 2.0 * agrees - 1.0


def coach_reward(kind: CoachReward, delta: float, share: float, advantage: float) -> float:
    """What a task earns its coach. `delta` is in percentage points.

    `mean` (equation 5): the mean of the player's rewards, which is the `share` of answers that agree with the
    majority, times Delta; `delta` and `advantage` (release): Delta alone, or times the player's weighted `advantage`.
    """
    return delta * {"mean": share, "delta": 1.0, "advantage": advantage}[kind]


def token_weighted(values: Sequence[float], lengths: Sequence[int]) -> float:
    """The mean of the values that are not 0, each counted once per token of its completion; 0 if all are 0."""
    tokens = sum(length for value, length in zip(values, lengths, strict=True) if value)
    return math.fsum(v * length for v, length in zip(values, lengths, strict=True)) / tokens if tokens else 0.0


def progress(before: Sequence[int], after: Sequence[int], samples: int = 1) -> tuple[float, float | None]:
    """Delta, the difference of two accuracies on the same problems in percentage points, and its standard error.

    `before` and `after` say how many of `samples` answers to each problem were right. The error is that of the mean
    over problems of the differences, paired by problem (sample variance): answers to one problem are not independent,
    so that more of them bring it down only as far as they bring each difference nearer to its mean. None for one
    problem.
    """
    changes = [int(a) - int(b) for b, a in zip(before, after, strict=True)]
    mean = sum(changes) / len(changes)
    if len(changes) < 2:
        return 100 * mean / samples, None
    variance = math.fsum((change - mean) ** 2 for change in changes) / (len(changes) - 1)
    return 100 * mean / samples, 100 * math.sqrt(variance / len(changes)) / samples
