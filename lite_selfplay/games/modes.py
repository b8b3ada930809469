"""Evaluation modes: ways to measure seats, by name.

    >>> register_mode("twice", Mode(measure_twice, stages=lambda seats: 2 * len(seats)))

A mode asks seats for answers through an `Examiner`, which samples and checks them, and returns a `Found`. The examiner
decides the problems, the number of samples and the seeds.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from lite_selfplay.data import Completion, Problem, Sampling
from lite_selfplay.errors import GameError
from lite_selfplay.games.table import Reader
from lite_selfplay.scan import Registry
from lite_selfplay.stats import clopper_pearson
from lite_selfplay.tasks.task import Task


@dataclass(frozen=True)
class Judged:
    """A completion and the checker's judgement.

    `answer` is the extracted answer, None if there is none. `key` is its class in a vote: equivalent answers share a
    key, and an answer without a value has none.
    """

    completion: Completion
    correct: bool
    well_formed: bool
    answer: str | None = None
    key: str | None = None

    @property
    def tokens(self) -> int:
        return len(self.completion.token_ids)


Rows = Sequence[Sequence[Judged]]  # the answers to each problem, the same number for each


@dataclass(frozen=True)
class Score:
    """The results of a seat, or of several in sequence, on `n` problems with `samples` completions each.

    - `pass_at_1`: the mean over problems of the share of right completions; `right` is the same
      as a number of problems.
    - `ci95`: its Clopper-Pearson interval, from `right` (rounded) out of `n`. With several samples per problem the
      estimate is better than this interval says.
    - `well_formed`, `truncated`, `loops`: the shares of final completions in the output format; stopped by the token
      limit or for repetition; stopped for repetition.
    - `prompts_too_long`: final prompts over the limit, which are not sampled and count as wrong.
    - `tokens_final_mean`, `tokens_total_mean`: the mean length of the final answers, and of all stages together.

    - `more`: a mode's further figures, by the names under which they are written; its `columns` are shown as well.
    """

    pass_at_1: float
    ci95: tuple[float, float]
    n: int
    samples: int
    right: float
    well_formed: float
    truncated: float
    loops: float
    prompts_too_long: int
    tokens_final_mean: float
    tokens_total_mean: float
    more: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        more = values.pop("more")
        return {**values, "ci95": list(self.ci95), **more}


def score_of(answers: Rows, *, before: Sequence[Judged] = (), kind: type[Score] = Score, **own: Any) -> Any:
    """The score of answers. `before` holds the answers of earlier stages; `own` is `more`, or the fields that `kind`
    adds."""
    n, samples, every = len(answers), len(answers[0]), [answer for row in answers for answer in row]
    total, final = len(every), sum(answer.tokens for answer in every)
    correct = sum(answer.correct for answer in every)
    return kind(
        pass_at_1=correct / total,
        ci95=clopper_pearson(round(correct / samples), n),
        n=n,
        samples=samples,
        right=correct / samples,
        well_formed=sum(answer.well_formed for answer in every) / total,
        truncated=sum(answer.completion.cut_off for answer in every) / total,
        loops=sum(answer.completion.stop == "loop" for answer in every) / total,
        prompts_too_long=sum(answer.completion.stop == "prompt_too_long" for answer in every),
        tokens_final_mean=final / total,
        tokens_total_mean=(final + sum(answer.tokens for answer in before)) / total,
        **own,
    )


@dataclass(frozen=True)
class Measured:
    """The final answers of a seat, or of several in sequence, and their score."""

    answers: Rows
    score: Score

    @property
    def shares_right(self) -> list[bool | float]:
        """For each problem, whether its only answer was right, or the share of right ones among several."""
        return [row[0].correct if len(row) == 1 else sum(a.correct for a in row) / len(row) for row in self.answers]


class Examiner(Protocol):
    """Asks seats the problems of an evaluation, the same ones at every stage: a mode's whole interface to it."""

    problems: Sequence[Problem]
    sampling: Sampling

    @property
    def table(self) -> Reader:
        """Reads completions."""

    def opening(self, problem: Problem) -> str:
        """The prompt for a seat alone: the solver's, after the evaluation's worked examples."""

    def ask(self, seat: str, prompts: Sequence[Sequence[str]], stage: str, doing: str) -> list[list[Judged]]:
        """A seat's answers to each problem, judged. `prompts[i]` asks about problem i.

        A problem's single prompt is answered as often as the evaluation samples; if there are as many prompts as
        samples, each is answered once. `stage` determines the seeds: one stage has the same randomness for every seat.
        `doing` is shown before the numbers of the problems: `A answers`. Raises GameError for any other number of
        prompts.
        """

    def say(
        self,
        seat: str,
        prompts: Sequence[str],
        sampling: Sampling,
        about: Sequence[tuple[int, object]],
        beginnings: Sequence[str] | None = None,
    ) -> list[Completion]:
        """One completion of each prompt by a seat, not judged, for modes that ask step by step.

        `about[i]`, the problem's index and anything else, determines the seed of prompt i. `beginnings`: see
        `Table.ask`.
        """

    def judge(self, answers: Sequence[tuple[Completion, int]]) -> list[Judged]:
        """Judge (completion, index of its problem) pairs. Raises WorkerStartError if the machine is too busy to."""

    def progress(self, done: int, doing: str) -> None:
        """Show the number of answers `done`, over all the mode's stages, and the current activity."""


@dataclass(frozen=True)
class Found:
    """A mode's results: each seat alone, and seats together under names such as `A->B` (A answers before B)."""

    seats: Mapping[str, Measured]
    directions: Mapping[str, Measured] = field(default_factory=dict)


@dataclass(frozen=True)
class Mode:
    """A way to measure seats.

    `stages` counts the answers to each problem. `columns`: keys of `Score.more` to show beside the other fields.
    `samples`: the default number of completions per problem; at least `least` of them and `seats` seats are needed.
    `tasks` reads the problems of a mode that does not measure on a task's problems. `reads`, for modes in which seats
    answer one after the other, returns the part of an earlier answer that a seat reads, and the whole prompt around it.
    `matches`: its scores are of pairs that play against each other, by default at the run's temperature and top-p 1.
    `duels`: its directions are all ordered pairs of seats, `X->Y` being Y's answers after X's, and their scores have
    the figures of `agon.cascade.cascade_score`.
    """

    measure: Callable[[Examiner, Sequence[str]], Found]
    stages: Callable[[Sequence[str]], int] = len
    columns: Sequence[str] = ()
    samples: int = 1
    least: int = 1
    seats: int = 1
    tasks: Callable[[str], Task] | None = None
    reads: Callable[[Reader, Completion, Problem], tuple[str, str]] | None = None
    duels: bool = False
    matches: bool = False


def alone(examiner: Examiner, seats: Sequence[str]) -> dict[str, Measured]:
    """Each seat's answers to every problem in the solver's prompt, without others' answers."""
    prompts = [[examiner.opening(problem)] for problem in examiner.problems]
    answers = {seat: examiner.ask(seat, prompts, "answer", f"{seat} answers") for seat in seats}
    return {seat: Measured(rows, score_of(rows)) for seat, rows in answers.items()}


# A vote: each seat answers several times, and the most frequent answer is elected (Wang et al. 2022, "Self-Consistency
# Improves Chain of Thought Reasoning in Language Models"). Votes are counted by answer class
# (`lite_selfplay.verify.keys`); a missing answer, or one without a value, is a vote for nothing.


def vote(examiner: Examiner, seats: Sequence[str]) -> Found:
    """Each seat's elected answers."""
    return Found({seat: elected(measured.answers) for seat, measured in alone(examiner, seats).items()})


def elected(answers: Rows, also_read: Sequence[Judged] = ()) -> Measured:
    """The elected answer to each problem. `also_read`: further completions whose tokens count as a cost, like those of
    the answers that were not elected.

    The score has `votes`, the answers to each problem, and `share`, the mean share of them in the elected class.
    """
    winners = [_winner(row) for row in answers]
    votes = len(answers[0])
    others = [a for row, won in zip(answers, winners, strict=True) for a in row if a is not won]
    shares = [
        sum(won.key is not None and answer.key == won.key for answer in row) / votes
        for row, won in zip(answers, winners, strict=True)
    ]
    rows = [[replace(won, correct=won.correct and won.key is not None)] for won in winners]
    more = {"votes": votes, "share": sum(shares) / len(shares)}
    return Measured(rows, score_of(rows, before=[*others, *also_read], more=more))


def _winner(row: Sequence[Judged]) -> Judged:
    """The first answer of the largest class; among equally large classes, of the one sampled first.

    Votes for nothing (no answer, or none with a value) are a class too; it never counts as right.
    """
    counts = Counter(answer.key for answer in row)
    return max(row, key=lambda answer: counts[answer.key])


SINGLE = Mode(lambda examiner, seats: Found(alone(examiner, seats)))
VOTE = Mode(vote, columns=("share",), samples=5, least=2)
MODES = Registry[Mode](
    "evaluation mode",
    {
        "single": "games.modes:SINGLE",
        "cascade": "games.agon.cascade:CASCADE",
        "self-refine": "games.agon.cascade:SELF_REFINE",
        "self-cascade": "games.agon.cascade:SELF_CASCADE",
        "moa": "games.agon.cascade:MOA",
        "swap-seats": "games.agon.cascade:SWAP_SEATS",
        "vote": "games.modes:VOTE",
        "critic": "games.spc.critic_modes:CRITIC_MODE",
        "search": "games.spc.critic_modes:SEARCH_MODE",
        "versus": "games.matches.versus:VERSUS",
    },
    error=GameError,
)


def register_mode(name: str, mode: Mode) -> None:
    """Register a mode under a name, replacing an earlier one. Raises GameError for a name of the library's own."""
    MODES.add(name, mode)


def find_mode(name: str) -> Mode:
    """The mode of this name. Raises UnknownNameError, with similar names."""
    *names, last = MODES.names()
    return MODES.find(name, f"There are {', '.join(names)} and {last}.")
