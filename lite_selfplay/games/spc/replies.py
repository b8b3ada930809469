r"""What passes between SPC's roles as text: their prompts, a rewritten step, a verdict, and examples of each.

The wording is ours, and so are the five kinds of error, which the paper names in an appendix that its text lacks.
"""

import re
from dataclasses import dataclass
from typing import Literal

from lite_selfplay.data import Completion, Example, Problem
from lite_selfplay.games.prompts import fill
from lite_selfplay.games.spc.steps import StepPair, split_steps
from lite_selfplay.games.worked_examples import solution_of
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
_CHANGE = re.compile(_TAGGED.format("change"), re.DOTALL | re.IGNORECASE)
_ANSWER = re.compile(_TAGGED.format("answer"), re.DOTALL | re.IGNORECASE)
_ANNOUNCES = re.compile(
    r"\b(?:errors?|erroneous(?:ly)?|mistak\w+|incorrect(?:ly)?|wrong(?:ly)?|deliberate(?:ly)?|intentional(?:ly)?|sneaky"
    r"|misread\w*|correct (?:answer|value|result|step) (?:is|was|would))\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Rewrite:
    """A sneaky generator's reply: the `kind` of error it names, the `change` it describes, the new `step`. `reason`
    says why there is no step that could be tried, empty where there is one."""

    step: str = ""
    kind: str = ""
    change: str = ""
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
    steps, errors, changes = (tag.findall(text) for tag in (_STEP, _ERROR, _CHANGE))
    if not steps or not errors:
        return Rewrite(reason="truncated" if completion.cut_off else "off_format")
    step, kind = steps[-1].strip(), " ".join(errors[-1].lower().split()).strip(" .-")
    change = changes[-1].strip() if changes else ""
    reason = "unknown_kind" if kind not in KINDS else _why_no_attack(step, original)
    return Rewrite(step, kind, change, reason)


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
    return Example(solver_prompt(problem.text), _after_reasoning(steps + boxed, steps, thinks))


def sneaky_example(pair: StepPair, *, thinks: bool = False) -> Example:
    """The correct step of a pair rewritten as the wrong one.

    Where it is not known what kind of error that is, a step with the same words is an arithmetic slip, any other an
    invalid inference.
    """
    kind = pair.kind or (KINDS[0] if _words(pair.right) == _words(pair.wrong) else KINDS[3])
    change = pair.change or f"The step says: {pair.right.strip()} I make it say something that does not follow."
    reply = rewrite_reply(kind, change, pair.wrong)
    return Example(sneaky_prompt(pair.problem, pair.before, pair.right), _after_reasoning(reply, change, thinks))


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
        return Example(critic_prompt(pair.problem, pair.before, step), _after_reasoning(reply, critique, thinks))

    return example(pair.right, right, True), example(pair.wrong, wrong, False)


def _after_reasoning(text: str, reasoning: str, thinks: bool) -> str:
    return f"<think>\n{reasoning}\n</think>\n\n{text}" if thinks else text


def _words(step: str) -> list[str]:
    return [word for word in step.lower().split() if word.isalpha()]
