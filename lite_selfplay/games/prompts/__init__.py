"""Prompts: one template file per role, with `$name` for each value to fill in."""

from functools import cache
from importlib.resources import files
from string import Template

from lite_selfplay.data import Problem
from lite_selfplay.verify.programs import KIND as PROGRAM


@cache
def _template(name: str) -> Template:
    return Template(files(__package__).joinpath(f"{name}.txt").read_text(encoding="utf-8").strip())


def fill(name: str, **values: str) -> str:
    """The prompt of a role. Raises KeyError if the template needs a value that is not given."""
    return _template(name).substitute(values)


def asked(problem: Problem) -> str:
    """What a seat by itself is asked: the problem, and the form of an answer of its kind."""
    return fill("solver_program" if problem.kind == PROGRAM else "solver", problem=problem.text)


def asked_after(problem: Problem, attempt: str) -> str:
    """What a seat is asked that has read `attempt`, which stands last."""
    name = "challenger_program" if problem.kind == PROGRAM else "challenger"
    return fill(name, problem=problem.text, attempt=attempt)


def problem_asked(prompt: str) -> str:
    """The problem's own text in a prompt that `asked` made; another prompt as it is."""
    for name in ("solver", "solver_program"):
        prompt = prompt.removesuffix(fill(name, problem=""))
    return prompt.strip()
