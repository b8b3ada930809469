"""Reads questions from proposals, has them answered, labels them by majority vote, and draws until enough fit.

A proposal without a question is no error: it keeps its reason and is counted under it.

Votes are counted by answer class (`lite_selfplay.verify.keys`), computed from each answer alone, so that the order of
the answers does not matter. A completion without an answer votes for nothing, and so does an answer without a value:
the question restated, or "I do not know".

CPMobius (difficulty-filtered batching, section 3.1) and R-Zero keep questions by the agreement of their answers.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from lite_selfplay.data import NOT_JUDGED, Completion, Example, Group, Problem, Sample, Sampling, Verdict
from lite_selfplay.games.judging import Pay, answer_sample, verified, why_unread
from lite_selfplay.games.presentation import Figure
from lite_selfplay.games.prompts import asked
from lite_selfplay.games.table import Table
from lite_selfplay.games.worked_examples import after_reasoning, solution_of
from lite_selfplay.stats import majority_vote
from lite_selfplay.verify.extract import completion_text
from lite_selfplay.verify.format import boxed_spans, split_reasoning, well_formed
from lite_selfplay.verify.keys import spoken_value, vote_key

# Reasons why a proposal is no question; the empty one means that it is one.
REASONS = (
    *("", "prompt_too_long", "truncated", "off_format", "empty"),
    *("no_answer", "too_long", "repeated", "leaks", "invalid", NOT_JUDGED),
)

# The proposing completion of a question that is asked again, or comes from a list.
NOBODYS = Completion("", "", (), (), (), "eos", "", -1, Sampling())


@dataclass(frozen=True)
class Proposal:
    """A parsed completion of a proposer. `reason` is one of `REASONS`, empty if there is a question; `task` is a game's
    own object for it."""

    completion: Completion
    question: str = ""
    answer: str | None = None
    reason: str = ""
    task: Any = None

    @property
    def usable(self) -> bool:
        return not self.reason

    def refused(self, reason: str) -> "Proposal":
        """The same proposal, marked as no question."""
        return replace(self, reason=reason)

    def problem(self, name: str) -> Problem:
        """The question as a problem to solve, labelled with the proposer's own answer."""
        return Problem(name, self.question, self.answer)


def to_proposal(completion: Completion, parse: Callable[[str], tuple[str, str | None] | None]) -> Proposal:
    """A completion as a proposal. `parse` returns a text's question and answer, or None without the expected marker."""
    reasoning = split_reasoning(completion_text(completion))
    text = None if reasoning.state == "open" else reasoning.rest.strip()
    found = parse(text) if text and completion.stop != "prompt_too_long" else None
    if found is None:
        why = why_unread(completion)
        return Proposal(completion, reason="empty" if text == "" and why == "off_format" else why)
    question, answer = found[0].strip(), found[1]
    return Proposal(completion, question, answer, "" if question else "empty")


def last_tagged(text: str, tag: str) -> str | None:
    """The content of the last `<tag>...</tag>` in a text; None without one."""
    found = re.findall(rf"<{tag}>((?:(?!<{tag}>).)*?)</{tag}>", text, re.DOTALL)
    return found[-1].strip() if found else None


def last_boxed(text: str) -> str | None:
    r"""The content of the last closed, non-empty `\boxed{...}` in a text; None without one."""
    spans = [span for span in boxed_spans(text) if span.closed and span.content.strip()]
    return spans[-1].content.strip() if spans else None


def boxed_question(completion: Completion) -> Proposal:
    """A completion as a proposal: its last `<question>`, which needs a boxed answer after it."""

    def parse(text: str) -> tuple[str, str | None] | None:
        question = last_tagged(text, "question")
        return None if question is None else (question, last_boxed(text.rpartition("</question>")[2]))

    proposal = to_proposal(completion, parse)
    return proposal.refused("no_answer") if proposal.usable and proposal.answer is None else proposal


def boxed_example(problem: Problem, prompt: str, *, thinks: bool) -> Example | None:
    """A problem with a worked solution as the reply that `boxed_question` reads; None without a solution."""
    solution = solution_of(problem)
    return Example(prompt, after_reasoning(boxed_reply(problem), solution, thinks)) if solution is not None else None


def boxed_reply(problem: Problem) -> str:
    """A problem as `boxed_question` reads it."""
    return f"<question>{problem.text}</question>\n\\boxed{{{problem.answer}}}"


# Which questions give their answer away: see `leaks`. YAML reads a bare `off` as false.
LeakGuard = Annotated[
    Literal["token3", "substring", "off"], BeforeValidator(lambda value: "off" if value is False else value)
]
SHORTEST_LEAK = 3  # characters; many honest questions contain a shorter answer
_BOXED = re.compile(r"\\boxed\s*\{.*\}", re.DOTALL)


def leaks(question: str, answer: str, guard: LeakGuard = "token3") -> bool:
    r"""Whether a question gives its answer away.

    `token3` (ours): the answer has three characters or more and is a whole token of the question, in upper or lower
    case, or the question has a `\boxed`; 12.5 and 1,250 are one token each. `substring` (PasoDoble's release): the
    question contains the answer, or the answer the question, or the question has a `\boxed{...}`. `off`: never.
    """
    if guard == "off":
        return False
    if guard == "substring":
        return answer.strip() in question or question.strip() in answer or _BOXED.search(question) is not None
    value = answer.strip().strip("$").strip()
    token = re.compile(rf"(?<!\w)(?<!\d[.,]){re.escape(value)}(?!\w)(?![.,]\d)", re.IGNORECASE)
    return "\\boxed" in question or (len(value) >= SHORTEST_LEAK and token.search(question) is not None)


def fit_to_ask(proposal: Proposal, table: Table, *, most: int, guard: LeakGuard) -> Proposal:
    """The proposal, refused if it has no answer, leaks it, or needs a solver's prompt of more than `most` tokens."""
    if not proposal.usable:
        return proposal
    if proposal.answer is None:
        return proposal.refused("truncated" if proposal.completion.cut_off else "no_answer")
    if len(table.tokenize(asked(proposal.problem("")))) > most:
        return proposal.refused("too_long")
    return proposal.refused("leaks") if leaks(proposal.question, proposal.answer, guard) else proposal


@dataclass(frozen=True)
class Vote:
    """The vote of a group of answers to one question.

    `label`: the shortest answer of the largest class, None for a tie or if no class outnumbers the votes for
    nothing. `votes`: that class's size, 0 if none does. `of`: the number of answers, votes for nothing included.
    `agrees[k]`: whether answer k is in the label's class. `answers` are the extracted answers, None if there was none.
    """

    label: str | None
    votes: int
    of: int
    agrees: tuple[bool, ...]
    answers: tuple[str | None, ...] = ()

    @property
    def share(self) -> float:
        return self.votes / self.of if self.of else 0.0


def vote(table: Table, groups: Sequence[Sequence[Completion]], *, figures: bool = False) -> list[Vote]:
    """The majority of each group of completions.

    Votes for nothing never win but count in the denominator; with `figures`, answers without a digit are such votes. A
    tie for the largest class has no label, nor has a group in which most votes are for nothing.
    """
    return [count([table.read_answer(completion) for completion in group], figures=figures) for group in groups]


def count(answers: Sequence[str | None], *, figures: bool = False) -> Vote:
    """Count the votes of extracted answers; their order does not matter."""
    classes = [
        None if answer is None or (figures and not re.search(r"\d", answer)) else vote_key(answer) for answer in answers
    ]
    winner, votes = majority_vote(classes)
    agrees = tuple(winner is not None and key == winner for key in classes)
    spoken = [spoken_value(answer) for answer, right in zip(answers, agrees, strict=True) if right and answer]
    return Vote(
        min(spoken, key=lambda answer: (len(answer), answer), default=None), votes, len(classes), agrees, tuple(answers)
    )


def verdicts_by_vote(completions: Sequence[Completion], counted: Vote, *, thinks: bool) -> list[Verdict]:
    """Each completion's verdict by its group's vote: correct if it agrees with the label."""
    unlike = "no_majority" if counted.label is None else "wrong"
    return [
        Verdict(
            correct=agrees,
            score=float(agrees),
            answer=answer,
            well_formed=well_formed(completion.text, thinks, completion.prefill),
            reason="" if agrees else "no_answer" if answer is None else unlike,
        )
        for completion, answer, agrees in zip(completions, counted.answers, counted.agrees, strict=True)
    ]


FATES = (
    Figure("no_majority", "questions without a majority",
           about="Drawn questions whose votes are tied, or for nothing."),
    Figure("too_hard", "questions too hard", about="Drawn questions whose majority has too small a share."),
    Figure("too_easy", "questions too easy", about="Drawn questions whose majority has too large a share."),
    Figure("draws", "questions drawn", about="Questions drawn to fill a round."),
)  # fmt: skip
HOPELESS = 4  # drawing ends after 1/HOPELESS of all draws if none was kept

Fate = Literal["kept", "refused", "no_majority", "too_hard", "too_easy"]


@dataclass(frozen=True)
class Candidate:
    """A proposal with the solver's answers to it (none if it is no question) and their vote, if there was one."""

    name: str
    proposal: Proposal
    group: Group | None = None
    vote: Vote | None = None

    @property
    def share(self) -> float:
        """The share of answers in the largest class, or without a vote the mean score of judged ones; 0 without."""
        if self.vote is not None:
            return self.vote.share
        samples = self.group.samples if self.group else ()
        judged = [each.verdict.score for each in samples if each.verdict and each.judged]
        return fmean(judged) if judged else 0.0

    @property
    def label(self) -> str | None:
        return self.vote.label if self.vote is not None else None


@dataclass(frozen=True)
class Bounds:
    """The range of shares, ends included, in which a question is kept. 0 to 1 keeps every question with a label."""

    low: float
    high: float

    def fate(self, candidate: Candidate) -> Fate:
        """A candidate's outcome. Without a majority it has no label, whatever its share."""
        if not candidate.proposal.usable:
            return "refused"
        if candidate.label is None:
            return "no_majority"
        return "too_hard" if candidate.share < self.low else "too_easy" if candidate.share > self.high else "kept"


def by_answer(
    table: Table, problems: Sequence[Problem], rows: Sequence[Sequence[Completion]], pay: Pay
) -> list[tuple[Group, Vote | None]]:
    """Answers compared with each problem's reference answer."""
    return [(group, None) for group in verified(table, problems, rows, pay)]


def by_vote(
    table: Table, problems: Sequence[Problem], rows: Sequence[Sequence[Completion]], pay: Pay, *, figures: bool = False
) -> list[tuple[Group, Vote | None]]:
    """Answers compared with their majority, which becomes the problem's label."""
    found = list[tuple[Group, Vote | None]]()
    for problem, row, counted in zip(problems, rows, vote(table, rows, figures=figures), strict=True):
        judged = zip(row, verdicts_by_vote(row, counted, thinks=table.thinks), strict=True)
        labelled = replace(problem, answer=counted.label)
        found.append((Group([pay(answer, verdict, labelled) for answer, verdict in judged], labelled), counted))
    return found


def by_label(
    table: Table, problems: Sequence[Problem], rows: Sequence[Sequence[Completion]], pay: Pay, *, figures: bool = False
) -> list[tuple[Group, Vote | None]]:
    """Answers compared with their problem's label, or with their majority if it has none. Problems without a label come
    first."""
    own = sum(problem.answer is None for problem in problems)
    return [
        *by_vote(table, problems[:own], rows[:own], pay, figures=figures),
        *by_answer(table, problems[own:], rows[own:], pay),
    ]


Judge = Callable[[Table, Sequence[Problem], Sequence[Sequence[Completion]], Pay], Sequence[tuple[Group, Vote | None]]]


def answered(
    table: Table,
    solver: str,
    proposals: Sequence[Proposal],
    n: int,
    names: str | Sequence[str],
    *,
    judge: Judge = by_vote,
    pay: Pay = answer_sample,
    pose: Callable[[Proposal, str], Problem] = Proposal.problem,
) -> list[Candidate]:
    """Proposals, each with `n` answers of the solver, in order. `names` is a name for each, or a prefix for numbers.

    A question too long for a prompt is refused. `pose` turns a proposal into a problem, `judge` its answers into a
    group, and `pay` an answer into a sample.
    """
    names = [f"{names}-{k}" for k in range(len(proposals))] if isinstance(names, str) else names
    found = [Candidate(*each) for each in zip(names, proposals, strict=True)]
    problems = [pose(each.proposal, each.name) for each in found if each.proposal.usable]
    rows = table.ask(solver, list(map(asked, problems)), n=n) if problems else []
    judged = iter(judge(table, problems, rows, pay))
    return [_with_answers(each, *next(judged)) if each.proposal.usable else each for each in found]


def _with_answers(candidate: Candidate, group: Group, counted: Vote | None) -> Candidate:
    if any(sample.judged for sample in group.samples):
        return replace(candidate, group=group, vote=counted)
    unasked = group.samples[0].completion.stop == "prompt_too_long"
    return replace(candidate, proposal=candidate.proposal.refused("too_long" if unasked else NOT_JUDGED))


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

    The solver answers each question `n` times. Batches are judged whole, so more than `wanted` may be kept. Drawing
    also ends after a quarter of the draws if none was kept, because the rest would hardly be better.
    """
    drawn: list[Candidate] = []
    kept = 0
    while len(drawn) < most and kept < wanted and (kept or len(drawn) < most / HOPELESS):
        batch = propose()[: most - len(drawn)]
        drawn += answered(table, solver, batch, n, [f"{prefix}-{len(drawn) + k}" for k in range(len(batch))])
        kept = sum(bounds.fate(candidate) == "kept" for candidate in drawn)
    return drawn


def shown(candidate: Candidate, bounds: Bounds, reward: float | None = None, **info: Any) -> Sample:
    """A proposal with its outcome as a sample, without a reward for the records only."""
    told = {
        "question": candidate.name,
        "fate": candidate.proposal.reason or bounds.fate(candidate),
        "label": candidate.label,
        "share": candidate.share,
        **info,
    }
    return Sample(candidate.proposal.completion, reward, masked=reward is None, info=told)
