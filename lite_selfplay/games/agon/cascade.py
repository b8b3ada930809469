"""Measuring seats as they play: each drafts for each other one, which answers after reading the recap.

    for each seat X:            a ~ X(. | x)                         `samples` answers a problem
    for each pair X, Y:         b ~ Y(. | x, recap of a)             one challenge a draft

The answers of the first line are the drafts of the second: nothing is sampled twice. A seat by itself reads its own.
Prompts and recaps are those of training. Source: Beliaev, "Agon" (temperature 0.6, top-p 0.95, one completion a stage,
both directions reported).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations

from lite_selfplay.data import Completion, Problem
from lite_selfplay.games.agon.game import challenge_prompt, recap_of
from lite_selfplay.games.modes import Examiner, Found, Judged, Measured, Mode, Rows, Score, alone, score_of
from lite_selfplay.games.table import Reader


@dataclass(frozen=True)
class CascadeScore(Score):
    """A `Score` of challenges, and how they stand to the drafts they read.

    `conversions` (wrong draft, right challenge), `regressions`, `both_right` and `both_wrong` count the n * samples
    pairs. `empty_summaries` is the share of drafts whose recap was empty. The mean length of a challenge is also given
    by whether its draft was right; None where there was no such draft.
    """

    conversions: int
    regressions: int
    both_right: int
    both_wrong: int
    empty_summaries: float
    tokens_final_mean_after_right: float | None
    tokens_final_mean_after_wrong: float | None


def seat_pairs(seats: Sequence[str]) -> list[tuple[str, str]]:
    """Who drafts for whom: every ordered pair of seats, or one seat for itself."""
    return list(permutations(seats, 2)) or [(seats[0], seats[0])]


def cascade(
    examiner: Examiner,
    seats: Sequence[str],
    pairs_of: Callable[[Sequence[str]], Iterable[tuple[str, str]]] = seat_pairs,
    prompt: Callable[[Problem, str], str] = challenge_prompt,
    *,
    stage: str = "challenge",
    doing: str = "{second} challenges {first} on",
) -> Found:
    """Each seat alone, and every direction between two of them. `stage` and `doing`: see `Examiner.ask`."""
    drafts = alone(examiner, seats)
    pairs = list(pairs_of(seats))
    recaps = {seat: recaps_of(examiner, drafts[seat].answers) for seat in dict.fromkeys(first for first, _ in pairs)}
    directions = {}
    for first, second in pairs:
        prompts = [
            [prompt(problem, recap) for recap in row]
            for problem, row in zip(examiner.problems, recaps[first], strict=True)
        ]
        answers = examiner.ask(second, prompts, stage, doing.format(first=first, second=second))
        score = cascade_score(drafts[first].answers, answers, recaps[first])
        directions[f"{first}->{second}"] = Measured(answers, score)
    return Found(drafts, directions)


def cascade_score(
    drafts: Rows, challenges: Rows, recaps: Sequence[Sequence[str]], *, also_read: Sequence[Judged] = ()
) -> CascadeScore:
    """The score of challenges, each beside the draft it read and the recap it was shown.

    `also_read` are further drafts that the challenges cost.
    """
    pairs = [(d, c) for row in zip(drafts, challenges, strict=True) for d, c in zip(*row, strict=True)]
    shown = [text for row in recaps for text in row]

    def count(before: bool, after: bool) -> int:
        return sum(draft.correct == before and challenge.correct == after for draft, challenge in pairs)

    def length_after(before: bool) -> float | None:
        lengths = [challenge.tokens for draft, challenge in pairs if draft.correct == before]
        return sum(lengths) / len(lengths) if lengths else None

    score: CascadeScore = score_of(
        challenges,
        before=[*(draft for draft, _ in pairs), *also_read],
        kind=CascadeScore,
        conversions=count(False, True),
        regressions=count(True, False),
        both_right=count(True, True),
        both_wrong=count(False, False),
        empty_summaries=sum(not text for text in shown) / len(shown),
        tokens_final_mean_after_right=length_after(True),
        tokens_final_mean_after_wrong=length_after(False),
    )
    return score


def recaps_of(examiner: Examiner, drafts: Rows) -> list[list[str]]:
    """What a challenger may see of each draft."""
    return [
        [recap_of(examiner.table, draft.completion, problem) for draft in row]
        for problem, row in zip(examiner.problems, drafts, strict=True)
    ]


def read_by_rival(
    table: Reader, draft: Completion, problem: Problem, prompt: Callable[[Problem, str], str] = challenge_prompt
) -> tuple[str, str]:
    """What whoever answers next may see of a draft, and its prompt."""
    recap = recap_of(table, draft, problem)
    return recap, prompt(problem, recap)


CASCADE = Mode(
    cascade,
    reads=read_by_rival,
    stages=lambda seats: len(seats) + len(seat_pairs(seats)),
    columns=("conversions", "regressions"),
    duels=True,
)
