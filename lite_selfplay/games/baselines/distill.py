"""Self-distillation: a seat learns, token by token, from the same base with the solution at hand.

    for each problem x with a solution s:
        y_1 .. y_N ~ student(. | x)
        A_t = log teacher(y_t | x, s, y_<t) - log student(y_t | x, y_<t)     clipped to [-clip, clip]
    a policy-gradient update of the student with one advantage for each token: no group, no baseline

The expectation of A_t is minus the divergence KL(student || teacher) at that token, so the student moves towards what
the teacher would write. A right answer earns nothing by itself: answers are checked for the records, and to choose what
`shown=sibling` shows.

Source: Zhao et al. 2026 (OPSD, arXiv 2601.18734), whose sampled-token form this is: its main results use the whole
vocabulary's divergence, a term that is clipped at each entry. From it: the teacher is the base before training, or the
student itself. `shown=sibling`, a right answer of the same group, is from Huebotter et al. 2026 (SDPO, arXiv
2601.20802). Ours: the prompts, the clip of the difference, N = 8, the learning rate, a mean over each completion's
tokens in the loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, ClassVar, Literal

from pydantic import PositiveFloat

from lite_selfplay.data import BASE, Episode, Group, Sample, Stream
from lite_selfplay.games.base import GameOptions
from lite_selfplay.games.baselines import SingleSeat
from lite_selfplay.games.judging import verified
from lite_selfplay.games.presentation import Figure
from lite_selfplay.games.prompts import asked, asked_after, fenced, fill
from lite_selfplay.games.table import Table
from lite_selfplay.games.worked_examples import solution_of


class DistillOptions(GameOptions):
    """`teacher`: the base without an adapter, or the student itself as it is now. `shown`: what the teacher reads
    before the student's completion: the problem's solution, or its answer if it has none; its answer alone; or a right
    completion of the same group, of which there may be none. `clip`: the largest advantage of a token, in nats."""

    teacher: Literal["base", "student"] = "base"
    shown: Literal["solution", "answer", "sibling"] = "solution"
    clip: PositiveFloat = 1.0


class Distill(SingleSeat):
    """One seat, taught by the base that has read the solution."""

    roles = ("student",)
    about = "self-distillation: one seat, taught token by token by the same base with the solution at hand"
    Options: ClassVar[type[GameOptions]] = DistillOptions
    recipe: ClassVar[dict[str, Any]] = {"seats": {"student": {"lr": 5e-5, "schedule": "constant", "warmup": 0.0}}}
    figures = (
        Figure("divergence", "divergence from the teacher, nats a token",
               about="The mean of log p_student - log p_teacher over the step's tokens, an estimate of their KL."),
        Figure("shown", "completions with a teacher", "share",
               about="Completions whose teacher had something to read, in a prompt within the limit."),
    )  # fmt: skip

    def rewards(self) -> Mapping[str, str]:
        return {"student": "for each token, how much likelier the teacher finds it; its mean is shown"}

    def play(self, step: int, table: Table) -> Episode:
        problems = table.draw("problems", self.problems_per_step)
        answers = table.ask("student", [asked(problem) for problem in problems], n=self.group_size)
        groups = verified(table, problems, answers, lambda c, verdict, _: Sample(c, verdict.score, verdict))
        every = [(sample, group) for group in groups for sample in group.samples]
        prompts = [self._teachers_prompt(sample, group) for sample, group in every]
        read = [(sample.completion, prompt) for (sample, _), prompt in zip(every, prompts, strict=True) if prompt]
        seat = BASE if self.options.teacher == "base" else None
        scores = iter(table.score("student", [c for c, _ in read], seat=seat, after=[prompt for _, prompt in read]))
        gaps = [
            [theirs - own for theirs, own in zip(next(scores).logprobs, sample.completion.logprobs, strict=False)]
            if prompt
            else []
            for (sample, _), prompt in zip(every, prompts, strict=True)
        ]
        learned = iter([self._sample(sample, own) for (sample, _), own in zip(every, gaps, strict=True)])
        tokens = [-gap for own in gaps for gap in own]
        return Episode(
            [Stream("student", [Group([next(learned) for _ in group.samples], group.problem) for group in groups])],
            log={"divergence": fmean(tokens) if tokens else None, "shown": fmean(map(bool, gaps))},
        )

    def _teachers_prompt(self, own: Sample, group: Group) -> str:
        """The prompt after which the teacher reads a completion; empty if there is nothing to show it, or to read."""
        problem, solution = group.problem, None
        assert problem is not None
        shown = f"The right answer: {problem.answer}" if isinstance(problem.answer, str | int | float) else ""
        if self.options.shown == "sibling":
            right = (
                s.completion.text.strip() for s in group.samples if s is not own and s.verdict and s.verdict.correct
            )
            solution, shown = next(right, None), ""
        elif self.options.shown == "solution":
            solution = solution_of(problem)
        shown = f"A right solution:\n\n{fenced(solution)}" if solution else shown
        return asked_after(problem, fill("distill", shown=shown)) if shown and own.completion.token_ids else ""

    def _sample(self, sample: Sample, gaps: Sequence[float]) -> Sample:
        """A completion with its advantages, and their mean as its reward; without any it is only recorded."""
        clip = self.options.clip
        advantages = tuple(min(max(gap, -clip), clip) for gap in gaps)
        reward = fmean(advantages) if advantages else None
        return replace(sample, reward=reward, advantage=advantages or None, masked=sample.masked or not advantages)
