"""Baselines for comparison with the games: GRPO, RENT and R-Zero. Rules only, as in every game."""

import random

from lite_selfplay.data import Example, Problem
from lite_selfplay.games.base import Game
from lite_selfplay.games.prompts import asked
from lite_selfplay.games.worked_examples import worked_example


class SingleSeat(Game):
    """A game in which one seat answers each problem in a group of completions."""

    def rollouts_per_step(self) -> int:
        return self.problems_per_step * self.group_size

    def cold_start(self, role: str, problem: Problem, rng: random.Random, *, thinks: bool) -> Example | None:
        return worked_example(problem, asked(problem), thinks=thinks)
