"""Tests of programs: stdin with expected stdout, calls with expected results, or assertions.

`read_tests` reads them in the forms that data sets use.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lite_selfplay.errors import TaskError
from lite_selfplay.verify.programs.inside.values import Unwritable, canonical, pack


@dataclass(frozen=True)
class StdinTest:
    """The program's input and its expected output, compared line by line without spaces at their ends."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class CallTest:
    """A call and its expected result, with built-in types only."""

    function: str
    arguments: tuple[Any, ...]
    expected: Any


@dataclass(frozen=True)
class AssertTest:
    """Code that calls the program's functions by name, or as `candidate`, and raises an error if a result is wrong."""

    code: str


Case = StdinTest | CallTest | AssertTest


@dataclass(frozen=True)
class ProgramTests:
    """All tests of a program.

    `function`: the function that assertions call `candidate`. `stub`: code before the program, such as the signature of
    the function that it completes. `setup`: code that runs before the assertions, in their process. `tolerance`: the
    allowed error of numbers, as a share of the expected value (of 1 if that is smaller). `in_lists`: the expected value
    of a call may be the only item of the list that is given (APPS).
    """

    cases: tuple[Case, ...]
    function: str = ""
    stub: str = ""
    setup: str = ""
    tolerance: float = 0.0
    in_lists: bool = False

    @cached_property
    def asked(self) -> re.Pattern[str]:
        """A regular expression to recognise the program: it defines one of the tested functions, or reads its input."""
        called = {case.function for case in self.cases if isinstance(case, CallTest)} | {self.function} - {""}
        asserted = " ".join(case.code for case in self.cases if isinstance(case, AssertTest))
        names = "|".join(map(re.escape, called or re.findall(r"[A-Za-z_]\w*", asserted))) or "(?!)"
        defined = rf"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+(?:{names})\b|^(?:{names})[ \t]*="
        reads = r"|\binput[ \t]*\(|\bstdin\b" if any(isinstance(case, StdinTest) for case in self.cases) else ""
        return re.compile(defined + reads + (r"|\A[ \t]+\S" if self.stub else ""), re.MULTILINE)


_STDIN, _STDOUT = ("stdin", "input", "inputs"), ("stdout", "output", "outputs", "expected_output")
_FUNCTION = ("function", "fn_name", "entry_point", "func_name")
_ARGUMENTS, _EXPECTED = ("arguments", "args", "input", "inputs"), ("expected", "result", "output", "outputs")
_CODE = ("assert", "check", "test", "code")
_MANY = ("tests", "test_list", "cases", "unit_tests")

# Runs the test cases that a text defines, like `unittest.main`.
_UNITTEST = """

import unittest as _unittest
for _case in [{}]:
    _found = _unittest.TestResult()
    _unittest.defaultTestLoader.loadTestsFromTestCase(_case).run(_found)
    assert _found.testsRun and _found.wasSuccessful(), [lines[-200:] for _, lines in _found.failures + _found.errors]
"""

# Runs the test functions that a text defines, those of its classes included, for each of their rows of parameters.
_FUNCTIONS = """

def _run(_find, _marks, **_given):
    if not _marks:
        return _find()(**_given)
    _names, _rows = _marks[0]
    _names = _names.replace(",", " ").split() if isinstance(_names, str) else list(_names)
    for _row in _rows:
        _values = _row.values if hasattr(_row, "marks") else _row if len(_names) > 1 else [_row]
        _run(_find, _marks[1:], **_given, **dict(zip(_names, _values, strict=True)))
for _find in [{}]:
    _marks = getattr(_find(), "pytestmark", [])
    _run(_find, [_mark.args[:2] for _mark in _marks if _mark.name == "parametrize"])
"""


def read_tests(given: Any, where: str = "the tests") -> ProgramTests:
    """Tests from the forms that data sets use, as JSON or as the classes above.

    - a list of tests, or an object with the list under `tests`, each test being
      `[stdin, stdout]`; `{"stdin": ..., "stdout": ...}` (or `input` and `output`);
      `{"function": name, "arguments": [...], "expected": value}`; or a text of assertions;
    - `{"input": [...], "output": [...]}`, lists of equal length, for calls with `fn_name` (APPS, CodeContests);
    - with `"testtype": "functional"`, a line of JSON for each argument and one for the result (LiveCodeBench);
    - `{"test": code, "entry_point": name}` (HumanEval), `{"test_list": [...], "test_setup_code": code}` (MBPP), or one
      text of assertions.

    If a text defines `check(candidate)`, `unittest.TestCase` classes or test functions, these are run. An object may
    also have `function`, `stub`, `setup` and `tolerance`. Raises TaskError, beginning with `where`.
    """
    if isinstance(given, ProgramTests):
        return given
    beside = _beside(given if isinstance(given, Mapping) else {}, where)
    if isinstance(given, Mapping):
        many = _first(given, _MANY, None)
        given = many if many is not None else _together(given, where) or [given]
    if isinstance(given, str | StdinTest | CallTest | AssertTest):
        given = [given]
    if not isinstance(given, Sequence) or not given:
        raise TaskError(f"{where}: must be a non-empty list of tests")
    cases = [_case(each, beside["function"], f"{where}, number {n}") for n, each in enumerate(given, 1)]
    beside["in_lists"] |= all(_in_list(case, row) for case, row in zip(cases, given, strict=True))
    return ProgramTests(tuple(cases), **beside)


def _in_list(case: Case, row: Any) -> bool:
    """Whether a row has its result as the only item of a list, or seems to."""
    result = case.expected if isinstance(case, CallTest) and isinstance(row, Mapping) else None
    return isinstance(result, list) and len(result) == 1 and not {"expected", "result", "testtype"} & row.keys()


def _beside(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The keys of an object that apply to all its tests, as arguments of `ProgramTests`."""
    about = given.get("metadata")
    about = json.loads(about) if isinstance(about, str) and about[:1] == "{" else about
    named = _first(given, _FUNCTION, "") or _first(about if isinstance(about, Mapping) else {}, _FUNCTION, "")
    starter = re.search(r"^ *def +(\w+)", str(given.get("starter_code") or ""), re.MULTILINE)
    texts = {
        "function": named or (starter[1] if starter else ""),
        "stub": given.get("stub") or "",
        "setup": _first(given, ("setup", "test_setup_code"), ""),
    }
    if not all(isinstance(text, str) for text in texts.values()):
        raise TaskError(f"{where}: function, stub and setup must be text")
    tolerance = given.get("tolerance") or 0.0
    if not isinstance(tolerance, int | float) or isinstance(tolerance, bool) or not 0 <= tolerance < 1:
        raise TaskError(f"{where}: tolerance must be a number from 0 to 1")
    return {**texts, "tolerance": tolerance, "in_lists": given.get("in_lists") is True}


def _together(given: Mapping[str, Any], where: str) -> list[Any] | None:
    """Tests from a list of inputs and a list of outputs; None if these are not lists."""
    inputs, outputs = _first(given, _STDIN, None), _first(given, _STDOUT, None)
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        return None
    if len(inputs) != len(outputs) or not inputs:
        raise TaskError(f"{where}: {len(inputs)} inputs and {len(outputs)} outputs; the numbers must be equal")
    return [{"input": each, "output": output} for each, output in zip(inputs, outputs, strict=True)]


def _case(given: Any, function: str, where: str) -> Case:
    if isinstance(given, StdinTest | CallTest | AssertTest):
        return given
    row = given if isinstance(given, Mapping) else {}
    function = _first(row, _FUNCTION, "") or function
    code = given if isinstance(given, str) else _first(row, _CODE, None)
    if isinstance(code, str) and code.strip():
        return _asserted(code, function, where)
    arguments = _first(row, _ARGUMENTS, None)
    expected = next((name for name in _EXPECTED if name in row), None)
    if row.get("testtype") == "functional" and isinstance(arguments, str) and expected:
        if not function:
            raise TaskError(f"{where}: calls a function, but no `fn_name` names it")
        arguments, result = (_lines_of_json(each, where) for each in (arguments, str(row[expected])))
        return _call(function, tuple(arguments), result[0] if len(result) == 1 else result, where)
    if function and isinstance(arguments, list | tuple) and expected:
        return _call(function, tuple(arguments), row[expected], where)
    if row:
        given = (_first(row, _STDIN, None), _first(row, _STDOUT, None))
    if isinstance(given, list | tuple) and len(given) == 2:
        stdin, stdout = (
            "\n".join(each) if isinstance(each, list) and all(isinstance(line, str) for line in each) else each
            for each in given
        )
        if isinstance(stdin, str) and isinstance(stdout, str):
            return StdinTest(stdin, stdout)
    raise TaskError(
        f"{where}: a test is [stdin, stdout], an object with stdin and stdout, one with function, arguments and "
        "expected, or a text of assertions"
    )


def _lines_of_json(text: str, where: str) -> list[Any]:
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        raise TaskError(f"{where}: arguments and result of a functional test must be a line of JSON each") from None


def _asserted(code: str, function: str, where: str) -> AssertTest:
    """Assertions, with code that runs them if the text only defines a function or classes."""
    check = re.search(r"^def check\((\s*\))?", code, re.MULTILINE)
    if check and not re.search(r"(?<!def )\bcheck\(", code):
        if not (check[1] or function):
            raise TaskError(f"{where}: defines `check`, but no `entry_point` names the function to check")
        code += f"\n\ncheck({'' if check[1] else function})\n"
    found = [
        f"lambda: {name}"
        for name in re.findall(r"^def +(test\w*)\(", code, re.MULTILINE)
        if not re.search(rf"^{name}\(", code, re.MULTILINE)
    ]
    for name, body in re.findall(r"^class +(Test\w*)(?!.*\bTestCase\b).*:(.*(?:\n(?!\S).*)*)", code, re.MULTILINE):
        found += [f"lambda: {name}().{method}" for method in re.findall(r"^ +def +(test\w*)\(", body, re.MULTILINE)]
    if found and not code.endswith(_FUNCTIONS.format(", ".join(found))):
        code += _FUNCTIONS.format(", ".join(found))
    classes = ", ".join(re.findall(r"^class +(\w+)\(.*\bTestCase\b.*\):", code, re.MULTILINE))
    if classes and not code.endswith(_UNITTEST.format(classes)):
        code = re.sub(r"^unittest\.main\(.*\)", "", code, flags=re.MULTILINE) + _UNITTEST.format(classes)
    return AssertTest(code)


def _call(function: str, arguments: tuple[Any, ...], expected: Any, where: str) -> CallTest:
    try:
        canonical(expected)
        pack(arguments)
    except Unwritable as error:
        raise TaskError(f"{where}: a value that is not plain: {error}") from None
    return CallTest(function, arguments, expected)


def _first(given: Mapping[str, Any], names: Sequence[str], otherwise: Any) -> Any:
    return next((given[name] for name in names if name in given and given[name] is not None), otherwise)
