"""Statistics of evaluations: intervals, paired tests and majority votes. No torch."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import fmean, stdev
from typing import NamedTuple, TypeVar

T = TypeVar("T")


def clopper_pearson(k: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact binomial confidence interval for `k` successes in `n` trials.

    Returns (low, high) in [0, 1]; (0, 1) for n = 0. Raises ValueError unless 0 <= k <= n.
    Source: Clopper and Pearson, Biometrika 26 (1934).
    """
    from scipy.stats import binomtest

    if k == n == 0:
        return 0.0, 1.0
    low, high = binomtest(k, n).proportion_ci(confidence, method="exact")
    return float(low), float(high)


def is_above(share: float, n: int, bound: float) -> bool | None:
    """Whether a share observed in `n` trials lies above (True) or below (False) a bound with 95% confidence
    (Clopper-Pearson); None if neither is certain."""
    low, high = clopper_pearson(round(share * n), n)
    return True if low > bound else False if high < bound else None


def paired_test(before: Sequence[bool], after: Sequence[bool]) -> tuple[int, int, float]:
    """Exact McNemar test: are the same problems solved more often, or less often, than before?

    `before[i]` and `after[i]` say whether problem i was solved. Returns (gained, lost, p_value): the problems that went
    from wrong to right, those that went from right to wrong, and the probability of a split at least as uneven by
    chance (two-sided binomial test, 1/2 each; 1 if nothing changed). Raises ValueError if the lengths differ.
    Source: McNemar, Psychometrika 12 (1947), in its exact form.
    """
    from scipy.stats import binomtest

    gained = sum(bool(b) < bool(a) for b, a in zip(before, after, strict=True))
    lost = sum(bool(b) > bool(a) for b, a in zip(before, after, strict=True))
    if gained + lost == 0:
        return 0, 0, 1.0
    return gained, lost, float(binomtest(gained, gained + lost, 0.5).pvalue)


class Paired(NamedTuple):
    """The result of `paired`: the problems in both (`shared`), their outcomes before and after, and the tests."""

    shared: list[str]
    before: list[float]
    after: list[float]
    difference: float
    gained: int | None
    lost: int | None
    p_value: float | None

    @property
    def changes(self) -> list[float]:
        """The change of each problem."""
        return [now - was for was, now in zip(self.before, self.after, strict=True)]

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% bootstrap interval of the difference; None if all problems change alike, so that there is no spread
        to estimate it from."""
        return paired_bootstrap(self.before, self.after)[1:] if len({*self.changes}) > 1 else None


def paired(before: Mapping[str, float], after: Mapping[str, float]) -> Paired | None:
    """Compare outcomes by problem key: right or wrong, or the share of right answers.

    `difference` is the difference of the means over the shared problems. The rest comes from `paired_test` if every
    outcome is right or wrong, else it is None. Returns None if no problem is shared.
    """
    shared = [key for key in after if key in before]
    was, now = [before[key] for key in shared], [after[key] for key in shared]
    if not shared:
        return None
    exact = {*was, *now} <= {0, 1}
    tested = paired_test([*map(bool, was)], [*map(bool, now)]) if exact else (None, None, None)
    return Paired(shared, was, now, fmean(now) - fmean(was), *tested)


def majority_vote(classes: Sequence[T | None]) -> tuple[T | None, int]:
    """The largest class of answers, and its size. `classes[i]` is the class of answer i, None an abstention.

    If classes tie for the largest, there is no winner: (None, size). Abstentions never win: (None, 0) if no class
    outnumbers them.
    """
    counts = Counter(key for key in classes if key is not None)
    most = max(counts.values(), default=0)
    if most <= sum(key is None for key in classes):
        return None, 0
    winners = [key for key, votes in counts.items() if votes == most]
    return (winners[0] if len(winners) == 1 else None), most


def pass_at_k(correct: int, n: int, k: int) -> float:
    """The unbiased estimate of pass@k: at least one of `k` samples is right, given `correct` of `n`. 1 <= k <= n.

    Source: Chen et al. 2021 (Codex), section 2.1: 1 - C(n - correct, k) / C(n, k).
    """
    return 1 - comb(n - correct, k) / comb(n, k)


def maj_at_k(classes: Sequence[Hashable | None], right: Sequence[bool], k: int) -> float:
    """Whether the majority of a problem's first `k` samples is right; a tie counts as the mean of its classes.

    `classes[i]` is the class of sample i's answer, None an abstention; abstentions form a class that is never right.
    `right[i]` says whether sample i is right. In [0, 1]. Source: Wang et al. 2022 (self-consistency), with the
    expected result of breaking ties at random.
    """
    verdicts: dict[Hashable, list[bool]] = {}
    for key, correct in zip(classes[:k], right[:k], strict=True):
        verdicts.setdefault(key, []).append(correct and key is not None)
    most = max(map(len, verdicts.values()))
    leading = [sum(votes) / most for votes in verdicts.values() if len(votes) == most]
    return sum(leading) / len(leading)


def paired_bootstrap(
    before: Sequence[float], after: Sequence[float], *, seed: int = 0, resamples: int = 9999, confidence: float = 0.95
) -> tuple[float, float, float]:
    """The mean of `after - before` over the same problems, with its bootstrap interval: (difference, low, high).

    Problems are resampled with both of their results (percentile interval; equal seeds give equal intervals). There
    must be at least two. Source: Efron and Tibshirani 1993, chapter 13.
    """
    import numpy as np
    from scipy.stats import bootstrap

    differences = np.subtract(np.asarray(after, dtype=float), np.asarray(before, dtype=float))
    interval = bootstrap(
        (differences,),
        np.mean,
        n_resamples=resamples,
        batch=max(1, 10**6 // len(differences)),
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(differences.mean()), float(interval.low), float(interval.high)


@dataclass(frozen=True)
class Spread:
    """Values over seeds: their mean, standard deviation (n - 1) and the t interval of the mean.

    For a single value, all but the mean are None. Equal values have no interval: they do not show how far the next
    value may lie.
    """

    n: int
    mean: float
    std: float | None = None
    interval: tuple[float, float] | None = None


def over_seeds(values: Sequence[float], confidence: float = 0.95) -> Spread:
    """Mean and spread of one figure over several seeds, at least one."""
    from scipy.stats import t

    n = len(values)
    if n == 1:
        return Spread(1, float(values[0]))
    mean, std = fmean(values), stdev(values)
    half = float(t.ppf((1 + confidence) / 2, n - 1)) * (std / sqrt(n))
    return Spread(n, mean, std, (mean - half, mean + half) if std else None)


class Crossed(NamedTuple):
    """A mean difference over seeds and problems, its interval and the p-value at which the interval reaches 0. The
    last two are None if either seeds or problems show no spread."""

    mean: float
    interval: tuple[float, float] | None = None
    p_value: float | None = None


def crossed(*tasks: Sequence[Sequence[float]], confidence: float = 0.95) -> Crossed:
    """The mean of paired differences, `tasks[task][seed][problem]`, if other seeds and other problems might have been
    drawn as well. Tasks have the same seeds, and equal weight in the mean.

    The half widths of Student's t intervals over seeds alone and over problems alone are added in squares, so the
    result is never narrower than either. With a single seed it is over problems. Source: Zou and Donner, Statistics in
    Medicine 27 (2008), for the sum of the two effects.
    """
    import numpy as np
    from scipy.optimize import brentq
    from scipy.stats import t

    grids = [np.asarray(task, dtype=float) for task in tasks]
    seeds, mean = len(grids[0]), fmean(float(grid.mean()) for grid in grids)
    # The error of the mean from each source, and its degrees of freedom.
    by_problem = [grid.mean(axis=0) for grid in grids if grid.shape[1] > 1]
    error = sqrt(sum(each.var(ddof=1) / len(each) for each in by_problem)) / len(grids)
    errors = [(error, sum(len(each) - 1 for each in by_problem))]
    if seeds > 1:
        means = np.mean([grid.mean(axis=1) for grid in grids], axis=0)
        errors.append((float(means.std(ddof=1)) / sqrt(seeds), seeds - 1))
    # Differences of shares that are equal but for rounding have no spread.
    if not by_problem or any(error < 1e-12 for error, _ in errors):
        return Crossed(mean)

    def half(level: float) -> float:
        return sqrt(sum((float(t.isf(level / 2, freedom)) * error) ** 2 for error, freedom in errors))

    width, least = half(1 - confidence), 1e-15
    found = least if half(least) < abs(mean) else float(brentq(lambda level: half(level) - abs(mean), least, 1.0))
    return Crossed(mean, (mean - width, mean + width), found)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: those below a level are significant at it together.

    Source: Holm, Scandinavian Journal of Statistics 6 (1979).
    """
    order, adjusted, largest = sorted(range(len(p_values)), key=p_values.__getitem__), [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def sign_flips(changes: Sequence[float]) -> float:
    """The p-value of changes under the hypothesis that each could as well have had the other sign: the share of sign
    assignments whose sum is at least as far from 0 as theirs. Exact for up to 13 changes, else of 9,999 assignments.

    Source: Fisher, The Design of Experiments (1935).
    """
    import numpy as np
    from scipy.stats import permutation_test

    moved = [float(change) for change in changes if change]
    if len(moved) < 2:
        return 1.0
    found = permutation_test(
        (moved,), np.mean, permutation_type="samples", n_resamples=9999, rng=np.random.default_rng(0)
    )
    return float(found.pvalue)
