"""Prompts: one template file per role, with `$name` for each value to fill in, and worked examples before a problem.

The examples are how base models, which follow no instructions, are measured. The papers ask them with four or five and
print none of them: these are ours, of a few subjects, in the format that the solver's prompt asks for. No benchmark
holds one of them.
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
    """The prompt of a role. Raises KeyError if the template needs a value that is not given."""
    return _template(name).substitute(values)


def fenced(text: str) -> str:
    """A text between fences, which it cannot close itself."""
    return "```\n" + text.replace("```", "'''") + "\n```"


def asked(problem: Problem) -> str:
    """What a seat by itself is asked: the problem, and the form of an answer of its kind."""
    name = "solver_program" if problem.kind == PROGRAM else "solver_brief" if is_brief(problem) else "solver"
    return fill(name, problem=problem.text)


def is_brief(problem: Problem) -> bool:
    """Whether the task wants short prompts that begin alike, of which the beginning is read once for all problems."""
    return problem.extra.get("asked_briefly") is True


def asked_after(problem: Problem, attempt: str) -> str:
    """What a seat is asked that has read `attempt`, which stands last."""
    name = "challenger_program" if problem.kind == PROGRAM else "challenger"
    return fill(name, problem=problem.text, attempt=attempt)


def problem_asked(prompt: str) -> str:
    """The problem's own text in a prompt that `asked` made; another prompt as it is."""
    for name in ("solver", "solver_program"):
        prompt = prompt.removesuffix(fill(name, problem=""))
    return prompt.removeprefix(fill("solver_brief", problem="")).strip()


def opening(problem: Problem, shots: int = 0) -> str:
    """The solver's prompt for a problem, after the first `shots` worked examples of its kind (at most `MOST_SHOTS`)."""
    prompt = asked(problem)
    if not shots:
        return prompt
    examples = [
        f"{asked(replace(problem, text=text))}\n\n{worked}"
        for text, worked in _examples({CHOICE: "choice", PROGRAM: "program"}.get(problem.kind, "math"))
    ]
    return "\n\n\n".join([*examples[:shots], prompt])


@cache
def _examples(kind: str) -> tuple[tuple[str, str], ...]:
    """(problem, worked solution in the output format) of each example; a choice's problem ends with its instruction."""
    text = files(__package__).joinpath(f"shots_{kind}.txt").read_text(encoding="utf-8")
    blocks = [block.strip().split("\n\n") for block in text.split("\n===\n")]
    head = 3 if kind == "choice" else 1
    return tuple(("\n\n".join(parts[:head]), "\n\n".join(parts[head:])) for parts in blocks)
