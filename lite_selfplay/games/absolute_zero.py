"""Absolute Zero: self-play on programs (Zhao et al. 2025, arXiv 2505.03335, "Reinforced Self-play Reasoning with Zero
Data").

A task consists of a program, inputs and their outputs. One step, with B tasks of each kind and n answers to each:

    deduction, abduction:  program, input ~ proposer(. | K earlier tasks);   output = program(input)
    induction:             inputs, message ~ proposer(. | an earlier program);   outputs = program(inputs)
    valid = the program runs, imports nothing forbidden, and returns the same plain value twice, in two processes
    y_1 .. y_n ~ solver(. | task)      deduction: the output; abduction: an input with that output;
                                       induction: a program, by the first half of the pairs, judged on the others
    R(answer) = 1 right, -0.5 wrong, -1 off format
    R(task)   = 1 - share of right answers, 0 if that share is 0 or 1;   -1 if the task is not valid
    advantages (r - mean) / std over all samples of one kind and role: six baselines
    valid tasks enter the buffer of their kind, which begins with the identity

Kept (paper and release): kinds, roles, one set of weights, validity, rewards, baselines, K = 6, 10 inputs, tasks from
the buffers if fewer than B tasks of a kind are new, no KL term, temperature 1, a constant learning rate.
Ours: the n answers that estimate a task's difficulty also train the solver (the release samples one more for that), a
task is kept once, and buffers begin with the identity alone (the release fills them before training). Inputs and
outputs are Python literals, which are never evaluated; the prompts are worded anew. `unlearnable=-0.5` is the
release's: it rewards a task whose share is 0 or 1 like a wrong answer.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from statistics import fmean
from textwrap import indent
from typing import Any, ClassVar, Literal

from pydantic import Field

from lite_selfplay.data import NOT_JUDGED, Completion, Episode, Example, Group, Problem, Sample, Stream, Verdict
from lite_selfplay.errors import GameError
from lite_selfplay.games.presentation import Figure
from lite_selfplay.games.prompts import PROGRAM, asked, fenced, fill
from lite_selfplay.games.propose_solve.population import FIGURES, SeatsOptions
from lite_selfplay.games.propose_solve.propose_solve import (
    WATCHED,
    ProposeSolve,
    ProposeSolveOptions,
    family_figures,
    proposed_by_share,
)
from lite_selfplay.games.propose_solve.questions import (
    NOBODYS,
    Proposal,
    answer_sample,
    answered,
    by_answer,
    last_tagged,
    to_proposal,
)
from lite_selfplay.games.table import Table
from lite_selfplay.games.worked_examples import after_reasoning, solution_of
from lite_selfplay.verify.programs import CallTest, ProgramTests, StdinTest, read_tests
from lite_selfplay.verify.programs.calls import CALL, arguments, literal

Kind = Literal["deduction", "abduction", "induction"]
KINDS: tuple[Kind, ...] = ("deduction", "abduction", "induction")
WRONG, OFF_FORMAT = -0.5, -1.0
AIMS = {
    "deduction": "Somebody else will see both, and has to work out what the function returns.",
    "abduction": "Somebody else will see the function and what it returns, and has to find an input that leads there.",
}
# Modules that no program may import: the release's, and all of `os`, `sys`, `secrets` and `uuid`. Nor may it import by
# a call, which could name them.
_IMPORTS = re.compile(
    r"(?:^|[;:])[ \t]*(?:from|import)\b.*\b(?:bcrypt|calendar|datetime|hashlib|hmac|logging|multiprocessing|os|pebble|"
    r"random|secrets|subprocess|sys|threading|time|uuid)\b|\b(?:__import__|importlib)\b",
    re.MULTILINE,
)
_INPUT = re.compile(r"<input>(.*?)</input>", re.DOTALL)
_OVER_NUMBERS = re.compile(
    r"numbers = \[int\(word\) for word in input\(\)\.split\(\)\]\n"
    r"(?P<body>(?:.*\n)*)print\((?P<many>\*?)(?P<value>.*)\)"
)


@dataclass(frozen=True)
class Triple:
    """A task: a program, inputs (each a call's arguments), their outputs and, for induction, a message."""

    kind: Kind
    program: str
    inputs: list[str]
    outputs: list[str]
    message: str = ""

    def problem(self, name: str) -> Problem:
        """The solver's problem. It sees the first half of an induction's pairs and is judged on the others."""
        pairs = list(zip(self.inputs, self.outputs, strict=True))
        half = len(pairs) // 2
        shown = "\n".join(f"f({given}) returns {returned}" for given, returned in pairs[:half])
        values = {"program": fenced(self.program), "input": self.inputs[0], "output": self.outputs[0]}
        text = fill(f"absolute_zero_{self.kind}", **values, pairs=shown, message=self.message)
        if self.kind == "induction":
            tests = (CallTest("f", arguments(given), literal(returned)) for given, returned in pairs[half:])
            return Problem(name, text, ProgramTests(tuple(tests)), PROGRAM)
        known = {"program": self.program} if self.kind == "abduction" else {}
        return Problem(name, text, {**known, "output": self.outputs[0]}, CALL)

    def written(self) -> str:
        """The reply that proposes the task."""
        inputs = "\n".join(f"<input>{each}</input>" for each in self.inputs)
        program, message = f"<program>\n{self.program}\n</program>", f"<message>{self.message}</message>"
        return f"{inputs}\n{message}" if self.kind == "induction" else f"{program}\n{inputs}"

    def answer(self) -> str:
        """A right answer."""
        right = {"deduction": self.outputs[0], "abduction": self.inputs[0]}.get(self.kind, f"\n{self.program}\n")
        return f"<answer>{right}</answer>"


# The first task of each buffer.
VALUES = ["'Hello world'", "1", "[2, 3]", "{'a': 1}"]
IDENTITY = {kind: Triple(kind, "def f(a):\n    return a", VALUES, VALUES, "It returns its argument.") for kind in KINDS}


def proposer_prompt(kind: Kind, earlier: Sequence[Triple], count: int) -> str:
    """The proposer's prompt: for induction, inputs of an earlier program; else a new program unlike those shown."""
    if kind == "induction":
        return fill("absolute_zero_inputs", earlier=fenced(earlier[0].program), count=str(count))
    shown = [f"{fenced(task.program)}\nf({task.inputs[0]}) returns {task.outputs[0]}" for task in earlier]
    return fill("absolute_zero_program", earlier="\n\n".join(shown), aim=AIMS[kind])


def read_task(kind: Kind, earlier: Triple, completion: Completion, count: int) -> Proposal:
    """A proposer's completion, parsed into a task that lacks outputs until its program runs."""

    def parse(text: str) -> tuple[str, str | None] | None:
        found = last_tagged(text, "message" if kind == "induction" else "program")
        return None if found is None else (found, json.dumps([each.strip() for each in _INPUT.findall(text)]))

    proposal = to_proposal(completion, parse)
    inputs, told = json.loads(proposal.answer or "[]"), proposal.question
    own = told.removeprefix("```python").strip("`").strip()
    task = Triple(kind, earlier.program, inputs, [], told) if kind == "induction" else Triple(kind, own, inputs, [])
    if proposal.usable and len(inputs) != (count if kind == "induction" else 1):
        return proposal.refused("no_answer")
    return proposal.refused("invalid") if proposal.usable and _IMPORTS.search(own) else replace(proposal, task=task)


def task_reward(share: float, unlearnable: float | None = 0.0) -> float:
    """A valid task's reward, given the share of right answers; with `unlearnable` None, the share of wrong ones."""
    return 1 - share if unlearnable is None or 0 < share < 1 else unlearnable


def solvers_sample(answer: Completion, verdict: Verdict, problem: Problem) -> Sample:
    """An answer with its reward, by correctness and format. A program that passes only some tests is wrong."""
    reward = OFF_FORMAT if not verdict.well_formed else 1.0 if verdict.correct else WRONG
    return answer_sample(answer, replace(verdict, score=float(verdict.correct)), problem, reward)


class AbsoluteZeroOptions(SeatsOptions, ProposeSolveOptions):
    """Absolute Zero's options.

    `kinds` of tasks. `references` is K, how many earlier tasks a proposer sees; `inputs`: how many an induction has.
    `buffer`: how many tasks of a kind are kept, the newest ones. `unlearnable`: the reward of a valid task that is
    always or never solved; with null every valid task earns the share of wrong answers. `worked`: how many tasks of
    each kind, made of programs of `--tasks`, the buffers begin with, beside the identity.
    """

    kinds: tuple[Kind, ...] = Field(KINDS, min_length=1)
    references: int = Field(6, ge=1)
    inputs: int = Field(10, ge=2)
    buffer: int = Field(1024, ge=1)
    unlearnable: float | None = Field(0.0, ge=-1, le=0)
    worked: int = Field(0, ge=0)


class AbsoluteZero(ProposeSolve):
    """A proposer writes programs and inputs; a solver works out outputs, inputs or the programs themselves."""

    roles = ("proposer", "solver")
    about = "Absolute Zero: programs of its own, whose outputs, inputs or code the solver works out; Python judges"
    Options = AbsoluteZeroOptions
    runs_programs = True
    needs_answers = False
    default_tasks = "code-arithmetic:tests=10"
    figures = family_figures(
        *FIGURES,
        early=(
            Figure("success", "right answers by kind", "share", about="The share of a kind's answers that are right."),
            Figure("buffers", "tasks kept by kind", how="last", about="Valid tasks that proposers see again."),
        ),
        watched=WATCHED[:2],
    )
    recipe: ClassVar[dict[str, Any]] = {
        "roles": {"*": {"beta": 0.0}},
        "seats": {"*": {"lr": 3e-5, "schedule": "constant", "warmup": 0.0, "full_finetune_lr": 1e-6}},
    }

    def __init__(self, options: Any = None, *, group_size: int = 8, problems_per_step: int = 4):
        super().__init__(options, group_size=group_size, problems_per_step=problems_per_step)
        self._buffers = {kind: [task] for kind, task in IDENTITY.items()}
        self.sources = ("problems",) if self.options.worked else ()

    def rollouts_per_step(self) -> int:
        return len(self.options.kinds) * self.problems_per_step * (1 + self.group_size)

    def rewards(self) -> Mapping[str, str]:
        unlearnable = self.options.unlearnable
        extreme = "" if unlearnable is None else f"{unlearnable:g} if none or all are, "
        return {
            "proposer": f"1 less the share of right answers, {extreme}{OFF_FORMAT:g} for no valid task",
            "solver": f"1 for a right answer, {WRONG:g} for a wrong one, {OFF_FORMAT:g} off format",
        }

    def describe(self, steps: int) -> list[str]:
        return [
            f"a step is {self.problems_per_step} proposals each for {', '.join(self.options.kinds)}, and "
            f"{self.group_size} answers to as many tasks, new ones first: at most {self.rollouts_per_step():,} "
            "completions; programs run in the sandbox"
        ]

    def cold_start(self, role: str, problem: Problem, rng: random.Random, *, thinks: bool) -> Example | None:
        """An example from a program over a line of numbers: a proposer's reply with it, or a right answer."""
        kind = rng.choice(self.options.kinds)
        task = task_of(problem, kind, self.options.inputs)
        if task is None:
            return super().cold_start(role, problem, rng, thinks=thinks)
        if role == self.solver:
            return Example(asked(task.problem(problem.id)), after_reasoning(task.answer(), "", thinks))
        prompt = proposer_prompt(kind, [task if kind == "induction" else IDENTITY[kind]], self.options.inputs)
        return Example(prompt, after_reasoning(task.written(), "", thinks))

    def play(self, step: int, table: Table) -> Episode:
        kinds, size, count = self.options.kinds, self.problems_per_step, self.options.inputs
        if self.options.worked and step == 0:
            self._begin_with(table.everything("problems"))
        wanted = [(kind, self._earlier(kind, table.rng)) for kind in kinds for _ in range(size)]
        rows = table.ask("proposer", [proposer_prompt(kind, seen, count) for kind, seen in wanted])
        replies = [read_task(kind, seen[0], c, count) for (kind, seen), (c,) in zip(wanted, rows, strict=True)]
        written = self._run(table, replies)
        found = answered(
            table,
            "solver",
            [*written, *self._again(table.rng, written)],
            self.group_size,
            f"q-{step}",
            judge=by_answer,
            pay=solvers_sample,
            pose=lambda proposal, name: proposal.task.problem(name),
        )
        new, solved = found[: len(written)], [each for each in found if each.group]
        earns = partial(task_reward, unlearnable=self.options.unlearnable)
        samples = [proposed_by_share(each, earns, OFF_FORMAT) for each in new]
        by_kind = {kind: [each for each in solved if each.proposal.task.kind == kind] for kind in kinds}
        answers = [[s for each in row if each.group for s in each.group.samples] for row in by_kind.values() if row]
        streams = [
            Stream("proposer", [Group(samples[i : i + size]) for i in range(0, len(samples), size)]),
            Stream("solver", list(map(Group, answers))),
        ]
        valid = [each for each in new if each.group]
        for task in (each.proposal.task for each in valid):
            kept = self._buffers[task.kind]
            kept[:] = [*kept, *[task] * (task not in kept)][-self.options.buffer :]
        log = {
            **self.question_yield([each.proposal for each in new], len(valid)),
            "success": {kind: fmean(each.share for each in row) for kind, row in by_kind.items() if row},
            "buffers": {kind: len(self._buffers[kind]) for kind in kinds},
            **self.watch.observe(
                [each.proposal.task.written() for each in valid],
                tokens=table.tokenize,
                pass_rates=[each.share for each in valid],
            ),
        }
        blends, skills = self.settle(step, new, table.rng)
        return Episode(streams, blends, {**log, **skills})

    def _begin_with(self, problems: Sequence[Problem]) -> None:
        """Fill the buffers with tasks about the programs of problems."""
        for kind, kept in self._buffers.items():
            tasks = filter(None, (task_of(problem, kind, self.options.inputs) for problem in problems))
            kept += islice(tasks, self.options.worked)
            if kind in self.options.kinds and len(kept) == 1:
                raise GameError("game.worked needs programs over a line of numbers: --tasks code-arithmetic:tests=10")

    def _earlier(self, kind: Kind, rng: random.Random) -> list[Triple]:
        """The earlier tasks that a proposer sees: some of its kind, or for induction one of another kind."""
        if kind == "induction":
            return [rng.choice([*self._buffers["deduction"], *self._buffers["abduction"]])]
        return rng.sample(self._buffers[kind], min(self.options.references, len(self._buffers[kind])))

    def _run(self, table: Table, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Each proposal's task with its outputs; refused if the program fails."""
        usable = [proposal for proposal in proposals if proposal.usable]
        calls = [(each.completion, {"program": each.task.program, "inputs": each.task.inputs}) for each in usable]
        verdicts = iter(table.verify([(completion, Problem("", "", call, CALL)) for completion, call in calls]))
        return [returned(each, next(verdicts)) if each.usable else each for each in proposals]

    def _again(self, rng: random.Random, written: Sequence[Proposal]) -> list[Proposal]:
        """Earlier tasks as new proposals, to fill each kind's missing ones."""
        found = Counter(proposal.task.kind for proposal in written if proposal.usable)
        missing = [(self._buffers[kind], self.problems_per_step - found[kind]) for kind in self.options.kinds]
        return [Proposal(NOBODYS, task=task) for kept, n in missing for task in rng.sample(kept, min(n, len(kept)))]

    def state(self) -> dict[str, Any]:
        return {**super().state(), "buffers": {k: [asdict(task) for task in kept] for k, kept in self._buffers.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._buffers = {kind: [Triple(**task) for task in state["buffers"][kind]] for kind in KINDS}


def returned(proposal: Proposal, verdict: Verdict) -> Proposal:
    """The proposal with the outputs of its program, which the verdict's answer holds; refused without them."""
    if not verdict.correct:
        return proposal.refused(NOT_JUDGED if verdict.reason == NOT_JUDGED else "invalid")
    return replace(proposal, task=replace(proposal.task, outputs=json.loads(verdict.answer or "")))


def task_of(problem: Problem, kind: Kind, inputs: int) -> Triple | None:
    """A `code-arithmetic` problem as a task about a function; None for any other, or with too few tests."""
    found = _OVER_NUMBERS.fullmatch(solution_of(problem) or "") if problem.kind == PROGRAM else None
    cases = [case for case in read_tests(problem.answer).cases if isinstance(case, StdinTest)] if found else []
    cases = cases[: inputs if kind == "induction" else 1]
    if found is None or len(cases) < (inputs if kind == "induction" else 1):
        return None
    program = indent(f"{found['body']}return {found['value']}", "    ")
    given = [str([int(word) for word in case.stdin.split()]) for case in cases]
    printed = [", ".join(case.stdout.split()) for case in cases]
    returned = [f"[{each}]" for each in printed] if found["many"] else printed
    return Triple(kind, f"def f(numbers):\n{program}", given, returned, str(problem.extra.get("content", "")))
