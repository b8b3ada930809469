"""Questions judged by how far a solver's answers to them agree, and drawn until enough lie between two bounds.

The solver answers each question several times, the majority is its label, and the majority's share says how hard the
question is. Shared by CPMobius (difficulty-filtered batching, section 3.1) and R-Zero.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from lite_selfplay.data import Completion, Group, Problem, Sample
from lite_selfplay.games.presentation import Figure
from lite_selfplay.games.prompts import fill
from lite_selfplay.games.propose_solve.game import ProposeSolveOptions
from lite_selfplay.games.propose_solve.proposals import Proposal
from lite_selfplay.games.propose_solve.voting import Vote, vote
from lite_selfplay.games.table import Table

FATES = (
    Figure(
        "no_majority", "questions without a majority", about="Drawn questions whose votes are tied, or for nothing."
    ),
    Figure("too_hard", "questions too hard", about="Drawn questions whose majority has too small a share."),
    Figure("too_easy", "questions too easy", about="Drawn questions whose majority has too large a share."),
    Figure("draws", "questions drawn", about="Questions drawn to fill a round."),
)
HOPELESS = 4
"""The share of all draws, one in so many, that may keep nothing before drawing ends."""

Fate = Literal["kept", "refused", "no_majority", "too_hard", "too_easy"]


class FilterOptions(ProposeSolveOptions):
    """Switches of a game that filters by difficulty: questions train the solver where the share of the majority lies in
    [`low`, `high`]."""

    low: float = Field(ge=0, le=1)
    high: float = Field(ge=0, le=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low must not be above high, got {self.low} and {self.high}")
        return self


@dataclass(frozen=True)
class Candidate:
    """A proposal, the solver's answers to it and their vote; without answers and vote where it is no question."""

    name: str
    proposal: Proposal
    answers: tuple[Completion, ...] = ()
    vote: Vote | None = None

    @property
    def share(self) -> float:
        """The share of the answers that the largest class holds, in [0, 1]; 0 for what is no question."""
        return self.vote.share if self.vote is not None else 0.0

    @property
    def label(self) -> str | None:
        return self.vote.label if self.vote is not None else None

    @property
    def problem(self) -> Problem:
        """The question with the majority's answer, which is None on a tie."""
        return Problem(self.name, self.proposal.question, self.label)


@dataclass(frozen=True)
class Bounds:
    """The shares between which a question is kept, both included. `low` 0 and `high` 1 keep all that have a label."""

    low: float
    high: float

    def fate(self, candidate: Candidate) -> Fate:
        """What becomes of a candidate. One without a majority has no label, whatever its share."""
        if not candidate.proposal.usable:
            return "refused"
        if candidate.label is None:
            return "no_majority"
        if candidate.share < self.low:
            return "too_hard"
        return "too_easy" if candidate.share > self.high else "kept"


def answered(
    table: Table, solver: str, proposals: Sequence[Proposal], n: int, *, prefix: str, first: int = 0
) -> list[Candidate]:
    """Proposals with `n` answers each of the solver, and their vote, in order; named by `prefix` and numbers from
    `first` on. A question that is too long for a prompt is refused."""
    found = [Candidate(f"{prefix}-{first + k}", proposal) for k, proposal in enumerate(proposals)]
    places = [k for k, proposal in enumerate(proposals) if proposal.usable]
    prompts = [fill("solver", problem=proposals[k].question) for k in places]
    groups = table.ask(solver, prompts, n=n) if prompts else []
    for k, group, counted in zip(places, groups, vote(table, groups), strict=True):
        if group[0].stop == "prompt_too_long":
            found[k] = replace(found[k], proposal=proposals[k].refused("too_long"))
        else:
            found[k] = replace(found[k], answers=tuple(group), vote=counted)
    return found


def draw_until(
    table: Table,
    propose: Callable[[], Sequence[Proposal]],
    solver: str,
    n: int,
    bounds: Bounds,
    *,
    wanted: int,
    most: int,
    prefix: str,
) -> list[Candidate]:
    """All candidates drawn, a batch of `propose` at a time, until `wanted` of them are kept or `most` were drawn.

    Each question is answered `n` times by the solver. More than `wanted` may be kept, since a batch is judged whole. A
    quarter of the draws without a single question that is kept ends it, too: the rest would hardly be better.
    """
    drawn: list[Candidate] = []
    kept = 0
    while len(drawn) < most and kept < wanted and (kept or len(drawn) < most / HOPELESS):
        batch = propose()[: most - len(drawn)]
        drawn += answered(table, solver, batch, n, prefix=prefix, first=len(drawn))
        kept = sum(bounds.fate(candidate) == "kept" for candidate in drawn)
    return drawn


def count_fates(candidates: Iterable[Candidate], bounds: Bounds) -> dict[str, int]:
    """How many candidates had no majority, or were too hard or too easy."""
    counts = Counter(bounds.fate(candidate) for candidate in candidates)
    return {fate: counts[fate] for fate in ("no_majority", "too_hard", "too_easy")}


def shown(candidate: Candidate, bounds: Bounds) -> Group:
    """A proposal for the record alone: masked, without a reward, with what became of it."""
    fate = bounds.fate(candidate)
    info = {
        "question": candidate.name,
        "fate": candidate.proposal.reason if fate == "refused" else fate,
        "label": candidate.label,
        "share": candidate.share,
    }
    return Group([Sample(candidate.proposal.completion, None, masked=True, info=info)])


def watched(candidates: Sequence[Candidate]) -> dict[str, Any]:
    """The questions that were answered, for the collapse watch."""
    asked = [candidate for candidate in candidates if candidate.vote is not None]
    shares = [candidate.share for candidate in asked]
    questions = [candidate.proposal.question for candidate in asked]
    return {"questions": questions, "pass_rates": shares, "vote_shares": shares}
