"""Two arms on the same problems: which is better, by how much, and where they differ. Pure functions of `eval/*.json`.

An arm is a seat or a direction in a mode of a run or model. Single answers are compared by McNemar's exact test, shares
of several answers by the bootstrap over problems.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from lite_selfplay.data import Problem
from lite_selfplay.evaluation.result import Evaluation
from lite_selfplay.games.modes import find_mode
from lite_selfplay.games.presentation import percent
from lite_selfplay.stats import clopper_pearson, paired_bootstrap, paired_test

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Arm:
    """A seat or direction `name` of an evaluation of `target`, which is there itself where it was just made."""

    target: str
    result: Result
    name: str
    evaluation: Evaluation | None = None

    @property
    def outcomes(self) -> dict[str, bool | float]:
        return {key: found[self.name] for key, found in self.result["per_problem"].items()}

    def answers(self, key: str) -> Sequence[str | None]:
        """What was read out of its answers to a problem; empty where the file does not say."""
        found: Sequence[str | None] = self.result.get("answers", {}).get(key, {}).get(self.name, [])
        return found

    def texts(self, key: str) -> list[str]:
        """Its completions for a problem, whole; none where they are gone."""
        if self.evaluation is None:
            return []
        index = list(self.evaluation.per_problem).index(key)
        return [answer.completion.text for answer in self.evaluation.rows[self.name][index]]

    def problem(self, key: str) -> Problem | None:
        """A problem of its, where that is still there."""
        return None if self.evaluation is None else self.evaluation.problems[key]

    def on(self, key: str) -> dict[str, Any]:
        """What it did with a problem."""
        return {"right": self.outcomes[key], "answers": list(self.answers(key)), "texts": self.texts(key)}


@dataclass(frozen=True)
class Comparison:
    """The second arm against the first, on the `n` problems that both were measured on.

    `difference` of the means, in shares, with its 95% bootstrap `interval` (None for fewer than two problems).
    `gained`, `lost` and `p_value` are McNemar's, for one answer a problem; None otherwise. `differ` names the problems
    with different outcomes, the largest differences first.
    """

    tasks: str
    first: str
    second: str
    n: int
    difference: float
    interval: tuple[float, float] | None
    gained: int | None
    lost: int | None
    p_value: float | None
    differ: tuple[str, ...]

    def sentence(self) -> str:
        """`mawps: B against A +5.0 points [-2.5, 12.5] (4 gained, 2 lost: 66.7% [22, 96], p = 0.69); 40 problems`."""
        between = "" if self.interval is None else " [{:.1f}, {:.1f}]".format(*(100 * x for x in self.interval))
        exact = (
            ""
            if self.p_value is None
            else f" ({self.gained} gained, {self.lost} lost{self._share()}, p = {self.p_value:.2g})"
        )
        points = f"{100 * self.difference:+.1f} points{between}"
        return f"{self.tasks}: {self.second} against {self.first} {points}{exact}; {self.n} problems"

    def _share(self) -> str:
        """The share gained of the problems that one of the two alone had right, with its 95% interval."""
        gained, decided = self.gained or 0, (self.gained or 0) + (self.lost or 0)
        low, high = clopper_pearson(gained, decided)
        return f": {percent(gained / decided)} [{100 * low:.0f}, {100 * high:.0f}]" if decided else ""

    def to_json(self) -> dict[str, Any]:
        interval = None if self.interval is None else list(self.interval)
        return {**self.__dict__, "interval": interval, "differ": list(self.differ)}


def arms_of(evaluations: Sequence[tuple[str, Evaluation]]) -> list[Arm]:
    """What is compared on one benchmark: each target and mode by its best, or all scores of a single one.

    `evaluations` are (target, evaluation) pairs. Where a mode has directions, these stand for it.
    """
    results = [(target, found, found.to_json()) for target, found in evaluations]
    if len(results) == 1:
        ((target, found, result),) = results
        return [Arm(target, result, name, found) for name in found.scores]
    return [Arm(target, result, found.best, found) for target, found, result in results]


def compare(first: Arm, second: Arm) -> Comparison | None:
    """The second against the first; None where they share no problem, or were asked other ones of the same ids."""
    one, two = first.outcomes, second.outcomes
    shared = [key for key in two if key in one]
    data = [arm.result.get("data", {}).get("fingerprint") for arm in (first, second)]
    if not shared or first.result["tasks"] != second.result["tasks"] or (all(data) and data[0] != data[1]):
        return None
    before, after = [one[key] for key in shared], [two[key] for key in shared]
    difference = (sum(after) - sum(before)) / len(shared)
    interval = paired_bootstrap(before, after)[1:] if len(shared) > 1 else None
    single = all(isinstance(x, bool) for x in [*before, *after])
    gained, lost, p_value = paired_test([*map(bool, before)], [*map(bool, after)]) if single else (None, None, None)
    differ = sorted((key for key in shared if one[key] != two[key]), key=lambda key: -abs(two[key] - one[key]))
    return Comparison(
        first.result["tasks"],
        *_names(first, second),
        len(shared),
        difference,
        interval,
        gained,
        lost,
        p_value,
        tuple(differ),
    )


def compared(evaluations: Sequence[tuple[str, Evaluation]]) -> list[tuple[Arm, Arm, Comparison]]:
    """The first arm of each benchmark against each of its others; `evaluations` are (target, evaluation) pairs."""
    found = []
    for tasks in dict.fromkeys(evaluation.tasks for _, evaluation in evaluations):
        first, *others = arms_of([pair for pair in evaluations if pair[1].tasks == tasks])
        for other in others:
            if (comparison := compare(first, other)) is not None:
                found.append((first, other, comparison))
    return found


def met(target: str, evaluation: Evaluation) -> list[tuple[Arm, Arm, Comparison]]:
    """Every two seats of an evaluation, the second against the first: by themselves or, where the mode is of duels,
    after reading the first's draft, in both orders. Whom the second gains, the first alone had wrong.
    """
    result = evaluation.to_json()
    drafts = [(name.partition("->")[0], name) for name in evaluation.directions]
    pairs = drafts if find_mode(evaluation.mode).duels else combinations(evaluation.scores, 2)
    arms = [tuple(Arm(target, result, name, evaluation) for name in pair) for pair in pairs]
    return [(first, second, found) for first, second in arms if (found := compare(first, second)) is not None]


def disagreements(first: Arm, second: Arm, comparison: Comparison, limit: int) -> list[dict[str, Any]]:
    """The first `limit` problems on which two arms differ, with the completions of each, to be read."""
    found = []
    for key in comparison.differ[:limit]:
        problem = second.problem(key) or first.problem(key)
        about = {} if problem is None else {"problem": problem.text, "reference": problem.answer}
        arms = {"first": first.on(key), "second": second.on(key)}
        found.append({"id": key, **about, **arms})
    return found


def _names(first: Arm, second: Arm) -> tuple[str, str]:
    """Names that tell two arms apart: by target, mode and seat, as far as these differ."""
    target = first.target != second.target
    mode = first.result["mode"] != second.result["mode"]
    names = []
    for arm in (first, second):
        parts = [*([arm.target] if target else []), *([arm.result["mode"]] if mode else []), arm.name]
        names.append(" ".join(parts))
    return names[0], names[1]
