"""A case: a step of a right solution, what becomes of it from phase to phase, and what that earns.

The phases of play in which seats speak take cases and give cases, which the game writes to a file after each. Source:
"SPC: Evolving Self-Play Critic via Adversarial Games for LLM Reasoning", sections 3.2 to 3.4. Ours: how many
completions validate a step (4; the paper says N), what a reply is worth that cannot be read, and that the first of four
critiques decides a game.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lite_selfplay.data import Completion, Group, Problem, Sample, Sampling, completion_from_json
from lite_selfplay.games.collections import read_objects
from lite_selfplay.games.spc.replies import (
    Critique,
    Rewrite,
    critic_prompt,
    read_critique,
    read_rewrite,
    sneaky_prompt,
    solver_prompt,
)
from lite_selfplay.games.spc.steps import beginning, replaced, split_steps, without_notes
from lite_selfplay.games.table import Table
from lite_selfplay.verify.extract import completion_text
from lite_selfplay.verify.format import split_reasoning

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
        if decisive.judgement is None:
            return "undecided"
        return "caught" if decisive.agrees(correct=False) else "fooled"

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
    if found in ("unstable", "undecided"):
        return None
    return 1.0 if found == "fooled" else -1.0


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
        pairs = [(completion, problem) for problem, row in zip(problems, rows, strict=True) for completion in row]
        verdicts = table.verify(pairs)
        for (completion, problem), verdict in zip(pairs, verdicts, strict=True):
            if verdict.correct and completion.stop != "prompt_too_long":
                text = split_reasoning(completion_text(completion)).rest
                cases += _case(f"{name}-{len(cases) + 1}-{problem.id}", problem, text, solver, table.rng)
        samples_of = [Sample(c, float(v.correct), v, masked=True) for (c, _), v in zip(pairs, verdicts, strict=True)]
        groups += [Group(samples_of[i * samples : (i + 1) * samples], problem) for i, problem in enumerate(problems)]
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
