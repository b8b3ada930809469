"""Majority votes: the label of a question that nobody answered beforehand is what most of its answers say.

Votes are counted by answer class (`lite_selfplay.verify.keys`), worked out from each answer alone, so that neither the
order of the answers nor the direction of a comparison matters. A completion without an answer votes for nothing, and so
does an answer that states no value: the question restated, or "I do not know" (`lite_selfplay.verify.non_answers`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lite_selfplay.data import Completion, Verdict
from lite_selfplay.games.table import Table
from lite_selfplay.stats import majority_vote
from lite_selfplay.verify.format import well_formed
from lite_selfplay.verify.keys import spoken_value, vote_key


@dataclass(frozen=True)
class Vote:
    """What a group of answers to one question agrees on.

    `label` is the plainest answer of the largest class, None on a tie or where no class is larger than the votes for
    nothing; `votes` that class's size, 0 in the latter case; `of` the number of answers, votes for nothing included.
    `agrees[k]`: whether answer k is in the class of the label. `answers` as they were read, None where none was found.
    """

    label: str | None
    votes: int
    of: int
    agrees: tuple[bool, ...]
    answers: tuple[str | None, ...] = ()

    @property
    def share(self) -> float:
        return self.votes / self.of if self.of else 0.0


def vote(table: Table, groups: Sequence[Sequence[Completion]], *, figures: bool = False) -> list[Vote]:
    """The majority of each group of completions.

    Votes for nothing never win, but count in the denominator; with `figures` they are also the answers without a digit.
    A tie for the largest class has no label, and neither has a group in which most votes are for nothing.
    """
    return [count([table.read_answer(completion) for completion in group], figures=figures) for group in groups]


def count(answers: Sequence[str | None], *, figures: bool = False) -> Vote:
    """The vote of written answers. The same answers in any order give the same label, votes and agreement."""
    classes = [None if answer is None else _class(answer, figures) for answer in answers]
    winner, votes = majority_vote(classes)
    agrees = tuple(winner is not None and key == winner for key in classes)
    spoken = [spoken_value(answer) for answer, right in zip(answers, agrees, strict=True) if right and answer]
    return Vote(
        min(spoken, key=lambda answer: (len(answer), answer), default=None), votes, len(classes), agrees, tuple(answers)
    )


def _class(answer: str, figures: bool) -> str | None:
    return None if figures and not re.search(r"\d", answer) else vote_key(answer)


def verdicts_by_vote(completions: Sequence[Completion], counted: Vote, *, thinks: bool) -> list[Verdict]:
    """Each completion's verdict by the vote on its group: correct where it agrees with the label."""
    judged = zip(completions, counted.answers, counted.agrees, strict=True)
    return [
        Verdict(
            correct=agrees,
            score=float(agrees),
            answer=answer,
            well_formed=well_formed(completion.text, thinks, completion.prefill),
            reason="" if agrees else _reason(answer, counted),
        )
        for completion, answer, agrees in judged
    ]


def _reason(answer: str | None, counted: Vote) -> str:
    if answer is None:
        return "no_answer"
    return "no_majority" if counted.label is None else "wrong"
