"""Credit: from rewards to advantages. Plain arithmetic, no torch.

Standard deviations are sample standard deviations (ddof 1). In a group of equal rewards every advantage is 0.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from lite_selfplay.data import Advantage, Credit, Group, Sample, Stream

EPSILON = 1e-4


def advantages(rewards: Sequence[float], kind: Credit = "group") -> list[float]:
    """Advantages of the rewards that share one baseline.

    - `group`: (r - mean) / (std + 1e-4), Shao et al. 2024, equation of GRPO with outcome supervision;
    - `group_mean`: r - mean, Liu et al. 2025 (Dr. GRPO);
    - `reinforce`: the reward itself;
    - `batch`: r - mean, where the caller passes the rewards of the whole batch (SPC).

    Credit `baseline`, r - `Group.baseline`, is worked out by `stream_advantages`, which knows the group. Raises
    ValueError for an unknown kind or a reward that is not finite.
    """
    if not all(math.isfinite(r) for r in rewards):
        raise ValueError(f"rewards must be finite, got {list(rewards)}")
    if kind == "reinforce":
        return [float(r) for r in rewards]
    if kind not in ("group", "group_mean", "batch"):
        raise ValueError(f"unknown credit {kind!r}: use group, group_mean, reinforce or batch")
    if not rewards or max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    if kind != "group":
        return [r - mean for r in rewards]
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / (std + EPSILON) for r in rewards]


def rewards_of(samples: Iterable[Sample]) -> list[float]:
    """The rewards of the samples that have one, in order. Samples that are only recorded have none."""
    return [sample.reward for sample in samples if sample.reward is not None]


def has_variance(group: Group) -> bool:
    """Whether the unmasked samples of a group differ in reward, from each other or from the group's own baseline, or
    one of them has an advantage of its own."""
    kept = [s for s in group.samples if not s.masked]
    known = {s.reward for s in kept} | ({group.baseline} if kept and group.baseline is not None else set())
    return any(s.advantage is not None for s in kept) or len(known) > 1


def stream_advantages(stream: Stream) -> list[list[Advantage | None]]:
    """Advantages of every sample of a stream, group by group; None for samples that do not count in the loss.

    These are masked samples and, with `drop_zero_variance`, all samples of a group without variance. If a sample has an
    advantage of its own, it is kept unchanged.
    """
    rewards = [rewards_of(s for s in group.samples if not s.masked) for group in stream.groups]
    if stream.credit == "batch":
        values = advantages([r for row in rewards for r in row], "batch")
    elif stream.credit == "baseline":
        values = [r - (group.baseline or 0.0) for group, row in zip(stream.groups, rewards, strict=True) for r in row]
    else:
        values = [advantage for row in rewards for advantage in advantages(row, stream.credit)]
    pool, result = iter(values), list[list[Advantage | None]]()
    for group in stream.groups:
        dropped = stream.drop_zero_variance and stream.credit in ("group", "group_mean") and not has_variance(group)
        paid = [None if s.masked or s.is_example else next(pool) for s in group.samples]
        own = [
            value if sample.masked or sample.advantage is None else sample.advantage
            for sample, value in zip(group.samples, paid, strict=True)
        ]
        result.append([None] * len(own) if dropped else own)
    return result


def each(advantage: Advantage, change: Callable[..., float], *more: float) -> Advantage:
    """An advantage with its number, or all its numbers, changed by a function of the number and `more`."""
    return tuple(change(n, *more) for n in advantage) if isinstance(advantage, tuple) else change(advantage, *more)


def numbers_of(advantage: Advantage | None) -> Sequence[float]:
    """The numbers of an advantage: one, one for each token, or none."""
    return advantage if isinstance(advantage, tuple) else () if advantage is None else (advantage,)


class RunningBaseline:
    """Exponential moving averages of returns by key, such as a role: baselines for the next return.

    An average b starts at 0; a return r changes it to `decay` * b + (1 - `decay`) * r. If read before its return is
    added, it is SPIRAL's baseline of role-conditioned advantage estimation (Liu et al. 2025, section 3.3; decay 0.95).
    """

    def __init__(self, decay: float = 0.95):
        self._decay, self._means = decay, dict[str, float]()

    def of(self, key: str) -> float:
        """The mean of a key's returns; 0 without any."""
        return self._means.get(key, 0.0)

    def add(self, key: str, value: float) -> None:
        self._means[key] = self._decay * self.of(key) + (1 - self._decay) * value

    def state(self) -> dict[str, float]:
        """The means by key, as JSON, for `Game.state`."""
        return dict(self._means)

    def restore(self, state: Mapping[str, float]) -> None:
        self._means = dict(state)
