"""A population of proposers and solvers, each a seat of its own (PopuLoRA, Castanyer et al. 2026, arXiv 2605.16727).

One step is played by one pair. With p = 1 / (1 + 10^(difference / 400)), a proposer's expected result by its skill:

    result   the mean over a step's proposals of the share of wrong answers, 0 for a refused proposal
    skill    Elo: the proposer's grows by 32 (result - p), the solver's falls by it
    round    as many steps as pairs: each proposer meets one solver, drawn with odds p (1 - p), so near ones more often
    replaced every so many steps, in each role: the seat of the lowest skill, by the mean of the two of the highest, cut
             to the seat's rank, and noise; its skill is the mean of theirs

Kept: seats of one role against those of the other, near pairs, and offspring of the same rank in place of the weakest.
We had the paper's abstract and short accounts of it. Ours: Elo in place of TrueSkill, a pair a step, and all numbers.
"""

from collections.abc import Mapping, Sequence
from random import Random
from statistics import fmean
from typing import Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from lite_selfplay.data import NOT_JUDGED, Blend
from lite_selfplay.games.base import GameOptions
from lite_selfplay.games.presentation import Figure
from lite_selfplay.games.propose_solve.questions import Candidate

ELO, SCALE = 32, 400
FIGURES = (
    Figure("skill", "skill by seat", how="last", about="A population's skills (Elo), which begin at 0."),
    Figure("replaced", "seats replaced", how="sum", about="The weakest seats of a population, replaced by offspring."),
)


class SeatsOptions(GameOptions):
    """`seats`: one adapter in both roles, or `two`. `population`: how many seats each role has. Every `replace_every`
    steps (0: never) the weakest of each role is replaced; `mutation` is the noise, relative to the weights' size."""

    seats: Literal["shared", "two"] = "shared"
    population: int = Field(1, ge=1)
    replace_every: int = Field(0, ge=0)
    mutation: float = Field(0.01, ge=0)

    @model_validator(mode="after")
    def _seats_of_its_own(self) -> Self:
        if self.population > 1 and self.seats == "shared":
            raise PydanticCustomError("population", "a population has seats for each role: set game.seats=two")
        if self.replace_every and self.population == 1:
            raise PydanticCustomError("population", "replace_every needs game.population, of at least 2")
        return self


class Population:
    """The skills of all seats, by role, and the pairs that are left in this round, the next one first."""

    def __init__(self, roles: Sequence[str], options: SeatsOptions):
        self.options = options
        self.seats = {role: tuple(f"{role}-{i}" for i in range(1, options.population + 1)) for role in roles}
        self.skill = {seat: 0.0 for own in self.seats.values() for seat in own}
        self.round: list[Sequence[str]] = list(zip(*self.seats.values(), strict=True))

    def pair(self) -> dict[str, str]:
        """The seat that plays each role in the next step."""
        return dict(zip(self.seats, self.round[0], strict=True))

    def settle(self, step: int, asked: Sequence[Candidate], rng: Random) -> tuple[list[Blend], dict[str, Any]]:
        """End a step, given its proposals: the replacements that are due, and figures for the log."""
        proposer, solver = self.round.pop(0)
        results = [1 - each.share if each.group else 0.0 for each in asked if each.proposal.reason != NOT_JUDGED]
        change = ELO * (fmean(results) - self.expected(proposer, solver)) if results else 0.0
        self.skill[proposer] += change
        self.skill[solver] -= change
        every = self.options.replace_every
        blends = self._replaced(rng) if every and (step + 1) % every == 0 else []
        self.round = self.round or self._drawn(rng)
        return blends, {"skill": dict(self.skill), "replaced": len(blends)}

    def expected(self, proposer: str, solver: str) -> float:
        return 1 / (1 + 10 ** ((self.skill[solver] - self.skill[proposer]) / SCALE))

    def _drawn(self, rng: Random) -> list[Sequence[str]]:
        proposers, solvers = map(list, self.seats.values())
        pairs: list[Sequence[str]] = []
        for proposer in rng.sample(proposers, len(proposers)):
            expected = [self.expected(proposer, solver) for solver in solvers]
            (solver,) = rng.choices(solvers, [p * (1 - p) for p in expected])
            solvers.remove(solver)
            pairs.append((proposer, solver))
        return pairs

    def _replaced(self, rng: Random) -> list[Blend]:
        blends = []
        for own in self.seats.values():
            ranked = sorted(own, key=lambda seat: -self.skill[seat])
            parents, weakest = tuple(ranked[:2]), ranked[-1]
            self.skill[weakest] = fmean(self.skill[parent] for parent in parents)
            blends.append(Blend(weakest, parents, self.options.mutation, rng.getrandbits(63)))
        return blends

    def state(self) -> dict[str, Any]:
        return {"skill": dict(self.skill), "round": list(map(list, self.round))}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.skill, self.round = dict(state["skill"]), list(state["round"])
