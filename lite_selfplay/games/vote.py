"""Measuring seats by a vote: each answers several times by itself, and what most of its answers say is its answer.

Source: Wang et al. 2022, "Self-Consistency Improves Chain of Thought Reasoning in Language Models". Votes are counted
by answer class (`lite_selfplay.verify.keys`); no answer, and one that states no value, is a vote for nothing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lite_selfplay.games.modes import Examiner, Found, Judged, Measured, Mode, Rows, Score, alone, score_of


@dataclass(frozen=True)
class VoteScore(Score):
    """A `Score` of elected answers, one a problem; `tokens_total_mean` counts all that were read for the vote.

    `votes`: how many answers a problem took part. `share`: the mean share of them that the elected class had.
    """

    votes: int
    share: float


def vote(examiner: Examiner, seats: Sequence[str]) -> Found:
    """Each seat's elected answers."""
    return Found({seat: elected(measured.answers) for seat, measured in alone(examiner, seats).items()})


def elected(answers: Rows, also_read: Sequence[Judged] = ()) -> Measured:
    """The vote on each problem's answers, as one answer a problem; `also_read` are what the answers cost besides."""
    winners = [_winner(row) for row in answers]
    votes = len(answers[0])
    others = [a for row, won in zip(answers, winners, strict=True) for a in row if a is not won]
    shares = [
        sum(won.key is not None and answer.key == won.key for answer in row) / votes
        for row, won in zip(answers, winners, strict=True)
    ]
    rows = [[replace(won, correct=won.correct and won.key is not None)] for won in winners]
    score = score_of(rows, before=[*others, *also_read], kind=VoteScore, votes=votes, share=sum(shares) / len(shares))
    return Measured(rows, score)


def _winner(row: Sequence[Judged]) -> Judged:
    """The first answer of the largest class; of equal ones the class that was sampled first, which no order favours.

    Votes for nothing are a class as well, whose first answer is never right.
    """
    counts = Counter(answer.key for answer in row)
    return max(row, key=lambda answer: counts[answer.key])


VOTE = Mode(vote, columns=("share",), samples=5, least=2)
