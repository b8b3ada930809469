"""A case: a step of a right solution, what becomes of it from phase to phase, and what that earns.

The phases of play in which seats speak take cases and give cases, which the game writes to a file after each. Source:
"SPC: Evolving Self-Play Critic via Adversarial Games for LLM Reasoning", sections 3.2 to 3.4. Ours: how many
completions validate a step (4; the paper says N), what a reply is worth that cannot be read, and that the first of four
critiques decides a game.

What passes between the roles as text stands here as well: prompts, a rewritten step, a verdict, examples of each. The
wording is ours, and so are the five kinds of error, which the paper names in an appendix that its text lacks.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lite_selfplay.data import Completion, Example, Group, Problem, Sample, Sampling
from lite_selfplay.games.collections import completion_from_json, read_objects
from lite_selfplay.games.prompts import fill
from lite_selfplay.games.propose_solve.questions import verified
from lite_selfplay.games.spc.steps import StepPair, beginning, replaced, split_steps, without_notes
from lite_selfplay.games.table import Table
from lite_selfplay.games.worked_examples import after_reasoning, solution_of
from lite_selfplay.verify.extract import completion_text
from lite_selfplay.verify.format import answer_spans, boxed_spans, split_reasoning

KINDS = (
    "arithmetic slip",
    "wrong formula or concept",
    "misread or dropped condition",
    "invalid inference",
    "wrong substitution or variable",
)
OPENING = "Let us solve this step by step."
"""Stands for the beginning of a solution whose first step is judged or rewritten."""

Judgement = Literal["correct", "incorrect"]

_TAGGED = r"<{0}>((?:(?!</?{0}>).)*)</{0}>"
_ERROR = re.compile(_TAGGED.format("error"), re.DOTALL | re.IGNORECASE)
_STEP = re.compile(_TAGGED.format("step"), re.DOTALL | re.IGNORECASE)
_ANSWER = re.compile(_TAGGED.format("answer"), re.DOTALL | re.IGNORECASE)
_ANNOUNCES = re.compile(
    r"\b(?:errors?|erroneous(?:ly)?|mistak\w+|incorrect(?:ly)?|wrong(?:ly)?|deliberate(?:ly)?|intentional(?:ly)?|sneaky"
    r"|misread\w*|correct (?:answer|value|result|step) (?:is|was|would))\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Rewrite:
    """A sneaky generator's reply: the new `step`, the `kind` of error it names. `reason` says why there is no step that
    could be tried, empty where there is one."""

    step: str = ""
    kind: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Critique:
    """A critic's reply: its judgement, or the `reason` why it has none."""

    judgement: Judgement | None = None
    reason: str = ""

    def agrees(self, correct: bool) -> bool:
        """Whether it judges a step as it is; a critique without a judgement never does."""
        return self.judgement == ("correct" if correct else "incorrect")


def solver_prompt(problem: str) -> str:
    """What a solver is asked; `steps.beginning` is what its reply begins with where a solution is gone on with."""
    return fill("spc_solver", problem=problem)


def sneaky_prompt(problem: str, before: str, step: str) -> str:
    """What the sneaky generator is asked: to rewrite the last, correct step of the beginning of a solution."""
    kinds = "\n".join(f"- {kind}" for kind in KINDS)
    return fill("spc_sneaky", problem=problem, before=before.strip() or OPENING, step=step.strip(), kinds=kinds)


def critic_prompt(problem: str, before: str, step: str) -> str:
    """What the critic is asked: to judge the last step of the beginning of a solution."""
    return fill("spc_critic", problem=problem, before=before.strip() or OPENING, step=step.strip())


def read_rewrite(completion: Completion, original: str) -> Rewrite:
    """A sneaky generator's completion, read after its reasoning; the last block of each tag counts.

    Reasons: `prompt_too_long`, `truncated` and `off_format` (no step or no kind), `unknown_kind`, `empty`, `unchanged`;
    `announces`, where the step speaks of an error as the original does not; `answers`, where it gives a final answer as
    the original does not, so that it would end the solution instead of misleading it (the last two are ours).
    """
    if completion.stop == "prompt_too_long":
        return Rewrite(reason="prompt_too_long")
    text = split_reasoning(completion_text(completion)).rest
    steps, errors = _STEP.findall(text), _ERROR.findall(text)
    if not steps or not errors:
        return Rewrite(reason="truncated" if completion.cut_off else "off_format")
    step, kind = steps[-1].strip(), " ".join(errors[-1].lower().split()).strip(" .-")
    return Rewrite(step, kind, "unknown_kind" if kind not in KINDS else _why_no_attack(step, original))


def _why_no_attack(step: str, original: str) -> str:
    if not step:
        return "empty"
    if "".join(step.split()) == "".join(original.split()):
        return "unchanged"
    if {word.lower() for word in _ANNOUNCES.findall(step)} - {word.lower() for word in _ANNOUNCES.findall(original)}:
        return "announces"
    return "answers" if _gives_answer(step) and not _gives_answer(original) else ""


def _gives_answer(step: str) -> bool:
    return bool(answer_spans(step) or boxed_spans(step))


def read_critique(completion: Completion) -> Critique:
    """A critic's completion, read after its reasoning: `Correct` or `Incorrect` in an answer block, whatever the case.

    Reasons for no judgement: `prompt_too_long`, `truncated`, `off_format` (no block), `unclear` (other words in the
    last block), `contradictory` (blocks that say both; ours).
    """
    if completion.stop == "prompt_too_long":
        return Critique(reason="prompt_too_long")
    return read_judgement(
        split_reasoning(completion_text(completion)).rest, "truncated" if completion.cut_off else "off_format"
    )


def read_judgement(text: str, without: str = "off_format") -> Critique:
    """The judgement of a critique's text; `without` is the reason where it has no answer block."""
    blocks = [block.strip(" \n\t.*!").lower() for block in _ANSWER.findall(text)]
    if not blocks:
        return Critique(reason=without)
    if {"correct", "incorrect"} <= set(blocks):
        return Critique(reason="contradictory")
    if blocks[-1] == "correct":
        return Critique("correct")
    return Critique("incorrect") if blocks[-1] == "incorrect" else Critique(reason="unclear")


def rewrite_reply(kind: str, change: str, step: str) -> str:
    """A sneaky generator's reply, as it is asked for."""
    return f"<error>{kind}</error>\n<change>{change}</change>\n<step>{step.strip()}</step>"


def critique_reply(gist: str, critique: str, correct: bool) -> str:
    """A critic's reply, as it is asked for."""
    return f"{gist} {critique}\n\n<answer>{'Correct' if correct else 'Incorrect'}</answer>"


# Examples for cold start, written by rule from pairs of steps and worked solutions: no teacher is asked


def solver_example(problem: Problem, *, thinks: bool = False) -> Example | None:
    """A problem's worked solution, a step a paragraph, with its answer boxed; None where the problem brings none."""
    solution = solution_of(problem)
    if solution is None:
        return None
    steps = "\n\n".join(step.strip() for step in split_steps(solution))
    boxed = f" The answer is \\boxed{{{problem.answer}}}."
    return Example(solver_prompt(problem.text), after_reasoning(steps + boxed, steps, thinks))


def sneaky_example(pair: StepPair, *, thinks: bool = False) -> Example:
    """The correct step of a pair rewritten as the wrong one.

    Where it is not known what kind of error that is, a step with the same words is an arithmetic slip, any other an
    invalid inference.
    """
    kind = pair.kind or (KINDS[0] if _words(pair.right) == _words(pair.wrong) else KINDS[3])
    change = pair.change or f"The step says: {pair.right.strip()} I make it say something that does not follow."
    reply = rewrite_reply(kind, change, pair.wrong)
    return Example(sneaky_prompt(pair.problem, pair.before, pair.right), after_reasoning(reply, change, thinks))


def critic_examples(pair: StepPair, *, thinks: bool = False) -> tuple[Example, Example]:
    """Critiques of the correct step of a pair and of the wrong one."""
    taken = len(split_steps(pair.before))
    gist = "So far, nothing has been worked out."
    if taken:
        gist = f"So far, the solution takes {taken} step{'s' if taken > 1 else ''}, the last of which is sound."
    right = pair.check or "The last step follows from what comes before it."
    wrong = pair.flaw or "The last step does not follow from what comes before it."

    def example(step: str, critique: str, correct: bool) -> Example:
        reply = critique_reply(gist, critique, correct)
        return Example(critic_prompt(pair.problem, pair.before, step), after_reasoning(reply, critique, thinks))

    return example(pair.right, right, True), example(pair.wrong, wrong, False)


def _words(step: str) -> list[str]:
    return [word for word in step.lower().split() if word.isalpha()]


SNEAKY, CRITIC = "sneaky", "critic"

TRIALS = ("original", "sneaky")
STABLE = 0.75

Fate = Literal["unstable", "refused", "harmless", "undecided", "caught", "fooled"]
"""What becomes of a step: its original is solved too rarely from; the rewrite cannot be used; the rewrite misleads
nobody; the critic gives no judgement; the critic catches the error, or is fooled."""


@dataclass(frozen=True)
class Trial:
    """How many of the completions from a step reach the right answer."""

    right: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.of or not self.of:
            raise ValueError(f"need 0 <= right <= of and at least one completion, got {self.right} of {self.of}")


@dataclass(frozen=True)
class Case:
    """A step under attack: the last of `steps`, which begin a solution of `problem`; `solver` goes on from it.

    `original` and `sneaky` say how often that ended well after the step as it was and after the rewrite in `attack`;
    `critiques` are of the rewrite, `untouched` of the step as it was. None or empty is what did not come to pass, or
    not yet. `unread`: the rewritten step made the solver's prompt too long.
    """

    id: str
    problem: Problem
    steps: tuple[str, ...]
    solver: str
    original: Trial | None = None
    attack: Completion | None = None
    sneaky: Trial | None = None
    critiques: tuple[Completion, ...] = ()
    untouched: tuple[Completion, ...] = ()
    unread: bool = False

    @property
    def step(self) -> str:
        """The step as it was."""
        return self.steps[-1].strip()

    @property
    def before(self) -> str:
        """The steps that lead to it."""
        return "".join(self.steps[:-1]).strip()

    @property
    def rewrite(self) -> Rewrite | None:
        """What the sneaky generator made of the step."""
        if self.attack is None:
            return None
        found = read_rewrite(self.attack, self.step)
        return replace(found, reason="prompt_too_long") if self.unread else found

    def start(self, step: str) -> str | None:
        """The beginning of a reply that is gone on with after the step as it was (`original`) or the rewritten one
        (`sneaky`); None where that cannot be tried."""
        if step == "original":
            return beginning(self.steps)
        if self.rewrite is None or self.rewrite.reason:
            return None
        return beginning(replaced(self.steps, len(self.steps) - 1, self.rewrite.step))

    @property
    def is_valid(self) -> bool:
        """Whether the rewrite is an error: no completion from it reaches the right answer (section 3.2)."""
        return self.sneaky is not None and self.sneaky.right == 0

    def is_stable(self, at_least: float = STABLE) -> bool:
        """Whether the step is solved from often enough to be called correct: in at least 75% (section 3.2)."""
        return self.original is not None and self.original.right >= at_least * self.original.of

    def fate(self, stable: float = STABLE) -> Fate:
        """What became of the step. Raises ValueError where something has not come to pass yet."""
        if self.original is None:
            raise ValueError("the original step was not tried")
        if not self.is_stable(stable):
            return "unstable"
        if self.rewrite is None:
            raise ValueError("a stable step has no rewrite")
        if self.rewrite.reason:
            return "refused"
        if self.sneaky is None:
            raise ValueError("a rewrite was not tried")
        if not self.is_valid:
            return "harmless"
        if not self.critiques:
            raise ValueError("a valid error was not judged")
        decisive = read_critique(self.critiques[0])
        return "undecided" if decisive.judgement is None else "caught" if decisive.agrees(correct=False) else "fooled"

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Case":
        """The case that `asdict` gives. Raises LookupError, TypeError or ValueError for anything else."""
        steps = tuple(values["steps"])
        if not steps or not all(isinstance(text, str) for text in (*steps, values["id"], values["solver"])):
            raise TypeError("steps, id and solver must be texts")
        return cls(
            **{
                **values,
                "problem": Problem(**values["problem"]),
                "steps": steps,
                **{name: None if values[name] is None else Trial(**values[name]) for name in TRIALS},
                "attack": None if values["attack"] is None else completion_from_json(values["attack"]),
                **{name: tuple(map(completion_from_json, values[name])) for name in ("critiques", "untouched")},
            }
        )


def sneaky_reward(found: Fate) -> float | None:
    """+1 for a critic that is fooled; -1 for an error that is caught, or for none; None where nothing was decided.

    A reply that cannot be read is no error either (ours).
    """
    return None if found in ("unstable", "undecided") else 1.0 if found == "fooled" else -1.0


def critic_reward(critique: Critique, *, correct: bool) -> float:
    """+1 for a judgement that is right about the step, -1 for one that is wrong, or for none."""
    return 1.0 if critique.agrees(correct) else -1.0


def read_cases(path: Path) -> list[Case]:
    """Cases as they were written. Raises RunFolderError, with file and line, where they are damaged."""
    return read_objects(path, Case.from_json, "step under attack")


# The phases of play

Ask = Callable[[Sequence[str]], list[list[Completion]]]
"""Asks a seat: `n` completions of each prompt."""


def sampled_solutions(
    table: Table, problems: Sequence[Problem], solvers: Sequence[str], samples: int, name: str
) -> tuple[list[Case], list[Group]]:
    """A random step of every right solution that the solvers write, and all solutions, for the record.

    `name` begins the cases' ids.
    """
    cases: list[Case] = []
    groups: list[Group] = []
    prompts = [solver_prompt(problem.text) for problem in problems]
    for solver in solvers:
        rows = table.ask("solver", prompts, n=samples, seat=solver)
        written = verified(table, problems, rows, lambda c, v, _: Sample(c, float(v.correct), v, masked=True))
        for problem, group in zip(problems, written, strict=True):
            for sample in group.samples:
                if sample.reward and sample.completion.stop != "prompt_too_long":
                    text = split_reasoning(completion_text(sample.completion)).rest
                    cases += _case(f"{name}-{len(cases) + 1}-{problem.id}", problem, text, solver, table.rng)
        groups += written
    return cases, groups


def written_solutions(table: Table, problems: Sequence[Problem], solver: str, name: str) -> list[Case]:
    """A random step of every solution that a file brings along; none of one that states another answer than its row."""
    cases: list[Case] = []
    texts = [without_notes(str(problem.extra.get("solution") or "")) for problem in problems]
    read = [Completion("", text, (), (), (), "eos", "", -1, Sampling()) for text in texts]
    verdicts = table.verify(list(zip(read, problems, strict=True)))
    for problem, text, completion, verdict in zip(problems, texts, read, verdicts, strict=True):
        if verdict.correct or table.read_answer(completion) is None:
            cases += _case(f"{name}-{len(cases) + 1}-{problem.id}", problem, text, solver, table.rng)
    return cases


def _case(name: str, problem: Problem, solution: str, solver: str, rng: random.Random) -> list[Case]:
    steps = split_steps(solution)
    return [Case(name, problem, tuple(steps[: rng.randrange(len(steps)) + 1]), solver)] if steps else []


def tried(table: Table, cases: Sequence[Case], rollouts: int, step: Literal["original", "sneaky"]) -> list[Case]:
    """The cases, with how often their solvers end well from the step as it was or, where it can be tried, from the
    rewritten one."""
    result = list(cases)
    starts = {i: start for i, case in enumerate(cases) if (start := case.start(step)) is not None}
    for solver in dict.fromkeys(cases[i].solver for i in starts):
        places = [i for i in starts if cases[i].solver == solver]
        prompts = [solver_prompt(cases[i].problem.text) for i in places]
        beginnings = [starts[i] for i in places]
        rows = table.ask("solver", prompts, n=rollouts, beginnings=beginnings, seat=solver)
        pairs = [(completion, cases[i].problem) for i, row in zip(places, rows, strict=True) for completion in row]
        right = iter([verdict.correct for verdict in table.verify(pairs)])
        for i, row in zip(places, rows, strict=True):
            unread = any(completion.stop == "prompt_too_long" for completion in row)
            ended_well = sum([next(right) for _ in row])
            trial = Trial(0 if unread else ended_well, rollouts)
            found: dict[str, Any] = {"unread": True} if unread and step == "sneaky" else {step: trial}
            result[i] = replace(cases[i], **found)
    return result


def rewritten(ask: Ask, cases: Sequence[Case]) -> list[Case]:
    """The cases, each with a sneaky generator's rewrite of its step."""
    rows = ask([sneaky_prompt(case.problem.text, case.before, case.step) for case in cases]) if cases else []
    return [replace(case, attack=row[0]) for case, row in zip(cases, rows, strict=True)]


def judged(ask: Ask, cases: Sequence[Case]) -> list[Case]:
    """The cases, with a critic's judgements of the rewrites that mislead."""
    valid = [i for i, case in enumerate(cases) if case.is_valid]
    attacked = [(cases[i], rewrite) for i in valid if (rewrite := cases[i].rewrite) is not None]
    asked = [critic_prompt(case.problem.text, case.before, rewrite.step) for case, rewrite in attacked]
    found = dict(zip(valid, ask(asked) if asked else [], strict=True))
    return [replace(case, critiques=tuple(found.get(i, ()))) for i, case in enumerate(cases)]


def judged_untouched(ask: Ask, cases: Sequence[Case], rng: random.Random) -> list[Case]:
    """The cases, with judgements of as many steps as they were, drawn at random, as there are rewrites that mislead."""
    chosen = sorted(rng.sample(range(len(cases)), sum(case.is_valid for case in cases)))
    rows = ask([critic_prompt(cases[i].problem.text, cases[i].before, cases[i].step) for i in chosen]) if chosen else []
    found = dict(zip(chosen, rows, strict=True))
    return [replace(case, untouched=tuple(found.get(i, ()))) for i, case in enumerate(cases)]
