"""What an evaluation found: the scores of seats, and of seats together. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lite_selfplay.data import Problem, Sampling
from lite_selfplay.evaluation.tables import as_markdown, as_text, comparison
from lite_selfplay.games.modes import Rows, Score
from lite_selfplay.stats import maj_at_k, mean_at_k, pass_at_k

AT_K = ("pass_at_k", "mean_at_k", "maj_at_k")
LONGEST_ANSWER = 200
"""Characters of an answer that the JSON holds."""


@dataclass(frozen=True)
class Evaluation:
    """One measurement of some seats on some problems.

    `seats` holds each seat's score alone; `directions` that of seats together, where the mode has any, by their names
    (`A->B`: B answers after A). `per_problem[id][name]` says whether that problem was right (the share that was, for
    several samples), so that two evaluations can be compared pair by pair; `answers` holds what was read out of its
    samples. `at_k[name]` are its pass@k, mean@k and maj@k, means over problems by k. `shots` worked examples stood
    before each problem. `about` is carried into the JSON as it is.

    What does not make two evaluations differ: the `seconds` it took, and the `rows` and `problems` themselves.
    """

    mode: str
    tasks: str
    sampling: Sampling
    seed: int
    seats: Mapping[str, Score]
    directions: Mapping[str, Score]
    per_problem: Mapping[str, Mapping[str, bool | float]]
    about: Mapping[str, Any] = field(default_factory=dict)
    at_k: Mapping[str, Mapping[str, Mapping[int, float]]] = field(default_factory=dict)
    answers: Mapping[str, Mapping[str, Sequence[str | None]]] = field(default_factory=dict)
    shots: int = 0
    seconds: float = field(default=0.0, compare=False)
    rows: Mapping[str, Rows] = field(default_factory=dict, compare=False, repr=False)
    problems: Mapping[str, Problem] = field(default_factory=dict, compare=False, repr=False)

    @property
    def scores(self) -> Mapping[str, Score]:
        """What the mode is about: the directions where there are any, else the seats."""
        return self.directions or self.seats

    @property
    def best(self) -> str:
        """The name with the highest pass@1; of equals, the first."""
        return max(self.scores, key=lambda name: self.scores[name].pass_at_1)

    @property
    def mean_of_directions(self) -> float | None:
        """The mean pass@1 of the directions, which no choice of the better one flatters; None without directions."""
        if not self.directions:
            return None
        return sum(score.pass_at_1 for score in self.directions.values()) / len(self.directions)

    def __str__(self) -> str:
        """A table of every seat and direction, with 95% intervals."""
        return as_text(*comparison({self.tasks: self.to_json()}))

    def _repr_markdown_(self) -> str:
        return as_markdown(*comparison({self.tasks: self.to_json()}))

    def to_json(self) -> dict[str, Any]:
        """The object that `eval/*.json` holds; its own pass@1, interval and lengths are those of `best`."""
        best = self.scores[self.best]
        result: dict[str, Any] = {
            "mode": self.mode,
            "tasks": self.tasks,
            **self.about,
            "n": best.n,
            "samples": best.samples,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "seed": self.seed,
            "max_completion_tokens": self.sampling.max_tokens,
            "shots": self.shots,
            "best": self.best,
            "pass_at_1": best.pass_at_1,
            "ci95": list(best.ci95),
            "tokens_final_mean": best.tokens_final_mean,
            "tokens_total_mean": best.tokens_total_mean,
            "seats": {name: self._score(name, score) for name, score in self.seats.items()},
        }
        if self.directions:
            result["directions"] = {name: self._score(name, score) for name, score in self.directions.items()}
            result["mean_of_directions"] = self.mean_of_directions
        return {
            **result,
            "per_problem": {key: dict(found) for key, found in self.per_problem.items()},
            "answers": {
                key: {who: [*map(_shortened, row)] for who, row in a.items()} for key, a in self.answers.items()
            },
        }

    def _score(self, name: str, score: Score) -> dict[str, Any]:
        found = self.at_k.get(name, {})
        return {**score.to_json(), **{stat: {str(k): v for k, v in by_k.items()} for stat, by_k in found.items()}}


def at_k(rows: Rows, ks: Sequence[int]) -> dict[str, dict[int, float]]:
    """pass@k, mean@k and maj@k of answers, each a mean over problems by k; of a k above the number of answers none."""
    found: dict[str, dict[int, float]] = {stat: {} for stat in AT_K}
    right = [[answer.correct for answer in row] for row in rows]
    classes = [[answer.key for answer in row] for row in rows]
    for k in sorted(set(ks)):
        if k > len(rows[0]):
            continue
        found["pass_at_k"][k] = sum(pass_at_k(sum(row), len(row), k) for row in right) / len(rows)
        found["mean_at_k"][k] = sum(mean_at_k(row, k) for row in right) / len(rows)
        found["maj_at_k"][k] = sum(maj_at_k(c, row, k) for c, row in zip(classes, right, strict=True)) / len(rows)
    return found


def _shortened(answer: str | None) -> str | None:
    return answer if answer is None or len(answer) <= LONGEST_ANSWER else answer[: LONGEST_ANSWER - 1] + "…"
