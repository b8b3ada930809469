"""Evaluates seats as they play: each seat drafts, and every other answers after reading the draft's recap.

    for each seat X:            a ~ X(. | x)                         `samples` answers per problem
    for each pair X, Y:         b ~ Y(. | x, recap of a)             one challenge per draft

The answers of the first line are the drafts of the second, so nothing is sampled twice. A single seat reads its own
drafts. Prompts and recaps are those of training. Source: Beliaev, "Agon" (temperature 0.6, top-p 0.95, one completion
per stage, both directions reported).

The controls change which drafts are read, or who reads them:

- `self-refine`: a seat drafts, then reads its own recap in the prompt of the game of that name (`SelfRefine`);
- `self-cascade`: the same for a seat that was not trained to refine, with the challenger's words, but about an attempt
  of its own and without "You win by ...";
- `moa`: two independent drafts, each refined by its writer after reading the other (a layer of two agents);
- `swap-seats`: every seat drafts for every seat, including itself, which shows how much of a role is in its adapter.

Source: section 5 and table 1 (untrained Mixture-of-Agents, self-refinement, GRPO self-cascade). The paper prints no
prompts: as in its cascade, seats read a recap without its final answer (ours). Swapped seats are ours as well.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, permutations
from statistics import fmean

from lite_selfplay.data import Completion, Problem
from lite_selfplay.games.agon.agon import (
    challenge_prompt,
    own_attempt_prompt,
    recap_of,
)
from lite_selfplay.games.modes import Examiner, Found, Judged, Measured, Mode, Rows, Score, alone, score_of
from lite_selfplay.games.prompts import asked_after, fenced, fill
from lite_selfplay.games.table import Reader


def seat_pairs(seats: Sequence[str]) -> list[tuple[str, str]]:
    """Every ordered pair of seats, drafter first, or a single seat paired with itself."""
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
    """Measures each seat alone, then pairs, the first's drafts read by the second. `stage`, `doing`: `Examiner.ask`."""
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
) -> Score:
    """The score of challenges, compared with the drafts they read.

    `conversions` (wrong draft, right challenge), `regressions`, `both_right` and `both_wrong` count the n * samples
    pairs. `empty_summaries` is the share of drafts with an empty recap. The mean length of a challenge is also split by
    whether its draft was right; None without such a draft. `also_read`: further drafts whose tokens count as a cost of
    the challenges.
    """
    pairs = [(d, c) for row in zip(drafts, challenges, strict=True) for d, c in zip(*row, strict=True)]
    shown = [text for row in recaps for text in row]
    counts = Counter((draft.correct, challenge.correct) for draft, challenge in pairs)
    after_right, after_wrong = ([c.tokens for draft, c in pairs if draft.correct == side] for side in (True, False))
    more = {
        "conversions": counts[False, True],
        "regressions": counts[True, False],
        "both_right": counts[True, True],
        "both_wrong": counts[False, False],
        "empty_summaries": sum(not text for text in shown) / len(shown),
        "tokens_final_mean_after_right": fmean(after_right) if after_right else None,
        "tokens_final_mean_after_wrong": fmean(after_wrong) if after_wrong else None,
    }
    return score_of(challenges, before=[*(draft for draft, _ in pairs), *also_read], more=more)


def recaps_of(examiner: Examiner, drafts: Rows) -> list[list[str]]:
    """The recap of each draft, as a challenger sees it."""
    return [
        [recap_of(examiner.table, draft.completion, problem) for draft in row]
        for problem, row in zip(examiner.problems, drafts, strict=True)
    ]


def read_by_rival(
    table: Reader, draft: Completion, problem: Problem, prompt: Callable[[Problem, str], str] = challenge_prompt
) -> tuple[str, str]:
    """The part of a draft that the next seat sees, and that seat's prompt."""
    recap = recap_of(table, draft, problem)
    return recap, prompt(problem, recap)


# The controls


def moa(examiner: Examiner, seats: Sequence[str]) -> Found:
    """Two independent drafts, of two seats or of one, each refined by its writer; `A<-B`: A's, after reading B's.

    A refined answer costs three completions: both drafts and itself. A single seat's two are named `base(1<-2)` and
    `base(2<-1)`.
    """
    drafts = alone(examiner, seats)
    first = {seat: drafts[seat].answers for seat in seats}
    if len(seats) == 1:
        (seat,) = seats
        prompts = [[examiner.opening(problem)] for problem in examiner.problems]
        second = examiner.ask(seat, prompts, "second draft", f"{seat} answers again")
        found = {
            f"{seat}({one}<-{two})": _refined(examiner, seat, own, other, f"refinement {one}")
            for one, two, own, other in (("1", "2", first[seat], second), ("2", "1", second, first[seat]))
        }
        return Found(drafts, found)
    return Found(
        drafts,
        {f"{a}<-{b}": _refined(examiner, a, first[a], first[b], "refinement 1") for a, b in permutations(seats, 2)},
    )


def _refined(examiner: Examiner, seat: str, own: Rows, other: Rows, stage: str) -> Measured:
    """A seat's refined drafts. The score's conversions compare them with the seat's own drafts."""
    recaps = [recaps_of(examiner, rows) for rows in (own, other)]
    missing = "(This attempt is not available.)"
    shown = [[[fenced(text) if text else missing for text in row] for row in rows] for rows in recaps]
    prompts = [
        [asked_after(problem, fill("moa", own=a, other=b)) for a, b in zip(*rows, strict=True)]
        for problem, *rows in zip(examiner.problems, *shown, strict=True)
    ]
    answers = examiner.ask(seat, prompts, stage, f"{seat} refines its answers to")
    return Measured(answers, cascade_score(own, answers, recaps[0], also_read=[*chain.from_iterable(other)]))


_COLUMNS = ("conversions", "regressions")


def _twice(name: str, doing: str) -> Mode:
    """The mode in which each seat drafts, then reads its own recap."""
    prompt = partial(own_attempt_prompt, name)
    own = partial(
        cascade,
        pairs_of=lambda seats: zip(seats, seats, strict=True),
        prompt=prompt,
        stage=name.replace("_", "-"),
        doing=f"{{second}} {doing}",
    )
    reads = partial(read_by_rival, prompt=prompt)
    return Mode(own, stages=lambda seats: 2 * len(seats), columns=_COLUMNS, reads=reads)


CASCADE = Mode(
    cascade, reads=read_by_rival, stages=lambda seats: len(seats) + len(seat_pairs(seats)), columns=_COLUMNS, duels=True
)
SELF_REFINE = _twice("self_refine", "refines its answers to")
SELF_CASCADE = _twice("self_cascade", "goes over its answers to")
MOA = Mode(moa, stages=lambda seats: 4 if len(seats) == 1 else len(seats) ** 2, columns=_COLUMNS)
# Every ordered pair of seats, including each with itself, in the cascade's prompts and with its seeds.
SWAP_SEATS = Mode(
    partial(cascade, pairs_of=lambda seats: [(first, second) for first in seats for second in seats]),
    stages=lambda seats: len(seats) + len(seats) ** 2,
    columns=_COLUMNS,
    seats=2,
)
