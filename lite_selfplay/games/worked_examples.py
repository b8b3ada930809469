"""Worked examples written by rule: solutions in the output format, and programs with a mistake."""

import random
import re
from collections.abc import Mapping

from lite_selfplay.data import Example, Problem
from lite_selfplay.games.prompts import PROGRAM
from lite_selfplay.verify.format import well_formed

FINAL_LINE = re.compile(r"\n?####.*\Z", re.DOTALL)
_PROGRAM_SLIPS = (
    (r"(?<= )\+(?= )", "-"), (r"(?<= )\*(?= )", "+"), (r"(?<= )<(?= )", "<="), (r"(?<= )>(?= )", ">="),
    (r"(?<= )==(?= )", "!="), (r"\bmax\(", "min("), (r"\bmin\(", "max("), (r"\bsum\(", "len("), (r"\blen\(", "sum("),
)  # fmt: skip


def solution_of(problem: Problem) -> str | None:
    """A problem's worked solution, without calculator notes and final line, or its program; None without one."""
    solution = problem.extra.get("solution")
    if problem.kind == PROGRAM:
        return solution.strip() if isinstance(solution, str) and solution.strip() else None
    if not isinstance(solution, str) or problem.answer is None or isinstance(problem.answer, list | Mapping):
        return None
    return FINAL_LINE.sub("", without_notes(solution)).strip() or None


def without_notes(text: str) -> str:
    """A solution, or a part of one, without the calculator notes by which GSM8K's files mark each calculation."""
    return re.sub(r"<<[^<>]*>>", "", text)


def worked_example(problem: Problem, prompt: str, *, thinks: bool) -> Example | None:
    """The problem's own solution in the game's format: reasoning (if the template has it), recap, answer.

    None without a solution, or if the solution contains tags that break the format.
    """
    solution = solution_of(problem)
    if solution is None:
        return None
    if problem.kind == PROGRAM:
        completion = after_reasoning(program_draft(problem, solution), "", thinks)
    else:
        completion = after_reasoning(draft(solution, str(problem.answer)), solution, thinks)
    return Example(prompt, completion) if well_formed(completion, thinks) else None


def after_reasoning(reply: str, reasoning: str, thinks: bool) -> str:
    """A reply, after a block of reasoning if the template has a reasoning mode."""
    return f"<think>\n{reasoning}\n</think>\n\n{reply}" if thinks else reply


def draft(solution: str, answer: str) -> str:
    """A solution followed by its answer block."""
    return f"{solution} <answer>{answer}</answer>"


def program_draft(problem: Problem, program: str) -> str:
    """A program in its answer block, after its explanation if the problem has one."""
    explanation = problem.extra.get("explanation")
    before = f"{explanation}\n\n" if isinstance(explanation, str) and explanation.strip() else ""
    return f"{before}<answer>\n{program}\n</answer>"


def program_with_a_slip(program: str, rng: random.Random) -> str:
    """A program with one sign, number or name replaced; unchanged if nothing in it can be replaced."""
    places = [(found, other) for pattern, other in _PROGRAM_SLIPS for found in re.finditer(pattern, program)]
    places += [(found, str(int(found[0]) + 1)) for found in re.finditer(r"(?<![\w.])\d+(?![\w.])", program)]
    if not places:
        return program
    found, other = rng.choice(places)
    return program[: found.start()] + other + program[found.end() :]
