"""SQLM: self-questioning language models (Chen et al., "Self-Questioning Language Models").

Only a topic prompt is given. One step, with n = 4:

    the proposer writes n questions to each of a number of equal prompts      a group per prompt
    the solver answers each question n times                                  a group per question
    label(q) = the majority of the answers to q; votes(q) = how many agree with it
    R(answer)   = 1 if it is the label, else 0                                equation 1
    R(question) = 1 if 1 < votes < n, else 0                                  equation 2, with section 5.1
    a GRPO update of the solver at every step, of the proposer at every fifth

Kept from the paper: both rewards, n = 4, the proposer's interval, KL 1e-3, temperature 1, clip 0.2, a constant learning
rate, one set of weights in both roles, "Selected Question" in algebra and the whole reply in arithmetic.

Changed: adapters instead of all weights, at 3e-5 instead of 1e-6. With one shared seat, a step for both roles adds both
gradients into one update; the paper updates the solver first. The vote is over classes of equal answers, so that 1/2
and 0.5 vote together; the release compares strings. A step is one update unless `run.minibatches` says otherwise, as in
the presets: 8 for the solver's 1,024 answers, 128 at a time. The prompts are worded anew. The released code trains its
code topic by PPO with a critic; here it is GRPO as well.

In the code topic a question is a description with one to five tests, and an answer is a program:

    R(program)  = the share of the tests that it passes                       equation 3
    R(question) = 1 if the programs pass some of the tests and not all        equation 4, over the n answers together

Ours, where the sources are silent or take the first one: a tie for the largest class has no label and earns the solver
nothing, and the proposer is still rewarded by the size of the class. An answer without a value, or without a digit in
the topics of numbers, votes for nothing but counts in n. A reply without its mark is masked and never reaches the
solver; one that is empty, cut off or too long to be asked earns 0. With the interval k, the proposer is updated at
steps k, 2k, ...; at others its rows are recorded, but masked. The format baseline rewards the solver alone by format.
Pre-generated questions are shuffled once, and each replaces one prompt, so that 6,400 serve 100 steps of 64 once each
(section 5.5); after the last, the first follows.

Not SQLM's: with `game.anchors`, a few labelled problems, as R-Few gives to R-Zero (arXiv 2512.02472, of which we had
the abstract). The paper trains its solver on problems of middle difficulty; in a group whose answers are all right, or
all wrong, no answer has an advantage. Our rule:

    each prompt of the proposer shows 0 to `shots` anchors, drawn anew
    for each prompt the solver answers the next `shots` anchors, n times each         R(answer) by the label
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from lite_selfplay.data import Completion, Episode, Example, Group, Problem, Sample, Stream, Verdict
from lite_selfplay.games.presentation import FOR_FORM, FOR_VOTE, Figure
from lite_selfplay.games.propose_solve.propose_solve import OR_ANCHOR, AnchoredGame, AnchorOptions, family_figures
from lite_selfplay.games.propose_solve.questions import NOBODYS, Candidate, Proposal, answered, by_label, to_proposal
from lite_selfplay.games.sqlm.topics import CODE, SHIPPED, Topic, load_topic, numbered_lines, problem_with_tests
from lite_selfplay.games.table import Table
from lite_selfplay.games.worked_examples import after_reasoning
from lite_selfplay.verify import programs
from lite_selfplay.verify.extract import completion_text


def fate(question: Candidate) -> str:
    """Why a question earns its proposer nothing, in a word; empty if it earns 1: the largest class has several answers
    but not all (equation 2, section 5.1), or the programs together pass some tests but not all (equation 4)."""
    counted, share = question.vote, question.share
    splits = 1 < counted.votes < counted.of if counted else 0 < share < 1
    return "" if splits else f"{'all' if share == 1 else 'none'}_{'agree' if counted else 'pass'}"


class SqlmOptions(AnchorOptions):
    """SQLM's options.

    `topic`: `arithmetic`, `algebra`, `code` or a text file with a prompt. `seats`: one adapter in both roles, or `two`.
    `reward`: the solver's, for agreeing with the majority, or for the `format` alone (a baseline). `questions`: written
    at every step, or `pregenerated` at the first one by `calls` completions of `questions_per_call` questions (a
    baseline that never updates the proposer). `proposer_every`: steps between the proposer's updates, 0 for none. At
    each step the solver also answers `shots` of the `anchors` for every prompt of the proposer.
    """

    topic: str = "arithmetic"
    seats: Literal["shared", "two"] = "shared"
    reward: Literal["majority", "format"] = "majority"
    questions: Literal["proposed", "pregenerated"] = "proposed"
    proposer_every: int = Field(5, ge=0)
    questions_per_call: int = Field(16, ge=1)
    calls: int = Field(400, ge=1)

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        if self.topic == CODE and self.questions == "pregenerated":
            raise PydanticCustomError("topic", "questions of the code topic have tests, and cannot be written in lists")
        if self.anchors and (self.questions == "pregenerated" or self.reward == "format"):
            raise PydanticCustomError("anchors", "anchors need questions=proposed and reward=majority")
        return self

    @field_validator("topic")
    @classmethod
    def _a_topic(cls, value: str) -> str:
        """A shipped topic's name or a file's absolute path, so that a run can be resumed from another folder."""
        load_topic(value, 1)  # raises if there is no such topic
        return value if value in SHIPPED else str(Path(value).resolve())


class Sqlm(AnchoredGame):
    """A proposer asks, given only a topic; majority votes reward the solver, and split votes the proposer."""

    roles = ("proposer", "solver")
    about = "SQLM: a topic prompt and nothing else; majority votes label what a proposer asks"
    needs_answers: bool = False
    Options = SqlmOptions
    figures = family_figures(
        Figure("without_majority", "questions without a majority", about="Questions whose votes are tied."),
        Figure("unread_answers", "answers that could not be read", "share", of="questions",
               about="Answers that state no value, and so have no vote."),
    )  # fmt: skip
    recipe: ClassVar[dict[str, Any]] = {
        "run": {"group_size": 4},
        "seats": {"*": {"lr": 3e-5, "schedule": "constant", "warmup": 0.0, "full_finetune_lr": 1e-6}},
        "roles": {"*": {"beta": 1e-3, "clip_ratio": 0.2}},
    }

    def __init__(self, options: Any = None, *, group_size: int = 4, problems_per_step: int = 4):
        super().__init__(options, group_size=group_size, problems_per_step=problems_per_step)
        self.topic = load_topic(self.options.topic, self.options.questions_per_call)
        self.default_tasks, self.runs_programs = self.topic.tasks, self.topic.programs
        self.written, self.needs_answers = self.topic.written, self.options.anchors > 0
        self._anchored = min(self.options.anchors, self.options.shots * problems_per_step)  # anchors answered in a step
        self._questions: list[str] = []  # pre-generated
        self._position = 0  # in these, or in the anchors

    def rollouts_per_step(self) -> int:
        each = 1 if self.options.questions == "pregenerated" else self.group_size + 1
        return (self.problems_per_step * each + self._anchored) * self.group_size

    def most_rollouts(self, steps: int) -> int:
        """All steps' completions, and the lists of questions written before the first step."""
        lists = self.options.calls if self.options.questions == "pregenerated" else 0
        return self.rollouts_per_step() * steps + lists

    def proposer_moves(self, step: int) -> bool:
        """Whether a step trains the proposer: every so many steps, never with pregenerated questions."""
        every = self.options.proposer_every
        return self.options.questions == "proposed" and every > 0 and (step + 1) % every == 0

    def updates(self, steps: int) -> Mapping[str, int]:
        """The solver, or a shared seat, is updated at every step."""
        if self.options.seats == "shared":
            return {"shared": steps}
        return {"proposer": sum(map(self.proposer_moves, range(steps))), "solver": steps}

    def rewards(self) -> Mapping[str, str]:
        if self.topic.programs:
            return {"proposer": "1 for a question that splits the programs", "solver": "the share of tests passed"}
        solver = FOR_FORM if self.options.reward == "format" else FOR_VOTE + OR_ANCHOR * (self.options.anchors > 0)
        return {"proposer": "1 for a question that splits the vote", "solver": f"1 {solver}"}

    def describe(self, steps: int) -> list[str]:
        options, rows, n = self.options, self.problems_per_step, self.group_size
        each = f"{n} answers to each, rewarded by {'tests' if self.topic.programs else options.reward}"
        if options.questions == "pregenerated":
            most = options.calls * options.questions_per_call
            return [
                f"topic {options.topic}: step 1 first writes up to {most:,} questions in {options.calls} completions",
                f"each step draws {self.problems_per_step} of them: {each}; the proposer is never updated",
            ]
        moves = sum(map(self.proposer_moves, range(steps)))
        in_vain = ", though with two answers no question splits them" if n == 2 and moves else ""
        return [
            *[f"anchors: {options.anchors} labelled problems, {self._anchored} a step, {n} answers to each"]
            * (options.anchors > 0),
            f"topic {options.topic}: each step asks {rows} times for {n} questions, {each}",
            f"the solver is updated at every step, the proposer at {moves} of {steps}{in_vain}",
        ]

    def worked_proposal(self, problem: Problem, *, thinks: bool) -> Example | None:
        reply = self.topic.written(problem)
        return None if reply is None else Example(self.topic.prompt, after_reasoning(reply, "", thinks))

    # A step

    def play(self, step: int, table: Table) -> Episode:
        if self.options.questions == "pregenerated":
            return self._play_drawn(step, table)
        prompts = self.prompts(table, self.topic.prompt, self.problems_per_step)
        replies = table.ask("proposer", prompts, n=self.group_size)
        proposals = [read_question(self.topic, completion) for row in replies for completion in row]
        found = iter(self._answered(step, table, [proposal for proposal in proposals if proposal.usable]))
        asked = [next(found) if proposal.usable else Candidate("", proposal) for proposal in proposals]
        solved = [question for question in asked if question.group]
        anchors = [anchor for anchor in found if anchor.group]
        log = self._log(table, [question.proposal for question in asked], solved)
        moves = self.proposer_moves(step) and bool(solved)  # without a question only anchors train
        samples = [self._proposed(question, moves=moves) for question in asked]
        n = self.group_size
        groups = [
            Group(samples[i * n : (i + 1) * n], Problem(f"topic-{step}-{i}", prompt))
            for i, prompt in enumerate(prompts)
        ]
        return Episode([*_solvers(solved + anchors), Stream("proposer", groups)], log={**log, "proposer_moves": moves})

    def _play_drawn(self, step: int, table: Table) -> Episode:
        """A step with pregenerated questions, written by the initial seat."""
        written = [] if self._questions else self._write(table)
        wanted = self.problems_per_step if self._questions else 0
        drawn = [self._questions[(self._position + i) % len(self._questions)] for i in range(wanted)]
        self._position += wanted
        proposals = [Proposal(NOBODYS, text) for text in drawn]
        solved = [question for question in self._answered(step, table, proposals) if question.group]
        return Episode(_solvers(solved), log={**self._log(table, written, solved), "written": len(self._questions)})

    def _write(self, table: Table) -> list[Proposal]:
        """Have the proposer write all questions, in lists; return a proposal per list."""
        calls = [reply for (reply,) in table.ask("proposer", [self.topic.many] * self.options.calls)]
        lists = [to_proposal(reply, partial(_listed, cut=reply.cut_off)) for reply in calls]
        most = self.options.questions_per_call
        self._questions = [q for listed in lists if listed.usable for q in listed.question.split("\n")[:most]]
        table.rng.shuffle(self._questions)
        return lists

    def _answered(self, step: int, table: Table, proposals: Sequence[Proposal]) -> list[Candidate]:
        """Questions with their answers, judged by the majority or, for programs, by the question's tests; then the
        step's anchors."""
        anchors, pose = self.anchors(table), tested if self.topic.programs else Proposal.problem
        count = min(self._anchored, len(anchors))
        turn = [anchors[(self._position + i) % len(anchors)] for i in range(count)]
        self._position += count
        return answered(
            table,
            "solver",
            [*proposals, *(Proposal(NOBODYS, anchor.text, task=anchor) for anchor in turn)],
            self.group_size,
            f"q-{step}",
            judge=partial(by_label, figures=self.topic.figures),
            pay=self._pay,
            pose=lambda proposal, name: proposal.task or pose(proposal, name),
        )

    def _pay(self, answer: Completion, verdict: Verdict, problem: Problem) -> Sample:
        """1 for an answer of the majority (equation 1), or the share of tests that a program passes (equation 3); in
        the baseline (section 5.2), 1 for its format."""
        reward = float(verdict.well_formed if self.options.reward == "format" else verdict.score)
        label = None if self.topic.programs else problem.answer
        return Sample(answer, reward, verdict, info={"question": problem.id, "label": label})

    def _proposed(self, question: Candidate, *, moves: bool) -> Sample:
        """A proposal with its reward; masked if this step trains no proposer, or if no question could be judged."""
        proposal, info, why = question.proposal, dict[str, Any](), question.proposal.reason
        if question.group is not None:
            counted = {"votes": question.vote.votes} if question.vote else {"share": question.share}
            info, why = {"question": question.name, **counted}, fate(question)
        earns = question.group is not None and not why
        without = self.topic.find(completion_text(proposal.completion)) is None or proposal.reason == "prompt_too_long"
        verdict = Verdict(earns, float(earns), well_formed=proposal.usable, reason=why)
        return Sample(proposal.completion, float(earns), verdict, masked=not moves or without, info=info)

    def _log(self, table: Table, proposals: Sequence[Proposal], solved: Sequence[Candidate]) -> dict[str, Any]:
        shares, groups = [question.share for question in solved], [each.group for each in solved if each.group]
        texts = [group.problem.text for group in groups if group.problem]
        answers = [each.verdict.answer for group in groups for each in group.samples if each.verdict]
        watched = self.watch.observe(
            texts,
            tokens=table.tokenize,
            pass_rates=shares,
            vote_shares=() if self.topic.programs else shares,
            labels=[(text, question.label) for text, question in zip(texts, solved, strict=True)],
        )
        return {
            **self.question_yield(proposals, len(solved)),
            **watched,
            "without_majority": sum(question.vote is not None and question.label is None for question in solved),
            "unread_answers": answers.count(None) / len(answers) if answers else None,
        }

    def warnings(self, log: Mapping[str, Any]) -> list[str]:
        """Those of every such game, but none on labels in the format baseline, which trains towards none."""
        return super().warnings({**log, "labels_checked": 0} if self.options.reward == "format" else log)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "questions": list(self._questions), "position": self._position}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._questions, self._position = list(state["questions"]), state["position"]


def read_question(topic: Topic, completion: Completion) -> Proposal:
    """A reply as a proposal; a question that was cut off is invalid."""

    def parse(text: str) -> tuple[str, str | None] | None:
        question = topic.find(text)
        tests = json.dumps(problem_with_tests(text)[1]) if topic.programs else None
        return None if question is None else (question, tests)

    proposal = to_proposal(completion, parse)
    return proposal.refused("truncated") if proposal.usable and completion.cut_off else proposal


def tested(proposal: Proposal, name: str) -> Problem:
    """A programming question as a problem with its tests."""
    return programs.program_problem(name, proposal.question, proposal.answer, f"question {name}")


def _solvers(solved: Sequence[Candidate]) -> list[Stream]:
    """The solver's stream; none without a question."""
    return [Stream("solver", [question.group for question in solved if question.group])] if solved else []


def _listed(text: str, *, cut: bool) -> tuple[str, None] | None:
    found = numbered_lines(text, cut=cut)
    return ("\n".join(found), None) if found else None
