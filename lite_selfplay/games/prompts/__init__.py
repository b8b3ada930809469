"""Prompts: one template file per role, with `$name` for each value, and worked examples to put before a problem.

Base models, which follow no instructions, are measured with worked examples. The papers use four or five and print
none: these are ours, of a few subjects, in the format of the solver's prompt. None is from a benchmark.
"""

from dataclasses import replace
from functools import cache
from importlib.resources import files
from string import Template

from lite_selfplay.data import Problem
from lite_selfplay.verify.choice import KIND as CHOICE
from lite_selfplay.verify.programs import KIND as PROGRAM

MOST_SHOTS = 5


@cache
def _template(name: str) -> Template:
    return Template(files(__package__).joinpath(f"{name}.txt").read_text(encoding="utf-8").strip())


def fill(name: str, **values: str) -> str:
    """The prompt from a template file. Raises KeyError if a value is missing."""
    return _template(name).substitute(values)


def fenced(text: str) -> str:
    """A text in a code fence that it cannot close itself."""
    return "```\n" + text.replace("```", "'''") + "\n```"


def asked(problem: Problem) -> str:
    """The prompt of a single seat: the problem, and the answer format of its kind."""
    name = "solver_program" if problem.kind == PROGRAM else "solver_brief" if is_brief(problem) else "solver"
    return fill(name, problem=problem.text)


def is_brief(problem: Problem) -> bool:
    """Whether the task wants short prompts with a common beginning, which is computed once for all problems."""
    return problem.extra.get("asked_briefly") is True


def asked_after(problem: Problem, attempt: str) -> str:
    """The prompt of a seat that reads `attempt`, which comes last."""
    name = "challenger_program" if problem.kind == PROGRAM else "challenger"
    return fill(name, problem=problem.text, attempt=attempt)


def problem_asked(prompt: str) -> str:
    """The problem's text in a prompt of `asked`; another prompt unchanged."""
    for name in ("solver", "solver_program"):
        prompt = prompt.removesuffix(fill(name, problem=""))
    return prompt.removeprefix(fill("solver_brief", problem="")).strip()


def opening(problem: Problem, shots: int = 0) -> str:
    """The solver's prompt for a problem, after the first `shots` worked examples of its kind (at most `MOST_SHOTS`)."""
    examples = _examples({CHOICE: "choice", PROGRAM: "program"}.get(problem.kind, "math"))[:shots]
    worked = [f"{asked(replace(problem, text=text))}\n\n{solution}" for text, solution in examples]
    return "\n\n\n".join([*worked, asked(problem)])


@cache
def _examples(kind: str) -> tuple[tuple[str, str], ...]:
    """(problem, worked solution in the output format) of each example; a choice's problem ends with its instruction."""
    text = files(__package__).joinpath(f"shots_{kind}.txt").read_text(encoding="utf-8")
    blocks = [block.strip().split("\n\n") for block in text.split("\n===\n")]
    head = 3 if kind == "choice" else 1
    return tuple(("\n\n".join(parts[:head]), "\n\n".join(parts[head:])) for parts in blocks)
