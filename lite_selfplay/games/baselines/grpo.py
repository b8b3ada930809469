"""Plain GRPO with one seat: the baseline every game is compared with (`train grpo`).

Each step samples a group of completions of each problem and rewards each by itself. With `budget=paired` it has the
budget of Agon's N drafts and N challenges: 2N completions per problem.

Source: Shao et al. 2024 (DeepSeekMath, GRPO); the budget is from Agon's section 4.5. The reward `2 c + lambda phi` (c:
right, phi: well-formed) is Agon's equation 2, so that both are trained for the same objective; lambda is 0 by default
(docs/decisions/0014-paying-for-form.md).

Without answers, `reward` decides c: `majority`, agreement with most of the group (Zuo et al. 2025, "TTRL: Test-Time
Reinforcement Learning"; a tie earns nothing); `format`, always 0; `random`, 0 or 1 by the toss of a coin (Shao et al.
2025, "Spurious Rewards"). If a problem has an answer, it is checked for the records only.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from lite_selfplay.data import Completion, Episode, Group, Stream
from lite_selfplay.games.base import GameOptions
from lite_selfplay.games.baselines import SingleSeat
from lite_selfplay.games.judging import judged, solo_reward
from lite_selfplay.games.presentation import BY_COIN, FOR_FORM, FOR_RIGHT, FOR_VOTE, Figure, priced
from lite_selfplay.games.prompts import asked
from lite_selfplay.games.propose_solve.questions import vote
from lite_selfplay.games.table import Table


class SoloOptions(GameOptions):
    """`format_weight` is lambda, the reward of a well-formed completion: by default 0, or 0.5 with `reward=format`.
    `budget=paired` samples 2N completions per problem.

    `reward`: agreement with the problems' `answers`, or one of three rewards that use no answer. `drop_zero_variance`:
    groups without variance do not count in the mean over completions, as in Agon's paper; TRL counts them.
    """

    reward: Literal["answers", "majority", "format", "random"] = "answers"
    format_weight: float = 0.0
    budget: Literal["paired", "single"] = "paired"
    drop_zero_variance: bool = False

    @model_validator(mode="before")
    @classmethod
    def _format_is_paid(cls, values: Any) -> Any:
        return {"format_weight": 0.5, **values} if values.get("reward") == "format" else values

    @field_validator("format_weight")
    @classmethod
    def _form_alone_pays(cls, value: float, others: ValidationInfo) -> float:
        if others.data.get("reward") == "format" and not value:
            raise PydanticCustomError("reward", "is the only reward with game.reward=format, so it must not be 0")
        return value


class Solo(SingleSeat):
    """One seat samples a group of completions per problem; each is rewarded for its own answer."""

    roles = ("solver",)
    about = "plain GRPO with one seat: the baseline, at a paired game's budget"
    Options = SoloOptions
    recipe: ClassVar[dict[str, Any]] = {"seats": {"solver": {"lr": 5e-5, "schedule": "linear", "warmup": 0.1}}}
    figures = (
        Figure("label_accuracy", "accuracy of labels", "share",
               about="Majorities that match the problem's answer, if that is known (reward `majority`)."),
    )  # fmt: skip

    def __init__(self, options: Any = None, *, group_size: int = 8, problems_per_step: int = 4):
        super().__init__(options, group_size=group_size, problems_per_step=problems_per_step)
        self.needs_answers = self.options.reward == "answers"
        self.own_labels = not self.needs_answers
        self.completions_per_problem = group_size * (2 if self.options.budget == "paired" else 1)

    def rollouts_per_step(self) -> int:
        return self.problems_per_step * self.completions_per_problem

    def rewards(self) -> Mapping[str, str]:
        signal = {"answers": FOR_RIGHT, "majority": FOR_VOTE, "random": BY_COIN}.get(self.options.reward, "")
        return {"solver": priced((2 * bool(signal), signal), (self.options.format_weight, FOR_FORM))}

    def play(self, step: int, table: Table) -> Episode:
        problems = table.draw("problems", self.problems_per_step)
        answers = table.ask("solver", list(map(asked, problems)), n=self.completions_per_problem)
        checked = [problem if problem.answer is not None else replace(problem, answer="") for problem in problems]
        groups = judged(table, checked, answers, self.options.format_weight)
        log = {}
        if self.own_labels:
            credits = self._credits(table, answers)
            known = [problem.answer is not None for problem in problems]
            if self.options.reward == "majority":
                log["label_accuracy"] = _labels_right(groups, credits, known)
            groups = [self._credited(*row) for row in zip(groups, credits, known, strict=True)]
        return Episode(streams=[Stream("solver", groups, drop_zero_variance=self.options.drop_zero_variance)], log=log)

    def _credits(self, table: Table, answers: list[list[Completion]]) -> list[list[bool]]:
        """Whether each completion counts as correct, decided without the reference answer."""
        if self.options.reward == "majority":
            return [list(counted.agrees) for counted in vote(table, answers)]
        return [[self.options.reward == "random" and table.rng.random() < 0.5 for _ in row] for row in answers]

    def _credited(self, group: Group, credit: list[bool], known: bool) -> Group:
        """The group with rewards from `credit`; it keeps its verdicts if the answer is known."""
        samples = [
            replace(
                sample,
                reward=solo_reward(
                    c, sample.verdict is not None and sample.verdict.well_formed, self.options.format_weight
                ),
                verdict=sample.verdict if known else None,
            )
            for sample, c in zip(group.samples, credit, strict=True)
        ]
        return Group(samples, group.problem)


def _labels_right(groups: list[Group], agree: list[list[bool]], known: list[bool]) -> float | None:
    """The share of right majority labels, among problems with a known answer."""
    right = [
        any(s.verdict is not None and s.verdict.correct for s, a in zip(group.samples, row, strict=True) if a)
        for group, row, one in zip(groups, agree, known, strict=True)
        if one and any(row)
    ]
    return sum(right) / len(right) if right else None
