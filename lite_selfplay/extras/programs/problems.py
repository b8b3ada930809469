"""Problems whose answer is a program: what is asked, and the tests, as `Problem.answer`, in the form of JSON.

How a program is found in a completion, run and judged is no matter of a task: see `checker`.
"""

import json
from collections.abc import Mapping
from typing import Any

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.extras.programs.cases import CallTest, ProgramTests, StdinTest, read_tests
from lite_selfplay.verify.programs import KIND

_KEYS = ("function", "stub", "setup", "tolerance")
_TESTED = ("test_list", "test", "entry_point", "fn_name", "test_setup_code", *_KEYS)
"""What may stand beside `tests`, or instead of them, in a line of JSONL."""


def program_problem(
    name: str, statement: str, tests: Any, where: str, extra: Mapping[str, Any] | None = None
) -> Problem:
    """A problem that a program solves.

    `tests` in any form that `read_tests` takes, or such a form as a JSON text. What the program has to be like is said
    after the statement: whether it reads stdin, or which function it defines. Raises TaskError, beginning with `where`.
    """
    read = read_tests(_from_text(tests, where), where)
    return Problem(name, f"{statement.strip()}\n\n{_form(read)}", as_json(read), KIND, dict(extra or {}))


def problem_of_object(row: Mapping[str, Any], text: str, where: str, name: str) -> Problem:
    """A line of JSONL with `tests`; `function`, `stub`, `setup` and `tolerance` may stand beside them.

    A program that solves it is kept as `solution`, and what explains that as `explanation`.
    """
    given = _from_text(row.get("tests"), where)
    beside = {key: row[key] for key in _TESTED if row.get(key) is not None}
    tests = {**given, **beside} if isinstance(given, Mapping) else {"tests": given, **beside}
    used = {"tests", "problem", "question", "id", "answer", *_TESTED}
    extra = {key: value for key, value in row.items() if key not in used}
    return program_problem(name, text, tests, where, extra)


def as_json(tests: ProgramTests) -> dict[str, Any]:
    """Tests in the form of JSON that `read_tests` reads back, for `Problem.answer`."""
    beside = {key: value for key in _KEYS if (value := getattr(tests, key))}
    return {"tests": [_case(case) for case in tests.cases], **beside}


def _case(case: Any) -> Any:
    if isinstance(case, StdinTest):
        return [case.stdin, case.stdout]
    if isinstance(case, CallTest):
        return {"function": case.function, "arguments": list(case.arguments), "expected": case.expected}
    return case.code


def _form(tests: ProgramTests) -> str:
    """What kind of program is asked for."""
    functions = list(dict.fromkeys(case.function for case in tests.cases if isinstance(case, CallTest)))
    if any(isinstance(case, StdinTest) for case in tests.cases):
        return "The program reads its input from stdin and prints its output to stdout."
    named = functions[0] if functions else tests.function
    return f"The program defines the function `{named}`." if named else "The program defines what is asked for."


def _from_text(tests: Any, where: str) -> Any:
    """Tests that a column holds as a JSON text; another text is one of assertions."""
    if isinstance(tests, str) and tests.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(tests)
        except ValueError:
            raise TaskError(f"{where}: tests that begin as JSON and are none") from None
    return tests
