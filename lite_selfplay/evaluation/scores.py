"""What an evaluation found: pass rates with intervals, lengths, and what a challenge did to its draft. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lite_selfplay.data import Completion, Sampling
from lite_selfplay.stats import clopper_pearson


@dataclass(frozen=True)
class Judged:
    """A completion, and what its checker said of it."""

    completion: Completion
    correct: bool
    well_formed: bool


@dataclass(frozen=True)
class Score:
    """How a seat, or one seat challenging another, did on `n` problems with `samples` completions each.

    - `pass_at_1`: the mean over problems of the share that was right; `right` is the same as a number of problems.
    - `ci95`: its Clopper-Pearson interval from `right`, rounded, out of `n`. More than one sample a problem makes the
      estimate better than this interval says: it is conservative there.
    - `well_formed`, `truncated`: shares of the final completions in the output format, and cut off by the token limit.
    - `prompts_too_long`: final prompts over the limit, which were never read and count as wrong.
    - `tokens_final_mean`, `tokens_total_mean`: the mean length of what was answered last, and of all stages together.
    """

    pass_at_1: float
    ci95: tuple[float, float]
    n: int
    samples: int
    right: float
    well_formed: float
    truncated: float
    prompts_too_long: int
    tokens_final_mean: float
    tokens_total_mean: float

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ci95": list(self.ci95)}


@dataclass(frozen=True)
class CascadeScore(Score):
    """A `Score` of challenges, and how they stand to the drafts they read.

    `conversions` (wrong draft, right challenge), `regressions`, `both_right` and `both_wrong` count the n * samples
    pairs. `empty_summaries` is the share of drafts that left nothing to read. The mean length of a challenge is also
    given by whether its draft was right; None where there was no such draft.
    """

    conversions: int
    regressions: int
    both_right: int
    both_wrong: int
    empty_summaries: float
    tokens_final_mean_after_right: float | None
    tokens_final_mean_after_wrong: float | None


@dataclass(frozen=True)
class Evaluation:
    """One measurement of some seats on some problems.

    `seats` holds each seat's score alone; `directions`, in a cascade, that of each challenge by its name (`A->B`: A
    drafts, B answers). `per_problem[id][name]` says whether that problem was right (the share that was, for several
    samples), so that two evaluations can be compared pair by pair. `about` is carried into the JSON as it stands.
    """

    mode: str
    tasks: str
    sampling: Sampling
    seed: int
    seats: Mapping[str, Score]
    directions: Mapping[str, CascadeScore]
    per_problem: Mapping[str, Mapping[str, bool | float]]
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scores(self) -> Mapping[str, Score]:
        """What the mode is about: the directions of a cascade, else the seats."""
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
            "best": self.best,
            "pass_at_1": best.pass_at_1,
            "ci95": list(best.ci95),
            "tokens_final_mean": best.tokens_final_mean,
            "tokens_total_mean": best.tokens_total_mean,
            "seats": {name: score.to_json() for name, score in self.seats.items()},
        }
        if self.directions:
            result["directions"] = {name: score.to_json() for name, score in self.directions.items()}
            result["mean_of_directions"] = self.mean_of_directions
        return {**result, "per_problem": {key: dict(found) for key, found in self.per_problem.items()}}


def single_score(answers: Sequence[Sequence[Judged]]) -> Score:
    """The score of answers, a row of equally many a problem."""
    return Score(**_common(answers, [0] * sum(map(len, answers))))


def cascade_score(
    drafts: Sequence[Sequence[Judged]], challenges: Sequence[Sequence[Judged]], attempts: Sequence[Sequence[str]]
) -> CascadeScore:
    """The score of challenges, each beside the draft it read and what was visible of it."""
    pairs = [(d, c) for row in zip(drafts, challenges, strict=True) for d, c in zip(*row, strict=True)]
    shown = [text for row in attempts for text in row]

    def count(before: bool, after: bool) -> int:
        return sum(draft.correct == before and challenge.correct == after for draft, challenge in pairs)

    def length_after(before: bool) -> float | None:
        lengths = [_tokens(challenge) for draft, challenge in pairs if draft.correct == before]
        return sum(lengths) / len(lengths) if lengths else None

    return CascadeScore(
        **_common(challenges, [_tokens(draft) for draft, _ in pairs]),
        conversions=count(False, True),
        regressions=count(True, False),
        both_right=count(True, True),
        both_wrong=count(False, False),
        empty_summaries=sum(not text for text in shown) / len(shown),
        tokens_final_mean_after_right=length_after(True),
        tokens_final_mean_after_wrong=length_after(False),
    )


def shares_right(answers: Sequence[Sequence[Judged]]) -> list[bool | float]:
    """For each problem, whether its one answer was right, or the share of its several answers that were."""
    return [row[0].correct if len(row) == 1 else sum(a.correct for a in row) / len(row) for row in answers]


def _common(answers: Sequence[Sequence[Judged]], tokens_before: Sequence[int]) -> dict[str, Any]:
    """The fields of `Score`; `tokens_before[i]` is how long the stages before answer i were."""
    n, samples, flat = len(answers), len(answers[0]), [answer for row in answers for answer in row]
    total = len(flat)
    correct = sum(answer.correct for answer in flat)
    final = sum(map(_tokens, flat))
    return {
        "pass_at_1": correct / total,
        "ci95": clopper_pearson(round(correct / samples), n),
        "n": n,
        "samples": samples,
        "right": correct / samples,
        "well_formed": sum(answer.well_formed for answer in flat) / total,
        "truncated": sum(answer.completion.stop == "length" for answer in flat) / total,
        "prompts_too_long": sum(answer.completion.stop == "prompt_too_long" for answer in flat),
        "tokens_final_mean": final / total,
        "tokens_total_mean": (final + sum(tokens_before)) / total,
    }


def _tokens(answer: Judged) -> int:
    return len(answer.completion.token_ids)
