"""Worked examples before a problem: how base models, which follow no instructions, are measured.

The papers ask base models with four or five examples and print none of them: these are ours, of a few subjects, in the
format that the solver's prompt asks for. No benchmark holds one of them.
"""

from dataclasses import replace
from functools import cache
from importlib.resources import files

from lite_selfplay.data import Problem
from lite_selfplay.games.prompts import PROGRAM, asked
from lite_selfplay.verify.choice import KIND as CHOICE

MOST_SHOTS = 5

_KINDS = {CHOICE: "choice", PROGRAM: "program"}


def opening(problem: Problem, shots: int = 0) -> str:
    """The solver's prompt for a problem, after the first `shots` worked examples of its kind (at most `MOST_SHOTS`)."""
    prompt = asked(problem)
    if not shots:
        return prompt
    examples = [
        f"{asked(replace(problem, text=text))}\n\n{worked}"
        for text, worked in _examples(_KINDS.get(problem.kind, "math"))
    ]
    return "\n\n\n".join([*examples[:shots], prompt])


@cache
def _examples(kind: str) -> tuple[tuple[str, str], ...]:
    """(problem, worked solution in the output format) of each example; a choice's problem ends with its instruction."""
    text = files("lite_selfplay.games.prompts").joinpath(f"shots_{kind}.txt").read_text(encoding="utf-8")
    blocks = [block.strip().split("\n\n") for block in text.split("\n===\n")]
    head = 3 if kind == "choice" else 1
    return tuple(("\n\n".join(parts[:head]), "\n\n".join(parts[head:])) for parts in blocks)
