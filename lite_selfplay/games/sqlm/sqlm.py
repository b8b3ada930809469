"""SQLM: self-questioning language models (Chen et al., "Self-Questioning Language Models").

From a topic prompt and nothing else. One step, with n = 4:

    the proposer writes n questions to each of a number of equal prompts      a group a prompt
    the solver answers each question n times                                  a group a question
    label(q) = the majority of the answers to q; votes(q) = how many agree with it
    R(answer)   = 1 where it is the label, else 0                             equation 1
    R(question) = 1 where 1 < votes < n, else 0                               equation 2, with section 5.1
    a GRPO update of the solver at every step, of the proposer at every fifth

Kept from the paper: both rewards, n = 4, the proposer's interval, KL 1e-3, temperature 1, clip 0.2, a constant learning
rate, one set of weights in both roles, "Selected Question" in algebra and the whole reply in arithmetic.

Changed: adapters instead of all weights, at 3e-5 instead of 1e-6. With one shared seat, a step that moves both roles
adds both gradients into one update; the paper moves the solver first. The vote is over classes of equal answers, so
that 1/2 and 0.5 vote together, where the release compares strings. A step is one update unless `run.minibatches` says
otherwise, as the presets do: 8 for the solver's 1,024 answers, 128 at a time. The prompts are worded anew. The released
code trains its code topic by PPO with a critic; here it is GRPO as well.

In the code topic a question is a description with one to five tests, and an answer is a program:

    R(program)  = the share of the tests that it passes                       equation 3
    R(question) = 1 where the programs pass some of the tests and not all     equation 4, over the n answers together

Ours, where the sources are silent or take what comes first: a tie for the largest class has no label and pays no
solver, and the proposer is still paid by the size of the class. An answer without a value, or without a digit in the
topics of numbers, votes for nothing but counts in n. A reply without its mark is masked, and never reaches the
solver; one that is empty, cut off or too long to be asked earns 0. Where k is the interval, the proposer moves at steps
k, 2k, ...; at others its rows are recorded, but masked. The format baseline pays the solver alone by format.
Pre-generated questions are shuffled once, and each prompt's place is taken by one, so that 6,400 serve 100 steps of 64
once each (section 5.5); what is over begins anew.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from lite_selfplay.data import Completion, Episode, Example, Group, Problem, Sample, Stream, Verdict
from lite_selfplay.games.presentation import FOR_FORM, FOR_VOTE, Figure
from lite_selfplay.games.prompts import asked
from lite_selfplay.games.propose_solve.propose_solve import (
    BREAKDOWNS,
    WATCHED,
    YIELD,
    ProposeSolve,
    ProposeSolveOptions,
)
from lite_selfplay.games.propose_solve.questions import Proposal, read, verdicts_by_vote, vote
from lite_selfplay.games.sqlm.topics import CODE, SHIPPED, Topic, load_topic, numbered_lines, problem_with_tests
from lite_selfplay.games.table import Table
from lite_selfplay.games.worked_examples import after_reasoning
from lite_selfplay.verify import programs
from lite_selfplay.verify.extract import completion_text


def solver_reward(score: float, well_formed: bool, kind: Literal["majority", "format"] = "majority") -> float:
    """1 for an answer that is the majority's, else 0 (equation 1), or the share of tests that a program passes
    (equation 3); the baseline (section 5.2): 1 for its format."""
    return float(well_formed if kind == "format" else score)


def proposer_reward(votes: int, n: int) -> float:
    """1 where more than one of a question's `n` answers agree and not all do, else 0 (equation 2, section 5.1)."""
    return float(1 < votes < n)


def proposer_reward_by_tests(share: float) -> float:
    """1 where the answers to a question pass some of its tests and not all, else 0 (equation 4, over all n answers)."""
    return float(0 < share < 1)


@dataclass(frozen=True)
class AnsweredQuestion:
    """A question, its answers and their verdicts.

    `share` says how far the answers got: the share that agrees with the majority, or the mean share of tests passed.
    `pays`: whether that is neither nothing nor everything, for which a proposer is paid; `fate` says why not. `label`
    is what the majority says, None without one; `votes` how many agree, None where tests judge.
    """

    problem: Problem
    answers: Sequence[Completion]
    verdicts: Sequence[Verdict]
    share: float
    pays: bool
    fate: str = ""
    label: str | None = None
    votes: int | None = None

    @property
    def unread(self) -> bool:
        """Whether the question was too long to be asked."""
        return all(answer.stop == "prompt_too_long" for answer in self.answers)


def by_votes(
    table: Table, problems: Sequence[Problem], answers: Sequence[Sequence[Completion]], *, figures: bool
) -> list[AnsweredQuestion]:
    """Questions labelled by the majority of their answers. A small gap between generating and verifying: equation 2."""
    found = []
    for problem, row, counted in zip(problems, answers, vote(table, answers, figures=figures), strict=True):
        pays = proposer_reward(counted.votes, counted.of) == 1
        fate = "" if pays else "all_agree" if counted.votes == counted.of else "none_agree"
        labelled = Problem(problem.id, problem.text, counted.label)
        verdicts = verdicts_by_vote(row, counted, thinks=table.thinks)
        found.append(AnsweredQuestion(labelled, row, verdicts, counted.share, pays, fate, counted.label, counted.votes))
    return found


def by_tests(
    table: Table, problems: Sequence[Problem], answers: Sequence[Sequence[Completion]]
) -> list[AnsweredQuestion]:
    """Questions whose answers are programs, judged by the proposer's tests. A large gap: equations 3 and 4.

    The verdict's score is equation 3, the share of the tests that a program passes.
    """
    judged = iter(table.verify([(each, p) for p, row in zip(problems, answers, strict=True) for each in row]))
    found = []
    for problem, row in zip(problems, answers, strict=True):
        verdicts = [next(judged) for _ in row]
        share = sum(verdict.score for verdict in verdicts) / len(verdicts)
        pays = proposer_reward_by_tests(share) == 1
        fate = "" if pays else "all_pass" if share == 1 else "none_pass"
        found.append(AnsweredQuestion(problem, row, verdicts, share, pays, fate))
    return found


class SqlmOptions(ProposeSolveOptions):
    """SQLM's switches.

    `topic`: `arithmetic`, `algebra`, `code` or a text file with a prompt. `seats`: one adapter in both roles, or `two`.
    `reward`: the solver is paid for agreeing with the majority, or for the `format` alone (a baseline). `questions`:
    written at every step, or `pregenerated` at the first one by `calls` completions of `questions_per_call` questions
    (a baseline, in which the proposer never moves). The proposer moves every `proposer_every` steps, 0 for never.
    """

    topic: str = "arithmetic"
    seats: Literal["shared", "two"] = "shared"
    reward: Literal["majority", "format"] = "majority"
    questions: Literal["proposed", "pregenerated"] = "proposed"
    proposer_every: int = Field(5, ge=0)
    questions_per_call: int = Field(16, ge=1)
    calls: int = Field(400, ge=1)

    @model_validator(mode="after")
    def _code_is_proposed(self) -> Self:
        if self.topic == CODE and self.questions == "pregenerated":
            raise PydanticCustomError("topic", "questions of the code topic bring tests, and are not written in lists")
        return self

    @field_validator("topic")
    @classmethod
    def _a_topic(cls, value: str) -> str:
        """A file by its whole path, so that a run can be resumed from another folder."""
        try:
            load_topic(value, 1)
        except ValueError as error:
            raise PydanticCustomError("topic", "{why}", {"why": str(error)}) from None
        return value if value in SHIPPED else str(Path(value).resolve())


class Sqlm(ProposeSolve):
    """A proposer asks from a topic alone; a solver is paid for the majority's answer, the proposer where it splits."""

    roles = ("proposer", "solver")
    about = "SQLM: a topic prompt and nothing else; majority votes label what a proposer asks"
    needs_answers: bool = False
    Options = SqlmOptions
    figures = (
        *YIELD,
        *WATCHED,
        Figure("without_majority", "questions without a majority", about="Questions whose votes are tied."),
        Figure(
            "unread_answers",
            "answers that could not be read",
            "share",
            of="questions",
            about="Answers that state no value, and so have no vote.",
        ),
        *BREAKDOWNS,
    )
    recipe: ClassVar[dict[str, Any]] = {
        "run": {"group_size": 4},
        "seats": {"*": {"lr": 3e-5, "schedule": "constant", "warmup": 0.0, "full_finetune_lr": 1e-6}},
        "roles": {"*": {"beta": 1e-3, "clip_ratio": 0.2}},
    }

    def __init__(self, options: Any = None, *, group_size: int = 4, problems_per_step: int = 4):
        super().__init__(options, group_size=group_size, problems_per_step=problems_per_step)
        self.topic = load_topic(self.options.topic, self.options.questions_per_call)
        self.default_tasks, self.runs_programs = self.topic.tasks, self.topic.programs
        self._questions: list[str] = []  # pre-generated
        self._position = 0

    def rollouts_per_step(self) -> int:
        """Completions of a step whose proposals are all questions."""
        asked = self.problems_per_step * self.group_size
        return asked if self.options.questions == "pregenerated" else asked * (self.group_size + 1)

    def most_rollouts(self, steps: int) -> int:
        """Those of its steps, and the lists of questions that are written before the first one."""
        lists = self.options.calls if self.options.questions == "pregenerated" else 0
        return self.rollouts_per_step() * steps + lists

    def proposer_moves(self, step: int) -> bool:
        """Whether the proposer learns at a step: every so many steps, never from questions written beforehand."""
        every = self.options.proposer_every
        return self.options.questions == "proposed" and every > 0 and (step + 1) % every == 0

    def updates(self, steps: int) -> Mapping[str, int]:
        """A shared seat moves at every step, as the solver does."""
        if self.options.seats == "shared":
            return {"shared": steps}
        return {"proposer": sum(map(self.proposer_moves, range(steps))), "solver": steps}

    def rewards(self) -> Mapping[str, str]:
        if self.topic.programs:
            return {"proposer": "1 for a question that splits the programs", "solver": "the share of tests passed"}
        solver = FOR_FORM if self.options.reward == "format" else FOR_VOTE
        return {"proposer": "1 for a question that splits the vote", "solver": f"1 {solver}"}

    def describe(self, steps: int) -> list[str]:
        options, rows, n = self.options, self.problems_per_step, self.group_size
        each = f"{n} answers to each, rewarded by {'tests' if self.topic.programs else options.reward}"
        if options.questions == "pregenerated":
            most = options.calls * options.questions_per_call
            return [
                f"topic {options.topic}: step 1 first writes up to {most:,} questions in {options.calls} completions",
                f"each step draws {self.problems_per_step} of them: {each}; the proposer never moves",
            ]
        moves = sum(map(self.proposer_moves, range(steps)))
        in_vain = ", though with two answers no question splits them" if n == 2 and moves else ""
        return [
            f"topic {options.topic}: each step asks {rows} times for {n} questions, {each}",
            f"the solver moves at every step, the proposer at {moves} of {steps}{in_vain}",
        ]

    def worked_proposal(self, problem: Problem, *, thinks: bool) -> Example | None:
        reply = self.topic.written(problem)
        return None if reply is None else Example(self.topic.prompt, after_reasoning(reply, "", thinks))

    # A step

    def play(self, step: int, table: Table) -> Episode:
        if self.options.questions == "pregenerated":
            return self._play_drawn(step, table)
        replies = table.ask("proposer", [self.topic.prompt] * self.problems_per_step, n=self.group_size)
        proposals = [read_question(self.topic, completion) for row in replies for completion in row]
        answered = iter(self._answers(step, table, [(p.question, p.answer) for p in proposals if p.usable]))
        asked = [_asked(proposal, next(answered) if proposal.usable else None) for proposal in proposals]
        solved = [question for _, question in asked if question is not None]
        log = self._log(table, [proposal for proposal, _ in asked], solved)
        # Without a question nothing moves.
        moves = self.proposer_moves(step) and bool(solved)
        samples = [self._proposed(proposal, question, moves=moves) for proposal, question in asked]
        n = self.group_size
        groups = [
            Group(samples[i * n : (i + 1) * n], Problem(f"topic-{step}-{i}", self.topic.prompt))
            for i in range(self.problems_per_step)
        ]
        streams = [*self._solved(table, solved), Stream("proposer", groups)]
        return Episode(streams, log={**log, "proposer_moves": moves})

    def _play_drawn(self, step: int, table: Table) -> Episode:
        """A step with questions written beforehand, by the seat as it enters training."""
        written = [] if self._questions else self._write(table)
        wanted = self.problems_per_step if self._questions else 0
        drawn = [(self._questions[(self._position + i) % len(self._questions)], None) for i in range(wanted)]
        self._position += wanted
        solved = [question for question in self._answers(step, table, drawn) if not question.unread]
        log = self._log(table, written, solved)
        return Episode(self._solved(table, solved), log={**log, "written": len(self._questions)})

    def _write(self, table: Table) -> list[Proposal]:
        """Fill the stock of questions; what each call came to."""
        calls = [reply for (reply,) in table.ask("proposer", [self.topic.many] * self.options.calls)]
        lists = [read(reply, partial(_listed, cut=reply.cut_off)) for reply in calls]
        most = self.options.questions_per_call
        self._questions = [q for listed in lists if listed.usable for q in listed.question.split("\n")[:most]]
        table.rng.shuffle(self._questions)
        return lists

    def _answers(self, step: int, table: Table, questions: Sequence[tuple[str, str | None]]) -> list[AnsweredQuestion]:
        """Each question, perhaps with its tests in JSON, with its answers and the verdicts on them."""
        if not questions:
            return []
        if self.topic.programs:
            problems = [
                programs.program_problem(f"q-{step}-{i}", text, tests, f"question {i}")
                for i, (text, tests) in enumerate(questions)
            ]
        else:
            problems = [Problem(f"q-{step}-{i}", text) for i, (text, _) in enumerate(questions)]
        answers = table.ask("solver", [asked(problem) for problem in problems], n=self.group_size)
        if self.topic.programs:
            return by_tests(table, problems, answers)
        return by_votes(table, problems, answers, figures=self.topic.figures)

    def _solved(self, table: Table, solved: Sequence[AnsweredQuestion]) -> list[Stream]:
        """The solver's stream; none where there was no question."""
        groups = [
            Group(
                [
                    Sample(
                        answer,
                        solver_reward(verdict.score, verdict.well_formed, self.options.reward),
                        verdict,
                        info={"question": question.problem.id, "label": question.label},
                    )
                    for answer, verdict in zip(question.answers, question.verdicts, strict=True)
                ],
                question.problem,
            )
            for question in solved
        ]
        return [Stream("solver", groups)] if groups else []

    def _proposed(self, proposal: Proposal, question: AnsweredQuestion | None, *, moves: bool) -> Sample:
        """A proposal with what it earns; masked where the proposer rests, or the reply holds no question to judge."""
        reward = float(question is not None and question.pays)
        unmarked = self.topic.find(completion_text(proposal.completion)) is None
        info: dict[str, Any] = {}
        if question is not None:
            counted = {"share": question.share} if question.votes is None else {"votes": question.votes}
            info = {"question": question.problem.id, **counted}
        return Sample(
            proposal.completion,
            reward,
            Verdict(
                reward == 1,
                reward,
                well_formed=proposal.usable,
                reason=proposal.reason or (question.fate if question else ""),
            ),
            masked=not moves or unmarked or proposal.reason == "prompt_too_long",
            info=info,
        )

    def _log(self, table: Table, proposals: Sequence[Proposal], solved: Sequence[AnsweredQuestion]) -> dict[str, Any]:
        shares = [question.share for question in solved]
        answers = [verdict.answer for question in solved for verdict in question.verdicts]
        watched = self.watch.look(
            [question.problem.text for question in solved],
            tokens=table.tokenize,
            pass_rates=shares,
            vote_shares=() if self.topic.programs else shares,
            labels=[(question.problem.text, question.label) for question in solved],
        )
        without = () if self.topic.programs else solved
        return {
            **self.question_yield(proposals, len(solved)),
            **watched,
            "without_majority": sum(question.label is None for question in without),
            "unread_answers": answers.count(None) / len(answers) if answers else None,
        }

    def warnings(self, log: Mapping[str, Any]) -> list[str]:
        """As the family's; the format baseline trains towards no label."""
        return super().warnings({**log, "labels_checked": 0} if self.options.reward == "format" else log)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "questions": list(self._questions), "position": self._position}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._questions, self._position = list(state["questions"]), state["position"]


def read_question(topic: Topic, completion: Completion) -> Proposal:
    """What a reply proposes; a question that was cut off is invalid."""

    def parse(text: str) -> tuple[str, str | None] | None:
        question = topic.find(text)
        if question is None:
            return None
        return question, json.dumps(problem_with_tests(text)[1]) if topic.programs else None

    proposal = read(completion, parse)
    return proposal.refused("truncated") if proposal.usable and completion.cut_off else proposal


def _asked(proposal: Proposal, question: AnsweredQuestion | None) -> tuple[Proposal, AnsweredQuestion | None]:
    """A proposal and its answers; refused where its question was too long to be asked."""
    return (proposal.refused("too_long"), None) if question and question.unread else (proposal, question)


def _listed(text: str, *, cut: bool) -> tuple[str, None] | None:
    found = numbered_lines(text, cut=cut)
    return ("\n".join(found), None) if found else None
