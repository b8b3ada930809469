"""Worked examples written by rule: what a solver should say, and the attempts a challenger may be shown."""

import random
import re

from lite_selfplay.data import Example, Problem
from lite_selfplay.games.summary import summarise

_CALCULATOR_NOTE = re.compile(r"<<[^<>]*>>")  # GSM8K's files mark each calculation this way
_FINAL_LINE = re.compile(r"\n?####.*\Z", re.DOTALL)
_RESULT = re.compile(r"(?<==)(\s*)(\d+)(?![\d.,]\d)")
_SLIPS = (-10, -2, -1, 1, 2, 10)
_WRONG_SHARE = 0.5
_MISSING_SHARE = 0.1


def solution_of(problem: Problem) -> str | None:
    """The worked solution a problem brings along, without calculator notes and final line; None where it has none."""
    solution = problem.extra.get("solution")
    if not isinstance(solution, str) or problem.answer is None or isinstance(problem.answer, list):
        return None
    return _FINAL_LINE.sub("", _CALCULATOR_NOTE.sub("", solution)).strip() or None


def worked_example(problem: Problem, prompt: str, *, thinks: bool) -> Example | None:
    """The problem's own solution in the format the game asks for: reasoning (if the template thinks), recap, answer."""
    solution = solution_of(problem)
    if solution is None:
        return None
    reasoning = f"<think>\n{solution}\n</think>\n\n" if thinks else ""
    return Example(prompt, f"{reasoning}{solution} <answer>{problem.answer}</answer>")


def worked_attempt(problem: Problem, rng: random.Random) -> str:
    """What a challenger may be shown of a rival's draft: right, wrong in one result, or now and then nothing."""
    solution = solution_of(problem)
    draw = rng.random()
    if solution is None or draw < _MISSING_SHARE:
        return ""
    if draw < _MISSING_SHARE + _WRONG_SHARE:
        solution = with_a_slip(solution, rng)
    return summarise(solution, problem.text, thinks=False)


def with_a_slip(solution: str, rng: random.Random) -> str:
    """A solution in which one calculation has another result; unchanged where it holds no calculation."""
    results = list(_RESULT.finditer(solution))
    if not results:
        return solution
    slip = rng.choice(results)
    value = int(slip[2])
    wrong = value + rng.choice([step for step in _SLIPS if value + step >= 0])
    return f"{solution[: slip.start()]}{slip[1]}{wrong}{solution[slip.end() :]}"
