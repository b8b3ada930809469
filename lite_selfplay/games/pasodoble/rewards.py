"""PasoDoble's options and formulas: a question's reward, and which questions may train the solver.

Pure functions of pass rates and token ids. Source: "Better LLM Reasoning via Dual-Play" (PasoDoble), sections 3.3 to
3.5.
"""

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from statistics import fmean
from typing import Literal

from pydantic import Field

from lite_selfplay.credit import rewards_of
from lite_selfplay.data import Group
from lite_selfplay.games.propose_solve.propose_solve import ProposeSolveOptions
from lite_selfplay.games.propose_solve.questions import LeakGuard

Gate = Literal["retained", "valid", "pass_rate"]

DIFFICULTY_OFFSET = 1.1


class PasoDobleOptions(ProposeSolveOptions):
    """PasoDoble's options.

    `mode`: `online`, where every step updates both seats, or `offline`, where they alternate. `seats`: an adapter each,
    or one `shared` adapter with both gradients (online). `proposals` is J; K is the group size, and a step's passages
    are its problems. `knowledge=none` shows the proposer no passage. `freeze_proposer` trains the solver alone.
    `reward=random` rewards answers by the toss of a coin, `random_with_format` only those in the right format.
    `diversity=off` drops bonus and clip. `tau_sim`, `history`, `min_diversity`, `diversity_weight` and `min_pass_rate`
    are the numbers of the reward. `leak_guard` says which questions give their answer away. `credit=group_mean` does
    not divide by the deviation. `question_tokens` is the solver's longest prompt.

    `gate` says which questions make a step an update. `retained`: those that train the solver, with a pass rate between
    the bounds and unlike earlier ones. `valid` (paper): also those that are always solved, which update the proposer
    alone. `pass_rate` (release): those with a pass rate between the bounds, however similar to earlier ones; the solver
    trains on them, and the step is skipped if all proposals of each passage have equal rewards.

    Offline: phases of `proposer_steps` and `solver_steps` updates alternate, each of at most `attempts` times as many
    steps; a solver's step has `solver_questions` questions. `eviction` drops buffered questions that were always
    solved, or whose pass rate did not rise by `eviction_margin` in their last `eviction_patience` attempts.
    """

    mode: Literal["online", "offline"] = "online"
    seats: Literal["two", "shared"] = "two"
    proposals: int = Field(6, ge=2)
    knowledge: Literal["passages", "none"] = "passages"
    freeze_proposer: bool = False
    reward: Literal["difficulty", "random", "random_with_format"] = "difficulty"
    diversity: bool = True
    diversity_weight: float = Field(0.2, ge=0)
    min_diversity: float = Field(0.3, ge=0, le=1)
    min_pass_rate: float = Field(0.2, ge=0, lt=1)
    tau_sim: float = Field(0.3, ge=0, le=1)
    history: int = Field(100, ge=1)
    leak_guard: LeakGuard = "token3"
    gate: Gate = "retained"
    credit: Literal["group", "group_mean"] = "group"
    question_tokens: int = Field(512, ge=1)
    proposer_steps: int = Field(10, ge=1)
    solver_steps: int = Field(5, ge=1)
    attempts: int = Field(3, ge=1)
    solver_questions: int = Field(6, ge=1)
    eviction: bool = False
    eviction_margin: float = Field(0.01, ge=0)
    eviction_patience: int = Field(3, ge=1)


def jaccard(a: AbstractSet[int], b: AbstractSet[int]) -> float:
    """The share of the tokens of either set that are in both, in [0, 1]; 1 for two empty sets (section 3.3)."""
    union = len(a | b)
    return len(a & b) / union if union else 1.0


def question_diversity(tokens: AbstractSet[int], history: Collection[AbstractSet[int]], tau_sim: float = 0.3) -> float:
    """1 minus the share of the history whose Jaccard index with a question is above `tau_sim`, in [0, 1].

    Token sets are those of the base's tokenizer. An empty history returns 1 (ours; section 3.3 divides by its size).
    """
    if not history:
        return 1.0
    unlike = sum(jaccard(tokens, earlier) <= tau_sim for earlier in history)
    return unlike / len(history)  # one division, so that 70 of 100 alike is exactly 0.3


def pass_rate(group: Group) -> float:
    """p, the share of a question's answers that match the proposer's: the mean of their rewards of 0 or 1."""
    return fmean(rewards_of(group.samples))


def proposer_reward(
    rate: float,
    diversity: float | None,
    *,
    weight: float = 0.2,
    min_pass_rate: float = 0.2,
    min_diversity: float = 0.3,
) -> float:
    """`(1.1 - p) + weight * diversity`, but 0 if `p <= min_pass_rate` or `diversity <= min_diversity` (section 3.3).

    `diversity` None drops both the bonus and the clip (the ablation of section 5.3.4). With the paper's numbers the
    result is 0, or between 0.1 and 1.1.
    """
    if rate <= min_pass_rate or (diversity is not None and diversity <= min_diversity):
        return 0.0
    return DIFFICULTY_OFFSET - rate + (weight * diversity if diversity is not None else 0.0)


def why_invalid(rate: float, diversity: float | None, *, min_pass_rate: float = 0.2, min_diversity: float = 0.3) -> str:
    """Why a question does not train the solver: `too_hard`, `too_easy` or `alike`; empty if `min_pass_rate < p < 1` and
    `diversity > min_diversity` (section 3.5). `diversity` None is ignored."""
    if rate <= min_pass_rate:
        return "too_hard"
    return "too_easy" if rate >= 1 else "alike" if diversity is not None and diversity <= min_diversity else ""
