"""Agon's controls at inference: a second pass that reads other things than a rival's draft, or is made by other seats.

- `self-refine`: a seat drafts, then reads its own recap in the prompt of the game of that name;
- `self-cascade`: the same for a seat that was never trained to refine, in the challenger's words;
- `moa`: two independent drafts, each refined by who wrote it after reading the other (a layer of two agents);
- `swap-seats`: every seat drafts for every seat, itself included: how much of a role lives in its adapter.

Source: Beliaev, "Agon", section 5 and table 1 (untrained Mixture-of-Agents, self-refinement, GRPO self-cascade). The
paper prints no prompts: as in its cascade, what is read is a recap without its final answer (ours). Swapped seats are
ours as well.
"""

from collections.abc import Sequence
from functools import partial
from itertools import permutations

from lite_selfplay.data import Problem
from lite_selfplay.games.agon.cascade import cascade, cascade_score, read_by_rival, recaps_of
from lite_selfplay.games.agon.game import fenced
from lite_selfplay.games.modes import Examiner, Found, Measured, Mode, Rows, alone
from lite_selfplay.games.prompts import asked_after, fill


def own_attempt_prompt(name: str, problem: Problem, attempt: str) -> str:
    """The prompt of a seat that reads its own attempt; `name` is the prompt's, `self_refine` or `self_cascade`."""
    own = fill(name, attempt=fenced(attempt)) if attempt else "No attempt of yours at this problem is available."
    return asked_after(problem, own)


def moa(examiner: Examiner, seats: Sequence[str]) -> Found:
    """Two independent drafts, of two seats or of one, each refined by its own seat; `A<-B`: A's, after reading B's.

    A refined answer costs three completions: both drafts and itself. One seat's two are called `base(1<-2)` and
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
    """A seat's own drafts, refined. The score's conversions are of its own drafts."""
    recaps = [recaps_of(examiner, rows) for rows in (own, other)]
    prompts = []
    for problem, *pairs in zip(examiner.problems, *recaps, strict=True):
        shown = [[fenced(text) if text else "(This attempt is not available.)" for text in row] for row in pairs]
        prompts.append([asked_after(problem, fill("moa", own=a, other=b)) for a, b in zip(*shown, strict=True)])
    answers = examiner.ask(seat, prompts, stage, f"{seat} refines its answers to")
    read = [answer for row in other for answer in row]
    return Measured(answers, cascade_score(own, answers, recaps[0], also_read=read))


_COLUMNS = ("conversions", "regressions")


def _twice(name: str, doing: str) -> Mode:
    """Each seat drafts by itself, then reads its own recap."""
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


SELF_REFINE = _twice("self_refine", "refines its answers to")
SELF_CASCADE = _twice("self_cascade", "goes over its answers to")
MOA = Mode(moa, stages=lambda seats: 4 if len(seats) == 1 else len(seats) ** 2, columns=_COLUMNS)
# Every ordered pair of seats, each with itself among them, in the cascade's prompts and randomness.
SWAP_SEATS = Mode(
    partial(cascade, pairs_of=lambda seats: [(first, second) for first in seats for second in seats]),
    stages=lambda seats: len(seats) + len(seats) ** 2,
    columns=_COLUMNS,
    seats=2,
)
