"""How the rows of benchmarks of programs say what is asked and what is tested: a function a data set.

Nothing in a row is run before a program is tested with it, in the sandbox.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.verify.programs import program_problem

Row = Mapping[str, Any]
Reader = Callable[[Row, str], tuple[str, Any, Mapping[str, Any]]]
"""From a row, and what names it in an error: the statement, the tests, and what else is kept (`solution`)."""

_ARRAYS = """
import sys, types
numpy = types.ModuleType("numpy")
class ndarray: pass
def flat(x):
    return [z for y in x for z in flat(y)] if isinstance(x, (list, tuple)) else [x]
def allclose(a, b, rtol=1e-05, atol=1e-08):
    a, b = flat(a), flat(b)
    return len(a) == len(b) and all(x == y or abs(x - y) <= atol + rtol * abs(y) for x, y in zip(a, b))
numpy.ndarray, numpy.allclose, numpy.float64, numpy.float32, numpy.inf = ndarray, allclose, float, float, float("inf")
sys.modules["numpy"] = numpy
"""
"""The two names of numpy that EvalPlus' tests use: there is no other package in a sandbox."""


def program_of_row(read: Reader, row: Row, where: str, default_id: str, id_column: str = "task_id") -> Problem | None:
    """A row as a problem that a program solves; None where it brings no tests.

    Raises TaskError, beginning with `where`, for a column that holds something else.
    """
    try:
        statement, tests, extra = read(row, where)
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise TaskError(f"{where}: not a row of this benchmark ({type(error).__name__}: {error})") from None
    if not tests:
        return None
    name = next((str(row[key]) for key in ("id", id_column) if row.get(key) is not None), default_id)
    return program_problem(name, statement, tests, where, extra)


def problem_of_benchmark(row: Row, where: str, default_id: str) -> Problem | None:
    """A line in the columns of HumanEval or MBPP as a problem; None and errors as in `program_of_row`."""
    read = humaneval if {"prompt", "entry_point", "test"} <= row.keys() else mbpp
    return program_of_row(read, row, where, default_id)


def humaneval(row: Row, where: str) -> tuple[str, Any, Mapping[str, Any]]:
    """`check(candidate)` over a function whose head and docstring are given."""
    name, stub, test = _texts(row, ("entry_point", "prompt", "test"), where)
    statement = f"Complete this Python function:\n\n```python\n{stub.strip()}\n```"
    setup = stub if "import numpy" not in test else f"{_ARRAYS}\n{stub}"
    tests = {"test": test, "function": name, "stub": stub, "setup": setup}
    solution = row.get("canonical_solution")
    return statement, tests, {"solution": f"{stub}{solution}"} if isinstance(solution, str) else {}


def mbpp(row: Row, where: str) -> tuple[str, Any, Mapping[str, Any]]:
    """A list of assertions, which are a part of what is asked: they say the function's name and its arguments."""
    text = row.get("text") or row.get("prompt")
    asserted = row.get("test_list")
    if not isinstance(text, str) or not isinstance(asserted, list) or not all(isinstance(x, str) for x in asserted):
        raise TaskError(f"{where}: needs 'text' or 'prompt', and 'test_list' of texts")
    imports = row.get("test_imports") or []
    setup = "\n".join([*imports, row.get("test_setup_code") or ""])
    statement = f"{text.strip()}\n\nThe program must pass these tests:\n\n" + "\n".join(asserted)
    tests: dict[str, Any] = {"tests": [*asserted, *(row.get("challenge_test_list") or [])], "setup": setup}
    if isinstance(row.get("test"), str):  # EvalPlus: one text with many more
        tests = {"tests": [row["test"]], "setup": f"{_ARRAYS}\n{setup}"}
    code = row.get("code")
    return statement, tests, {"solution": code} if isinstance(code, str) else {}


def codecontests(row: Row, where: str) -> tuple[str, Any, Mapping[str, Any]]:
    """Public and private tests of stdin and stdout."""
    (statement,) = _texts(row, ("description",), where)
    tests = []
    for column in ("public_tests", "private_tests"):
        found = row.get(column) or {}
        if not isinstance(found, Mapping):
            raise TaskError(f"{where}: {column!r} must hold 'input' and 'output'")
        inputs, outputs = found.get("input") or [], found.get("output") or []
        if len(inputs) != len(outputs):
            raise TaskError(f"{where}: {column!r} has {len(inputs)} inputs and {len(outputs)} outputs")
        tests += [list(pair) for pair in zip(inputs, outputs, strict=True)]
    return statement, tests, {}


def _texts(row: Row, columns: tuple[str, ...], where: str) -> list[str]:
    found = [row[column] for column in columns]
    if not all(isinstance(text, str) and text.strip() for text in found):
        raise TaskError(f"{where}: {' and '.join(columns)} must be texts with something in them")
    return found
