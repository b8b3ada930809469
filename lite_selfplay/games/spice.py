r"""SPICE: self-play in corpus environments (Liu et al. 2025, arXiv 2510.24684).

A challenger reads a passage; a reasoner answers without it. One step, with G = 8:

    for each passage d of a batch:
        q_1, a_1 .. q_G, a_G ~ challenger(. | d)                      choices, or a number or a phrase
        y_j1 .. y_jG ~ reasoner(. | q_j)                              if q_j is a question
        l_jk = 1 if y_jk is a_j, else 0;  Var_j = p_j (1 - p_j)       the variance of l_j1 .. l_jG
        R(q_j) = exp(-(Var_j - 1/4)^2 / (2 width))                    `penalty` if q_j is no question
        R(y_jk) = l_jk
    advantages r - mean, within the challenger's group of a passage and the reasoner's of a question

Kept: one set of weights in both roles, a challenger that alone sees the passage, answers of both kinds, a Gaussian
around the largest variance, a small negative reward for an invalid question, a reasoner rewarded for right answers, and
advantages that are not divided by a deviation (Dr. GRPO).
Ours, because we had the paper's abstract and others' accounts of it but not its text: `width`, `penalty`, G, the
prompt, that every question of a passage is answered and trains the reasoner, and that passages alternate between
choices and free answers. A question that is too long or gives its answer away is invalid (PasoDoble).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import exp
from string import ascii_uppercase
from typing import Any, ClassVar, Literal

from pydantic import Field

from lite_selfplay.data import Completion, Episode, Example, Group, Problem, Stream
from lite_selfplay.games.presentation import FOR_RIGHT, Figure
from lite_selfplay.games.prompts import CHOICE, fenced, fill
from lite_selfplay.games.propose_solve.population import FIGURES, SeatsOptions
from lite_selfplay.games.propose_solve.propose_solve import (
    ProposeSolve,
    ProposeSolveOptions,
    family_figures,
    proposed_by_share,
)
from lite_selfplay.games.propose_solve.questions import (
    Candidate,
    LeakGuard,
    Proposal,
    answered,
    boxed_example,
    boxed_question,
    by_answer,
    fit_to_ask,
)
from lite_selfplay.games.table import Table
from lite_selfplay.games.worked_examples import solution_of
from lite_selfplay.verify.choice import chosen_letter

FORMS = {
    "free": "Its answer is a number or a few words.",
    "choice": "It offers four choices, each on a line of its own, which begin with A), B), C) and D). One of them is "
    "right, and its letter is the answer.",
}
_OPTION = re.compile(r"^[ \t]*\(?([A-Z])[).:][ \t]+(\S.*)$", re.MULTILINE)


def challenger_reward(rate: float, width: float = 0.01) -> float:
    """A question's reward, given the share of right answers to it: 1 at one half, lowest at 0 and 1."""
    return exp(-((rate * (1 - rate) - 0.25) ** 2) / (2 * width))


def choices_of(question: str) -> tuple[str, ...]:
    """A question's choices, from lines that begin with A), B) and so on; none if there are fewer than two."""
    found = _OPTION.findall(question)
    lettered = "".join(letter for letter, _ in found) == ascii_uppercase[: len(found)]
    return tuple(text for _, text in found) if lettered and len(found) > 1 else ()


def read_question(completion: Completion) -> Proposal:
    """A challenger's completion as a question with its answer, which is a letter if the question has choices."""
    proposal = boxed_question(completion)
    if not proposal.usable or not (choices := choices_of(proposal.question)):
        return proposal
    letter = chosen_letter(proposal.answer, choices)
    return replace(proposal, answer=letter) if letter else proposal.refused("no_answer")


class SpiceOptions(SeatsOptions, ProposeSolveOptions):
    """SPICE's options.

    `form`: questions have choices, a `free` answer, or `both` in turn.
    `width` of the Gaussian and `penalty` of an invalid question are the numbers of the challenger's reward.
    `leak_guard` says which questions give their answer away; `question_tokens` is the reasoner's longest prompt.
    """

    form: Literal["both", "choice", "free"] = "both"
    width: float = Field(0.01, gt=0)
    penalty: float = Field(-0.1, le=0)
    leak_guard: LeakGuard = "token3"
    question_tokens: int = Field(512, ge=1)


class Spice(ProposeSolve):
    """A challenger turns passages into questions that a reasoner, without the passage, answers half of the time."""

    roles = ("challenger", "reasoner")
    about = (
        "SPICE: a challenger asks about passages that its reasoner does not see, and is rewarded for half-right answers"
    )
    solver = "reasoner"
    sources = ("passages",)
    Options = SpiceOptions
    figures = family_figures(*FIGURES, early=(
        Figure("variance", "variance of the answers", of="pass_rates",
               about="The mean of p (1 - p) over a step's questions: 0.25 where half of the answers are right."),
        Figure("choices", "questions with choices", "share", of="questions", about="Questions of multiple choice."),
    ))  # fmt: skip
    recipe: ClassVar[dict[str, Any]] = {
        "roles": {"*": {"loss": "dr_grpo", "beta": 0.0}},
        "seats": {"*": {"lr": 3e-5, "schedule": "constant", "warmup": 0.0, "full_finetune_lr": 1e-6}},
    }

    def rollouts_per_step(self) -> int:
        return self.problems_per_step * self.group_size * (1 + self.group_size)

    def rewards(self) -> Mapping[str, str]:
        least = f"{challenger_reward(1, self.options.width):.2g} to 1 for a question"
        return {
            "challenger": f"{least}, most where half of the answers are right; {self.options.penalty:g} for none",
            "reasoner": f"1 {FOR_RIGHT}",
        }

    def describe(self, steps: int) -> list[str]:
        passages, size = self.problems_per_step, self.group_size
        kinds = {"both": "with choices and without in turn", "choice": "with choices"}.get(self.options.form, "free")
        return [
            f"a step is {passages} x {size} questions about passages ({kinds}), {size} answers to each, at most "
            f"{self.rollouts_per_step():,} completions"
        ]

    def worked_proposal(self, problem: Problem, *, thinks: bool) -> Example | None:
        """An example whose passage is only the solution, so that the seat learns to compose questions, not to copy."""
        solution = solution_of(problem)
        return boxed_example(problem, prompt_about(solution, "free"), thinks=thinks) if solution else None

    def play(self, step: int, table: Table) -> Episode:
        count, size = self.problems_per_step, self.group_size
        passages = table.draw("passages", count)
        forms = list(FORMS) if self.options.form == "both" else [self.options.form]
        prompts = [prompt_about(x.text, forms[(step * count + i) % len(forms)]) for i, x in enumerate(passages)]
        most, guard = self.options.question_tokens, self.options.leak_guard
        rows = table.ask("challenger", prompts, n=size)
        proposals = [fit_to_ask(read_question(c), table, most=most, guard=guard) for row in rows for c in row]
        found = answered(table, "reasoner", proposals, size, f"q-{step}", judge=by_answer, pose=posed)
        earns = partial(challenger_reward, width=self.options.width)
        samples = [proposed_by_share(candidate, earns, self.options.penalty) for candidate in found]
        groups = [Group(samples[i * size : (i + 1) * size], passage) for i, passage in enumerate(passages)]
        learned = {"challenger": groups, "reasoner": [candidate.group for candidate in found if candidate.group]}
        streams = [Stream(role, of, "group_mean") for role, of in learned.items() if of]
        blends, skills = self.settle(step, found, table.rng)
        return Episode(streams, blends, {**self._log(table, found), **skills})

    def _log(self, table: Table, found: Sequence[Candidate]) -> dict[str, Any]:
        solved = [(asked.share, asked.group.problem) for asked in found if asked.group and asked.group.problem]
        rates, problems = [rate for rate, _ in solved], [problem for _, problem in solved]
        return {
            **self.question_yield([asked.proposal for asked in found], sum(0 < rate < 1 for rate in rates)),
            "variance": sum(rate * (1 - rate) for rate in rates) / len(rates) if rates else None,
            "choices": sum(problem.kind == CHOICE for problem in problems) / len(rates) if rates else None,
            **self.watch.observe(
                [problem.text for problem in problems],
                tokens=table.tokenize,
                pass_rates=rates,
                labels=[(problem.text, problem.answer) for problem in problems],
            ),
        }


def posed(proposal: Proposal, name: str) -> Problem:
    """A question as a problem, of multiple choice if it has choices."""
    problem, choices = proposal.problem(name), choices_of(proposal.question)
    return replace(problem, kind=CHOICE, extra={"options": choices}) if choices else problem


def prompt_about(passage: str, form: str) -> str:
    """The challenger's prompt about a passage."""
    return fill("spice_challenger", passage=fenced(passage.strip()), form=FORMS[form])
