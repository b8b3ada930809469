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

import random
from collections.abc import Mapping
from typing import Any, ClassVar

from lite_selfplay.data import Episode, EvalSpec, Example, Group, Problem, Sample, Stream
from lite_selfplay.games.agon.controls import own_attempt_prompt
from lite_selfplay.games.agon.game import challenge_log, figures_of_drafts, pairing_with_drafts, recap_of
from lite_selfplay.games.agon.recap import worked_attempt
from lite_selfplay.games.base import Game, GameOptions
from lite_selfplay.games.baselines.grpo import earned, judged, solo_reward
from lite_selfplay.games.prompts import asked
from lite_selfplay.games.table import Table
from lite_selfplay.games.worked_examples import worked_example

_PROMPT = "self_refine"


class SelfRefineOptions(GameOptions):
    """`format_weight` is lambda, what a well-formed completion earns."""

    format_weight: float = 0.5


class SelfRefine(Game):
    """One seat that drafts and refines, each completion rewarded by its own answer."""

    roles = ("drafter", "refiner")
    about = "one seat drafts and refines its own drafts: Agon's control, at its budget"
    Options = SelfRefineOptions
    recipe: ClassVar[dict[str, Any]] = {"seats": {"solver": {"lr": 5e-5, "schedule": "linear", "warmup": 0.1}}}
    figures = figures_of_drafts("to refine")
    pairing = pairing_with_drafts("refinement")

    def seats(self, step: int) -> Mapping[str, str]:
        return dict.fromkeys(self.roles, "solver")

    def rollouts_per_step(self) -> int:
        return 2 * self.problems_per_step * self.group_size

    def evaluation(self) -> EvalSpec:
        return EvalSpec("self-refine", self.trained_seats())

    def cold_start(self, role: str, problem: Problem, rng: random.Random, *, thinks: bool) -> Example | None:
        prompt = asked(problem)
        if role == "refiner":
            prompt = own_attempt_prompt(_PROMPT, problem, worked_attempt(problem, rng))
        return worked_example(problem, prompt, thinks=thinks)

    def play(self, step: int, table: Table) -> Episode:
        weight = self.options.format_weight
        problems = table.draw("problems", self.problems_per_step)
        drafts = table.ask("drafter", [asked(x) for x in problems], n=self.group_size)
        drafted = judged(table, problems, drafts, weight)
        recaps = [
            [recap_of(table, sample.completion, x) for sample in group.samples]
            for x, group in zip(problems, drafted, strict=True)
        ]
        prompts = [
            own_attempt_prompt(_PROMPT, x, recap) for x, row in zip(problems, recaps, strict=True) for recap in row
        ]
        answers = [completion for (completion,) in table.ask("refiner", prompts)]
        pairs = list(zip(answers, [x for x in problems for _ in range(self.group_size)], strict=True))
        judgements = iter(zip(answers, table.verify(pairs), strict=True))
        refined = []
        for x, group in zip(problems, drafted, strict=True):
            samples = []
            for i, draft in enumerate(group.samples):
                completion, verdict = next(judgements)
                reward = solo_reward(earned(verdict, x), verdict.well_formed, weight)
                info = {"draft": i, "draft_correct": draft.verdict is not None and draft.verdict.correct}
                unread = completion.stop == "prompt_too_long"
                samples.append(Sample(completion, reward, verdict, masked=unread, info=info))
            refined.append(Group(samples, x))
        return Episode(
            streams=[
                Stream("drafter", drafted, drop_zero_variance=True),
                Stream("refiner", refined, drop_zero_variance=True),
            ],
            log=challenge_log(refined, recaps),
        )
