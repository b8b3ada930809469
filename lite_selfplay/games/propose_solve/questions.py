"""Questions: read out of what a proposer wrote, answered, labelled by a majority, and drawn until enough fit.

A proposal without a question is data and no error: it keeps its reason, and is counted by it.

Votes are counted by answer class (`lite_selfplay.verify.keys`), worked out from each answer alone, so that neither the
order of the answers nor the direction of a comparison matters. A completion without an answer votes for nothing, and so
does an answer that states no value: the question restated, or "I do not know".

CPMobius (difficulty-filtered batching, section 3.1) and R-Zero keep questions by how far the answers to them agree.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from lite_selfplay.credit import rewards_of
from lite_selfplay.data import Completion, Example, Group, Problem, Sample, Verdict
from lite_selfplay.games.presentation import Figure
from lite_selfplay.games.prompts import asked, fill
from lite_selfplay.games.table import Table
from lite_selfplay.games.worked_examples import after_reasoning, solution_of
from lite_selfplay.stats import majority_vote
from lite_selfplay.verify.extract import completion_text
from lite_selfplay.verify.format import boxed_spans, split_reasoning, well_formed
from lite_selfplay.verify.keys import spoken_value, vote_key

REASONS = ("", "prompt_too_long", "truncated", "off_format", "empty", "no_answer", "too_long", "repeated", "leaks")
"""Why a proposal is no question; the empty one is a question's."""


@dataclass(frozen=True)
class Proposal:
    """What a proposer's completion proposes. `reason` is one of `REASONS`, empty where there is a question."""

    completion: Completion
    question: str = ""
    answer: str | None = None
    reason: str = ""

    @property
    def usable(self) -> bool:
        return not self.reason

    def refused(self, reason: str) -> "Proposal":
        """The same proposal as no question."""
        return replace(self, reason=reason)

    def problem(self, name: str, answer: str | None = None) -> Problem:
        """The question as a problem to solve, with a label; by default the proposer's own answer."""
        return Problem(name, self.question, self.answer if answer is None else answer)


def read(completion: Completion, parse: Callable[[str], tuple[str, str | None] | None]) -> Proposal:
    """A completion as a proposal. `parse` gives question and answer of a text, None where it finds no marker."""
    if completion.stop == "prompt_too_long":
        return Proposal(completion, reason="prompt_too_long")
    reasoning = split_reasoning(completion_text(completion))
    text = None if reasoning.state == "open" else reasoning.rest.strip()
    found = parse(text) if text else None
    if found is None:
        cut = completion.cut_off
        return Proposal(completion, reason="truncated" if cut else "empty" if text == "" else "off_format")
    question, answer = found[0].strip(), found[1]
    return Proposal(completion, question, answer, "" if question else "empty")


def last_tagged(text: str, tag: str) -> str | None:
    """What stands in the last `<tag>...</tag>` of a text; None without one."""
    found = re.findall(rf"<{tag}>((?:(?!<{tag}>).)*?)</{tag}>", text, re.DOTALL)
    return found[-1].strip() if found else None


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{...}` of a text that is closed and has something in it; None without one."""
    spans = [span for span in boxed_spans(text) if span.closed and span.content.strip()]
    return spans[-1].content.strip() if spans else None


def boxed_question(completion: Completion) -> Proposal:
    """A completion as a proposal: its last `<question>`, which needs a boxed answer after it."""

    def parse(text: str) -> tuple[str, str | None] | None:
        question = last_tagged(text, "question")
        return None if question is None else (question, last_boxed(text.rpartition("</question>")[2]))

    proposal = read(completion, parse)
    return proposal.refused("no_answer") if proposal.usable and proposal.answer is None else proposal


def boxed_example(problem: Problem, prompt: str, *, thinks: bool) -> Example | None:
    """A problem that brings a worked solution as the reply that `boxed_question` reads; None without a solution."""
    if (solution := solution_of(problem)) is None:
        return None
    reply = f"<question>{problem.text}</question>\n\\boxed{{{problem.answer}}}"
    return Example(prompt, after_reasoning(reply, solution, thinks))


LeakGuard = Annotated[
    Literal["token3", "substring", "off"], BeforeValidator(lambda value: "off" if value is False else value)
]
"""Which questions give their answer away: see `leaks`. YAML reads a bare `off` as false."""
SHORTEST_LEAK = 3
"""Characters; a shorter answer stands in many an honest question."""
_BOXED = re.compile(r"\\boxed\s*\{.*\}", re.DOTALL)


def leaks(question: str, answer: str, guard: LeakGuard = "token3") -> bool:
    r"""Whether a question gives its answer away.

    `token3` (ours): the answer has three characters or more and stands in the question as a whole token, whatever the
    case, or the question has a `\boxed`; 12.5 and 1,250 are one token each. `substring` (PasoDoble's release): the
    answer stands in the question anywhere, the question in the answer, or the question has a `\boxed{...}`. `off`:
    never.
    """
    if guard == "off":
        return False
    if guard == "substring":
        return answer.strip() in question or question.strip() in answer or _BOXED.search(question) is not None
    if "\\boxed" in question:
        return True
    value = answer.strip().strip("$").strip()
    if len(value) < SHORTEST_LEAK:
        return False
    whole = rf"(?<!\w)(?<!\d[.,]){re.escape(value)}(?!\w)(?![.,]\d)"
    return re.search(whole, question, re.IGNORECASE) is not None


def fit_to_ask(proposal: Proposal, table: Table, *, most: int, guard: LeakGuard) -> Proposal:
    """The proposal, refused if it has no answer, gives it away, or makes a solver's prompt of over `most` tokens."""
    if not proposal.usable:
        return proposal
    if proposal.answer is None:
        return proposal.refused("truncated" if proposal.completion.cut_off else "no_answer")
    if len(table.tokenize(asked(proposal.problem("")))) > most:
        return proposal.refused("too_long")
    return proposal.refused("leaks") if leaks(proposal.question, proposal.answer, guard) else proposal


def pass_rate(group: Group) -> float:
    """The share of a question's answers that match the proposer's: p, the mean of rewards of 0 or 1."""
    return fmean(rewards_of(group.samples))


def count_reasons(proposals: Iterable[Proposal]) -> dict[str, int]:
    """How many proposals were no question, by reason."""
    return dict(sorted(Counter(p.reason for p in proposals if p.reason).items()))


@dataclass(frozen=True)
class Vote:
    """What a group of answers to one question agrees on.

    `label` is the plainest answer of the largest class, None on a tie or where no class is larger than the votes for
    nothing; `votes` that class's size, 0 in the latter case; `of` the number of answers, votes for nothing included.
    `agrees[k]`: whether answer k is in the class of the label. `answers` as they were read, None where none was found.
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

    Votes for nothing never win, but count in the denominator; with `figures` they are also the answers without a digit.
    A tie for the largest class has no label, and neither has a group in which most votes are for nothing.
    """
    return [count([table.read_answer(completion) for completion in group], figures=figures) for group in groups]


def count(answers: Sequence[str | None], *, figures: bool = False) -> Vote:
    """The vote of written answers. The same answers in any order give the same label, votes and agreement."""
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
    """Each completion's verdict by the vote on its group: correct where it agrees with the label."""
    judged = zip(completions, counted.answers, counted.agrees, strict=True)
    return [
        Verdict(
            correct=agrees,
            score=float(agrees),
            answer=answer,
            well_formed=well_formed(completion.text, thinks, completion.prefill),
            reason="" if agrees else _reason(answer, counted),
        )
        for completion, answer, agrees in judged
    ]


def _reason(answer: str | None, counted: Vote) -> str:
    if answer is None:
        return "no_answer"
    return "no_majority" if counted.label is None else "wrong"


FATES = (
    Figure(
        "no_majority", "questions without a majority", about="Drawn questions whose votes are tied, or for nothing."
    ),
    Figure("too_hard", "questions too hard", about="Drawn questions whose majority has too small a share."),
    Figure("too_easy", "questions too easy", about="Drawn questions whose majority has too large a share."),
    Figure("draws", "questions drawn", about="Questions drawn to fill a round."),
)
HOPELESS = 4
"""The share of all draws, one in so many, that may keep nothing before drawing ends."""

Fate = Literal["kept", "refused", "no_majority", "too_hard", "too_easy"]


@dataclass(frozen=True)
class Candidate:
    """A proposal, the solver's answers to it and their vote; without answers and vote where it is no question."""

    name: str
    proposal: Proposal
    answers: tuple[Completion, ...] = ()
    vote: Vote | None = None

    @property
    def share(self) -> float:
        """The share of the answers that the largest class holds, in [0, 1]; 0 for what is no question."""
        return self.vote.share if self.vote is not None else 0.0

    @property
    def label(self) -> str | None:
        return self.vote.label if self.vote is not None else None

    @property
    def problem(self) -> Problem:
        """The question with the majority's answer, which is None on a tie."""
        return Problem(self.name, self.proposal.question, self.label)


@dataclass(frozen=True)
class Bounds:
    """The shares between which a question is kept, both included. `low` 0 and `high` 1 keep all that have a label."""

    low: float
    high: float

    def fate(self, candidate: Candidate) -> Fate:
        """What becomes of a candidate. One without a majority has no label, whatever its share."""
        if not candidate.proposal.usable:
            return "refused"
        if candidate.label is None:
            return "no_majority"
        if candidate.share < self.low:
            return "too_hard"
        return "too_easy" if candidate.share > self.high else "kept"


def answered(
    table: Table, solver: str, proposals: Sequence[Proposal], n: int, *, prefix: str, first: int = 0
) -> list[Candidate]:
    """Proposals with `n` answers each of the solver, and their vote, in order; named by `prefix` and numbers from
    `first` on. A question that is too long for a prompt is refused."""
    found = [Candidate(f"{prefix}-{first + k}", proposal) for k, proposal in enumerate(proposals)]
    places = [k for k, proposal in enumerate(proposals) if proposal.usable]
    prompts = [fill("solver", problem=proposals[k].question) for k in places]
    groups = table.ask(solver, prompts, n=n) if prompts else []
    for k, group, counted in zip(places, groups, vote(table, groups), strict=True):
        if group[0].stop == "prompt_too_long":
            found[k] = replace(found[k], proposal=proposals[k].refused("too_long"))
        else:
            found[k] = replace(found[k], answers=tuple(group), vote=counted)
    return found


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

    Each question is answered `n` times by the solver. More than `wanted` may be kept, since a batch is judged whole. A
    quarter of the draws without a single question that is kept ends it, too: the rest would hardly be better.
    """
    drawn: list[Candidate] = []
    kept = 0
    while len(drawn) < most and kept < wanted and (kept or len(drawn) < most / HOPELESS):
        batch = propose()[: most - len(drawn)]
        drawn += answered(table, solver, batch, n, prefix=prefix, first=len(drawn))
        kept = sum(bounds.fate(candidate) == "kept" for candidate in drawn)
    return drawn


def count_fates(candidates: Iterable[Candidate], bounds: Bounds) -> dict[str, int]:
    """How many candidates had no majority, or were too hard or too easy."""
    counts = Counter(bounds.fate(candidate) for candidate in candidates)
    return {fate: counts[fate] for fate in ("no_majority", "too_hard", "too_easy")}


def shown(candidate: Candidate, bounds: Bounds) -> Group:
    """A proposal for the record alone: masked, without a reward, with what became of it."""
    fate = bounds.fate(candidate)
    info = {
        "question": candidate.name,
        "fate": candidate.proposal.reason if fate == "refused" else fate,
        "label": candidate.label,
        "share": candidate.share,
    }
    return Group([Sample(candidate.proposal.completion, None, masked=True, info=info)])


def watched(candidates: Sequence[Candidate]) -> dict[str, Any]:
    """The questions that were answered, for the collapse watch."""
    asked = [candidate for candidate in candidates if candidate.vote is not None]
    shares = [candidate.share for candidate in asked]
    questions = [candidate.proposal.question for candidate in asked]
    return {"questions": questions, "pass_rates": shares, "vote_shares": shares}
