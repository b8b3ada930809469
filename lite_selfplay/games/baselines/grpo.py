"""Plain GRPO with one seat: the baseline every game is compared with (`train grpo`).

A step samples a group of completions of each problem and rewards each by itself. Against Agon's N drafts and N
challenges it gets the same budget with `budget=paired`: 2N completions a problem.

Source: Shao et al. 2024 (DeepSeekMath, GRPO); the budget is Agon's section 4.5. The reward `2 c + 0.5 phi` is Agon's
equation 2, so that both are trained for the same thing.
"""

import random
from typing import Any, ClassVar, Literal

from lite_selfplay.data import Completion, Episode, Example, Group, Problem, Sample, Stream, Verdict
from lite_selfplay.games.base import Game, GameOptions
from lite_selfplay.games.prompts import PROGRAM, asked
from lite_selfplay.games.table import Table
from lite_selfplay.games.worked_examples import worked_example


class SoloOptions(GameOptions):
    """`format_weight` is lambda, what a well-formed completion earns; `budget=paired` samples 2N a problem.

    `drop_zero_variance`: groups without variance leave the mean over completions, as in Agon's paper; TRL keeps them.
    """

    format_weight: float = 0.5
    budget: Literal["paired", "single"] = "paired"
    drop_zero_variance: bool = False


class Solo(Game):
    """One seat, a group of completions a problem, each rewarded by its own answer."""

    roles = ("solver",)
    about = "plain GRPO with one seat: the baseline, at a paired game's budget"
    Options = SoloOptions
    recipe: ClassVar[dict[str, Any]] = {"seats": {"solver": {"lr": 5e-5, "schedule": "linear", "warmup": 0.1}}}

    @property
    def completions_per_problem(self) -> int:
        return self.group_size * (2 if self.options.budget == "paired" else 1)

    def rollouts_per_step(self) -> int:
        return self.problems_per_step * self.completions_per_problem

    def cold_start(self, role: str, problem: Problem, rng: random.Random, *, thinks: bool) -> Example | None:
        return worked_example(problem, asked(problem), thinks=thinks)

    def play(self, step: int, table: Table) -> Episode:
        problems = table.draw("problems", self.problems_per_step)
        prompts = [asked(problem) for problem in problems]
        answers = table.ask("solver", prompts, n=self.completions_per_problem)
        groups = judged(table, problems, answers, self.options.format_weight)
        return Episode(streams=[Stream("solver", groups, drop_zero_variance=self.options.drop_zero_variance)])


def earned(verdict: Verdict, problem: Problem) -> float:
    """c of a completion: its score; of a program 1 where it passes all tests, else 0 (Agon, section 5.3).

    A user's own reward function gives no reason, and its number stands.
    """
    return 0.0 if problem.kind == PROGRAM and verdict.reason else verdict.score


def solo_reward(correct: float, well_formed: bool, format_weight: float = 0.5) -> float:
    """`2 c + lambda phi`: what a completion earns with nobody to compare it with (Agon, equation 2)."""
    return 2 * correct + format_weight * well_formed


def judged(table: Table, problems: list[Problem], answers: list[list[Completion]], format_weight: float) -> list[Group]:
    """Groups of completions, verified in one batch, each rewarded by itself. A prompt over the limit is masked."""
    verdicts = iter(table.verify([(c, p) for p, group in zip(problems, answers, strict=True) for c in group]))
    return [
        Group([_sample(c, next(verdicts), problem, format_weight) for c in group], problem)
        for problem, group in zip(problems, answers, strict=True)
    ]


def _sample(completion: Completion, verdict: Verdict, problem: Problem, format_weight: float) -> Sample:
    reward = solo_reward(earned(verdict, problem), verdict.well_formed, format_weight)
    return Sample(completion, reward, verdict, masked=completion.stop == "prompt_too_long")
