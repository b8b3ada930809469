"""Compares two arms on the same problems: the difference, its significance, and the problems where they differ.

An arm is one seat or direction of an evaluation. Single answers are compared by McNemar's exact test, shares of several
answers by the bootstrap over problems. Pure functions of `eval/*.json`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, compress
from typing import Any

from lite_selfplay.evaluation.result import Evaluation, Result, outcomes_of
from lite_selfplay.games.modes import find_mode
from lite_selfplay.games.presentation import with_interval
from lite_selfplay.stats import Paired, clopper_pearson, paired


@dataclass(frozen=True)
class Arm:
    """The seat or direction `name` in an evaluation of `target`; `evaluation` itself is known if it was just made."""

    target: str
    result: Result
    name: str
    evaluation: Evaluation | None = None

    @property
    def outcomes(self) -> dict[str, bool | float]:
        return outcomes_of(self.result, self.name)

    def on(self, key: str) -> dict[str, Any]:
        """Its outcome on a problem: the answers extracted from its completions, if the file has them, and the full
        completions, if they are in memory."""
        answers = self.result.get("answers", {}).get(key, {}).get(self.name, [])
        rows = (
            dict(zip(self.evaluation.per_problem, self.evaluation.rows[self.name], strict=True))
            if self.evaluation
            else {}
        )
        texts = [answer.completion.text for answer in rows.get(key, ())]
        return {"right": self.outcomes[key], "answers": list(answers), "texts": texts}


@dataclass(frozen=True)
class Comparison:
    """The second arm against the first, on the problems both were measured on (`found`).

    `differ` has the keys of the problems with different outcomes, the largest differences first.
    """

    tasks: str
    first: str
    second: str
    found: Paired
    differ: tuple[str, ...]

    def sentence(self) -> str:
        """`mawps: B against A +5.0 points [-2.5, 12.5] (4 gained, 2 lost: 66.7% [22, 96], p = 0.69); 40 problems`."""
        found, interval, exact = self.found, self.found.interval, ""
        between = " [{:.1f}, {:.1f}]".format(*(100 * bound for bound in interval)) if interval else ""
        if found.p_value is not None and found.gained is not None and found.lost is not None:
            decided = found.gained + found.lost
            gains = clopper_pearson(found.gained, decided)
            share = f": {with_interval(found.gained / decided, gains)}" if decided else ""
            exact = f" ({found.gained} gained, {found.lost} lost{share}, p = {found.p_value:.2g})"
        what = f"{self.tasks}: {self.second} against {self.first} {100 * found.difference:+.1f} points"
        return f"{what}{between}{exact}; {len(found.shared)} problems"

    def to_json(self) -> dict[str, Any]:
        """The difference of means, as a share, with its 95% bootstrap interval (null for fewer than two problems);
        `gained`, `lost` and `p_value` are McNemar's for one answer per problem, null otherwise."""
        found, interval = self.found, self.found.interval
        return {
            "tasks": self.tasks,
            "first": self.first,
            "second": self.second,
            "n": len(found.shared),
            "difference": found.difference,
            "interval": interval and list(interval),
            "gained": found.gained,
            "lost": found.lost,
            "p_value": found.p_value,
            "differ": list(self.differ),
        }


def compare(first: Arm, second: Arm) -> Comparison | None:
    """Compare the second arm to the first; None if they share no problem, or the same ids belong to other problems."""
    one, two = first.outcomes, second.outcomes
    data = [arm.result.get("data", {}).get("fingerprint") for arm in (first, second)]
    found = paired(one, two)
    if found is None or first.result["tasks"] != second.result["tasks"] or (all(data) and data[0] != data[1]):
        return None
    return Comparison(
        first.result["tasks"],
        *_names(first, second),
        found,
        differ=tuple(sorted((k for k in found.shared if one[k] != two[k]), key=lambda key: -abs(two[key] - one[key]))),
    )


def compared(evaluations: Sequence[tuple[str, Evaluation]]) -> list[tuple[Arm, Arm, Comparison]]:
    """Compare each benchmark's first arm to each of its others; `evaluations` are (target, evaluation) pairs.

    The arms are the best score of each target and mode; of a single evaluation, all its directions (or seats).
    """
    found = []
    for tasks in dict.fromkeys(evaluation.tasks for _, evaluation in evaluations):
        of = [(target, each) for target, each in evaluations if each.tasks == tasks]
        first, *others = [
            Arm(target, each.to_json(), name, each)
            for target, each in of
            for name in (each.scores if len(of) == 1 else [each.best])
        ]
        found += [(first, other, it) for other in others if (it := compare(first, other)) is not None]
    return found


def met(target: str, evaluation: Evaluation) -> list[tuple[Arm, Arm, Comparison]]:
    """Compare every two seats of an evaluation. In a mode of duels, compare instead each direction `A->B` to the draft
    of A alone, so that problems gained are those that the draft had wrong. Empty for modes of matches.
    """
    result, mode = evaluation.to_json(), find_mode(evaluation.mode)
    drafts = [(name.partition("->")[0], name) for name in evaluation.directions]
    pairs = drafts if mode.duels else () if mode.matches else combinations(evaluation.scores, 2)
    arms = [tuple(Arm(target, result, name, evaluation) for name in pair) for pair in pairs]
    return [(first, second, found) for first, second in arms if (found := compare(first, second)) is not None]


def disagreements(first: Arm, second: Arm, comparison: Comparison, limit: int) -> list[dict[str, Any]]:
    """The first `limit` problems on which two arms differ, with the completions of each."""
    known = second.evaluation or first.evaluation
    return [
        {
            "id": key,
            **({"problem": known.problems[key].text, "reference": known.problems[key].answer} if known else {}),
            "first": first.on(key),
            "second": second.on(key),
        }
        for key in comparison.differ[:limit]
    ]


def _names(first: Arm, second: Arm) -> tuple[str, str]:
    """Names for two arms, made of their seats and, if these differ, their targets and modes."""
    one, two = ((arm.target, arm.result["mode"]) for arm in (first, second))
    differ = [mine != other for mine, other in zip(one, two, strict=True)]
    return " ".join([*compress(one, differ), first.name]), " ".join([*compress(two, differ), second.name])
