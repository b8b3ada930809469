"""Cases: a step of a right solution, its outcome in each phase, and the rewards for it.

The phases of play that sample seats take cases and return cases, which the game writes to a file after each. Source:
"SPC: Evolving Self-Play Critic via Adversarial Games for LLM Reasoning", sections 3.2 to 3.4. Ours: the number of
completions that validate a step (4; the paper says N), the rewards of unreadable replies, and that the first of four
critiques decides a game.

The texts that pass between the roles are here as well: prompts, rewritten steps, verdicts, and examples of each. The
wording is ours, and so are the five kinds of error: the paper names its own in an appendix that its text lacks.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lite_selfplay.data import Completion, Example, Group, Problem, Sample, Sampling, Verdict
from lite_selfplay.games.collections import completion_from_json
from lite_selfplay.games.judging import answer_sample, verified, why_unread
from lite_selfplay.games.prompts import fill
from lite_selfplay.games.spc.steps import StepPair, beginning, replaced, split_steps
from lite_selfplay.games.table import Table
from lite_selfplay.games.worked_examples import after_reasoning, solution_of, without_notes
from lite_selfplay.verify.extract import completion_text
from lite_selfplay.verify.format import answer_spans, boxed_spans, split_reasoning

KINDS = (
    "arithmetic slip",
    "wrong formula or concept",
    "misread or dropped condition",
    "invalid inference",
    "wrong substitution or variable",
)
OPENING = "Let us solve this step by step."  # the beginning of a solution before its first step

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
    """A sneaky generator's reply: the new `step` and the `kind` of error. `reason` says why the step cannot be tried;
    it is empty if it can."""

    step: str = ""
    kind: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Critique:
    """A critic's reply: its judgement, or the `reason` why it has none."""

    judgement: Judgement | None = None
    reason: str = ""

    def agrees(self, correct: bool) -> bool:
        """Whether the judgement of a step is right; a critique without a judgement never is."""
        return self.judgement == ("correct" if correct else "incorrect")

    def verdict(self, correct: bool, otherwise: str) -> Verdict:
        """The verdict on a judgement of a step; `otherwise` is the reason of a readable one that is wrong."""
        right = self.agrees(correct)
        reason = "" if right else self.reason or otherwise
        return Verdict(right, float(right), self.judgement, self.judgement is not None, reason)


def solver_prompt(problem: str) -> str:
    """The solver's prompt; a reply that continues a solution begins with `steps.beginning`."""
    return fill("spc_solver", problem=problem)


def sneaky_prompt(problem: str, before: str, step: str) -> str:
    """The sneaky generator's prompt: rewrite the last, correct step of the beginning of a solution."""
    kinds = "\n".join(f"- {kind}" for kind in KINDS)
    return fill("spc_sneaky", problem=problem, before=before.strip() or OPENING, step=step.strip(), kinds=kinds)


def critic_prompt(problem: str, before: str, step: str) -> str:
    """The critic's prompt: judge the last step of the beginning of a solution."""
    return fill("spc_critic", problem=problem, before=before.strip() or OPENING, step=step.strip())


def read_rewrite(completion: Completion, original: str) -> Rewrite:
    """A sneaky generator's completion, read after its reasoning; the last block of each tag counts.

    Reasons: `prompt_too_long`, `truncated` and `off_format` (no step or no kind), `unknown_kind`, `empty`, `unchanged`;
    `announces` if the step mentions an error and the original does not; `answers` if it has a final answer and the
    original does not, so that it would end the solution instead of misleading it (the last two are ours).
    """
    text = split_reasoning(completion_text(completion)).rest
    steps, errors = _STEP.findall(text), _ERROR.findall(text)
    if not steps or not errors:
        return Rewrite(reason=why_unread(completion))
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
    """A critic's completion, read after its reasoning: `Correct` or `Incorrect` in an answer block, in any case.

    Reasons for no judgement: `prompt_too_long`, `truncated`, `off_format` (no block), `unclear` (other words in the
    last block), `contradictory` (blocks with both words; ours).
    """
    text = split_reasoning(completion_text(completion)).rest
    blocks = [block.strip(" \n\t.*!").lower() for block in _ANSWER.findall(text)]
    if not blocks:
        return Critique(reason=why_unread(completion))
    if {"correct", "incorrect"} <= set(blocks):
        return Critique(reason="contradictory")
    read = {"correct": Critique("correct"), "incorrect": Critique("incorrect")}
    return read.get(blocks[-1], Critique(reason="unclear"))


# Examples for cold start, written by rule from pairs of steps and worked solutions, without a teacher


def solver_example(problem: Problem, *, thinks: bool = False) -> Example | None:
    """A problem's worked solution, one step per paragraph, with its answer boxed; None without one."""
    solution = solution_of(problem)
    if solution is None:
        return None
    steps = "\n\n".join(step.strip() for step in split_steps(solution))
    boxed = f" The answer is \\boxed{{{problem.answer}}}."
    return Example(solver_prompt(problem.text), after_reasoning(steps + boxed, steps, thinks))


def sneaky_example(pair: StepPair, *, thinks: bool = False) -> Example:
    """The correct step of a pair rewritten as the wrong one.

    If the kind of error is not known, a step with the same words is an arithmetic slip, any other an invalid inference.
    """
    kind = pair.kind or (KINDS[0] if _words(pair.right) == _words(pair.wrong) else KINDS[3])
    change = pair.change or f"The step says: {pair.right.strip()} I make it say something that does not follow."
    reply = f"<error>{kind}</error>\n<change>{change}</change>\n<step>{pair.wrong.strip()}</step>"
    return Example(sneaky_prompt(pair.problem, pair.before, pair.right), after_reasoning(reply, change, thinks))


def critic_examples(pair: StepPair, *, thinks: bool = False) -> tuple[Example, Example]:
    """Critiques of the correct and of the wrong step of a pair."""
    taken = len(split_steps(pair.before))
    sound = f"the solution takes {taken} step{'s' if taken > 1 else ''}, the last of which is sound"
    gist = f"So far, {sound if taken else 'nothing has been worked out'}."
    right = pair.check or "The last step follows from what comes before it."
    wrong = pair.flaw or "The last step does not follow from what comes before it."

    def example(step: str, critique: str, answer: str) -> Example:
        reply = f"{gist} {critique}\n\n<answer>{answer}</answer>"
        return Example(critic_prompt(pair.problem, pair.before, step), after_reasoning(reply, critique, thinks))

    return example(pair.right, right, "Correct"), example(pair.wrong, wrong, "Incorrect")


def _words(step: str) -> list[str]:
    return [word for word in step.lower().split() if word.isalpha()]


SNEAKY, CRITIC = "sneaky", "critic"

STABLE = 0.75

# A step's outcome: too few completions from the original are right; the rewrite cannot be used; it misleads no solver;
# the critic has no judgement (yet); the critic catches the error, or is fooled.
Fate = Literal["unstable", "refused", "harmless", "undecided", "caught", "fooled"]


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
    """A step that the sneaky generator attacks: the last of `steps`, a solution's beginning. `solver` continues it.

    `original` and `sneaky` count the right continuations of the original step and of the rewrite in `attack`;
    `critiques` are of the rewrite, `untouched` of the original. A phase that did not happen (yet) leaves None or an
    empty tuple. `unread`: the rewritten step made the solver's prompt too long.
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
        """The original step."""
        return self.steps[-1].strip()

    @property
    def before(self) -> str:
        """The steps before it."""
        return "".join(self.steps[:-1]).strip()

    @property
    def rewrite(self) -> Rewrite:
        """The sneaky generator's rewrite of the step."""
        if self.attack is None:
            return Rewrite(reason="not_written")
        found = read_rewrite(self.attack, self.step)
        return replace(found, reason="prompt_too_long") if self.unread else found

    def start(self, step: str) -> str | None:
        """The beginning of a reply that continues after the original step (`original`) or the rewritten one (`sneaky`);
        None if that cannot be tried."""
        if step == "original":
            return beginning(self.steps)
        if self.rewrite.reason:
            return None
        return beginning(replaced(self.steps, len(self.steps) - 1, self.rewrite.step))

    @property
    def is_valid(self) -> bool:
        """Whether the rewrite is an error: no completion from it reaches the right answer (section 3.2)."""
        return self.sneaky is not None and self.sneaky.right == 0

    def is_stable(self, at_least: float = STABLE) -> bool:
        """Whether enough completions from the step are right to call it correct: at least 75% (section 3.2)."""
        return self.original is not None and self.original.right >= at_least * self.original.of

    def fate(self, stable: float = STABLE) -> Fate:
        """The step's outcome; a valid error is `undecided` until a critic judges it."""
        if not self.is_stable(stable):
            return "unstable"
        if self.rewrite.reason:
            return "refused"
        if self.sneaky is None:  # no continuation was judged
            return "undecided"
        if not self.is_valid:
            return "harmless"
        decisive = read_critique(self.critiques[0]) if self.critiques else Critique()
        return "undecided" if decisive.judgement is None else "caught" if decisive.agrees(correct=False) else "fooled"

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Case":
        """The case that `asdict` wrote. Raises LookupError, TypeError or ValueError for anything else."""
        steps = tuple(values["steps"])
        if not steps or not all(isinstance(text, str) for text in (*steps, values["id"], values["solver"])):
            raise TypeError("steps, id and solver must be texts")
        return cls(
            **{
                **values,
                "problem": Problem(**values["problem"]),
                "steps": steps,
                **{name: None if values[name] is None else Trial(**values[name]) for name in ("original", "sneaky")},
                "attack": None if values["attack"] is None else completion_from_json(values["attack"]),
                **{name: tuple(map(completion_from_json, values[name])) for name in ("critiques", "untouched")},
            }
        )


def sneaky_reward(found: Fate) -> float | None:
    """+1 if the critic is fooled; -1 if the error is caught, or is none; None if nothing was decided.

    An unreadable reply counts as no error (ours).
    """
    return None if found in ("unstable", "undecided") else 1.0 if found == "fooled" else -1.0


def critic_reward(critique: Critique, *, correct: bool) -> float:
    """+1 for a right judgement of the step, -1 for a wrong one or none."""
    return 1.0 if critique.agrees(correct) else -1.0


# The phases of play

Ask = Callable[[Sequence[str]], list[list[Completion]]]  # asks a seat for `n` completions of each prompt
Solution = tuple[Problem, str, str]  # a problem, the text of a right solution, and who continues it


def sampled_solutions(
    table: Table, problems: Sequence[Problem], solvers: Sequence[str], samples: int
) -> tuple[list[Solution], list[Group]]:
    """The right solutions by the solvers, and all solutions, for the record."""
    right: list[Solution] = []
    groups: list[Group] = []
    prompts = [solver_prompt(problem.text) for problem in problems]
    for solver in solvers:
        rows = table.ask("solver", prompts, n=samples, seat=solver)
        written = verified(table, problems, rows, lambda c, v, _: Sample(c, float(v.correct), v, masked=True))
        right += [
            (problem, split_reasoning(completion_text(sample.completion)).rest, solver)
            for problem, group in zip(problems, written, strict=True)
            for sample in group.samples
            if sample.reward and sample.completion.stop != "prompt_too_long"
        ]
        groups += written
    return right, groups


def written_solutions(table: Table, problems: Sequence[Problem], solver: str) -> list[Solution]:
    """The solutions in a file, except those whose answer is not their row's."""
    texts = [without_notes(str(problem.extra.get("solution") or "")) for problem in problems]
    read = [Completion("", text, (), (), (), "eos", "", -1, Sampling()) for text in texts]
    verdicts = table.verify(list(zip(read, problems, strict=True)))
    found = zip(problems, texts, read, verdicts, strict=True)
    return [(x, text, solver) for x, text, c, v in found if v.correct or table.read_answer(c) is None]


def cases_of(solutions: Sequence[Solution], name: str, rng: random.Random) -> list[Case]:
    """A random step of every solution. The cases' ids begin with `name`."""
    cases: list[Case] = []
    for problem, text, solver in solutions:
        if steps := split_steps(text):
            attacked = tuple(steps[: rng.randrange(len(steps)) + 1])
            cases.append(Case(f"{name}-{len(cases) + 1}-{problem.id}", problem, attacked, solver))
    return cases


def tried(table: Table, cases: Sequence[Case], rollouts: int, step: Literal["original", "sneaky"]) -> list[Case]:
    """The cases with counts of right continuations by their solvers, after the original step or the rewritten one."""
    result = list(cases)
    starts = {i: start for i, case in enumerate(cases) if (start := case.start(step)) is not None}
    for solver in dict.fromkeys(cases[i].solver for i in starts):
        own = [i for i in starts if cases[i].solver == solver]
        prompts = [solver_prompt(cases[i].problem.text) for i in own]
        rows = table.ask("solver", prompts, n=rollouts, beginnings=[starts[i] for i in own], seat=solver)
        groups = verified(table, [cases[i].problem for i in own], rows, answer_sample)
        for i, group in zip(own, groups, strict=True):
            unread = any(sample.completion.stop == "prompt_too_long" for sample in group.samples)
            judged = [False] * rollouts if unread else [each.reward == 1 for each in group.samples if each.judged]
            trial: dict[str, Any] = {step: Trial(sum(judged), len(judged)) if judged else None}
            result[i] = replace(cases[i], **({"unread": True} if unread and step == "sneaky" else trial))
    return result


def rewritten(ask: Ask, cases: Sequence[Case]) -> list[Case]:
    """The cases, each with a sneaky generator's rewrite of its step."""
    rows = ask([sneaky_prompt(case.problem.text, case.before, case.step) for case in cases]) if cases else []
    return [replace(case, attack=row[0]) for case, row in zip(cases, rows, strict=True)]


def judged(ask: Ask, cases: Sequence[Case]) -> list[Case]:
    """The cases, with critiques of the rewrites that mislead the solver."""
    valid = [i for i, case in enumerate(cases) if case.is_valid]
    asked = [critic_prompt(cases[i].problem.text, cases[i].before, cases[i].rewrite.step) for i in valid]
    found = dict(zip(valid, ask(asked) if asked else [], strict=True))
    return [replace(case, critiques=tuple(found.get(i, ()))) for i, case in enumerate(cases)]


def judged_untouched(ask: Ask, cases: Sequence[Case], rng: random.Random) -> list[Case]:
    """The cases, with critiques of randomly drawn original steps, as many as there are misleading rewrites."""
    chosen = sorted(rng.sample(range(len(cases)), sum(case.is_valid for case in cases)))
    rows = ask([critic_prompt(cases[i].problem.text, cases[i].before, cases[i].step) for i in chosen]) if chosen else []
    found = dict(zip(chosen, rows, strict=True))
    return [replace(case, untouched=tuple(found.get(i, ()))) for i, case in enumerate(cases)]
