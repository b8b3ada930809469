"""Self-refinement with one seat: Agon's control for exchange (`train self-refine`).

A seat drafts, then reads its own recap and answers again, with the same number of completions as Agon:

    for each problem x:
        a_1 .. a_N ~ seat(. | x)                         plain prompt
        b_i ~ seat(. | x, recap of a_i)                  one per draft, called its own
        R(y) = 2 c(y) + lambda phi(y)                    of drafts and refinements alike
    one update of the seat on both groups

Source: Beliaev, "Agon", table 1 and section 5 (self-refinement: the model sees its own prior attempt; the cooperative
reward; two passes at evaluation). Ours, where the paper is silent: both passes are trained, the recap is what Agon's
challenger would read, and the prompt differs from the challenger's in whose attempt it says to be.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from lite_selfplay.data import EvalSpec, Problem
from lite_selfplay.games.agon.agon import (
    DraftChallenge,
    figures_of_drafts,
    own_attempt_prompt,
    pairing_with_drafts,
)
from lite_selfplay.games.base import GameOptions


class SelfRefineOptions(GameOptions):
    """`format_weight` is lambda, what a well-formed completion earns. Agon's other switches are what they are here: a
    draft is read by its own seat, and nobody is paid for being better than it."""

    format_weight: float = 0.5
    reward: ClassVar[str] = "coop"
    tiebreak: ClassVar[float] = 0.0
    opponent: ClassVar[str] = "per_rollout"


class SelfRefine(DraftChallenge):
    """One seat that drafts and refines, each completion rewarded by its own answer."""

    roles = ("drafter", "refiner")
    about = "one seat drafts and refines its own drafts: Agon's control, at its budget"
    Options = SelfRefineOptions
    recipe: ClassVar[dict[str, Any]] = {"seats": {"solver": {"lr": 5e-5, "schedule": "linear", "warmup": 0.1}}}
    figures = figures_of_drafts("to refine")
    pairing = pairing_with_drafts("refinement")

    def seats(self, step: int) -> Mapping[str, str]:
        return dict.fromkeys(self.roles, "solver")

    def trained_seats(self) -> tuple[str, ...]:
        return ("solver",)

    def evaluation(self) -> EvalSpec:
        return EvalSpec("self-refine", self.trained_seats())

    def asked_with(self, problem: Problem, recap: str) -> str:
        return own_attempt_prompt("self_refine", problem, recap)
