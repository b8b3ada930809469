"""Problems whose answer is a program: the statement, and the tests as JSON in `Problem.answer`.

Tests that cannot fail are found by running them with a program that does nothing. For extracting, running and judging
programs see `checker`.
"""

import ast
import contextlib
import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from lite_selfplay.data import NOT_JUDGED, Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.verify.programs.checker import UNTESTED, judge_all
from lite_selfplay.verify.programs.inside.names import SERVED, imported_packages, names_of_program
from lite_selfplay.verify.programs.nouns import KIND, Job, Limits
from lite_selfplay.verify.programs.program_tests import AssertTest, CallTest, ProgramTests, StdinTest, read_tests
from lite_selfplay.verify.programs.program_text import extract_program
from lite_selfplay.verify.programs.sandbox import SandboxError, shared_sandbox

_KEYS = ("function", "stub", "setup", "tolerance", "in_lists")
# Keys of a JSONL line besides `tests`, or instead of it.
_TESTED = ("test_list", "test", "entry_point", "fn_name", "test_setup_code", "metadata", "starter_code", *_KEYS)


def program_problem(
    name: str, statement: str, tests: Any, where: str, extra: Mapping[str, Any] | None = None
) -> Problem:
    """A problem that a program solves.

    `tests` may have any form that `read_tests` supports, also as a JSON text. The statement is followed by the required
    interface: stdin and stdout, or the function to define. Raises TaskError, beginning with `where`.
    """
    read = read_tests(_from_text(tests, where), where)
    return Problem(name, f"{statement.strip()}\n\n{_form(read)}", as_json(read), KIND, dict(extra or {}))


def problem_of_object(row: Mapping[str, Any], text: str, where: str, name: str) -> Problem:
    """A problem from a JSONL line with `tests` and possibly `function`, `stub`, `setup` and `tolerance`. Other columns
    are kept in `extra`, such as `solution`, a program that solves it, and `explanation`."""
    given = _from_text(row.get("tests"), where)
    beside = {key: row[key] for key in _TESTED if row.get(key) is not None}
    tests = {**given, **beside} if isinstance(given, Mapping) else {"tests": given, **beside}
    used = {"tests", "problem", "question", "id", "answer", *_TESTED}
    return program_problem(name, text, tests, where, {key: row[key] for key in row if key not in used})


def as_json(tests: ProgramTests) -> dict[str, Any]:
    """Tests as JSON for `Problem.answer`, which `read_tests` reads back."""
    return {"tests": [*map(_case, tests.cases)], **{key: value for key in _KEYS if (value := getattr(tests, key))}}


def _case(case: Any) -> Any:
    match case:
        case StdinTest(stdin, stdout):
            return [stdin, stdout]
        case CallTest(function, arguments, expected):
            return {"function": function, "arguments": list(arguments), "expected": expected}
        case _:
            return case.code


def _form(tests: ProgramTests) -> str:
    """A sentence about the required interface of the program."""
    if any(isinstance(case, StdinTest) for case in tests.cases):
        return "The program reads its input from stdin and prints its output to stdout."
    named = next((case.function for case in tests.cases if isinstance(case, CallTest)), tests.function)
    return f"The program defines the function `{named}`." if named else "The program defines what is asked for."


def _from_text(tests: Any, where: str) -> Any:
    """Parse tests given as a JSON text; other texts are assertions."""
    if isinstance(tests, str) and tests.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(tests)
        except ValueError:
            raise TaskError(f"{where}: the tests look like JSON but are not valid JSON") from None
    return tests


MOST_SOLVED = 200  # problems of a task whose own solutions are run
_solved: dict[int, str] = {}


def failing_solutions(problems: Sequence[Problem]) -> tuple[dict[int, str], int]:
    """(why, by its index, a problem's own solution fails its tests; how many were run), of at most `MOST_SOLVED` that
    are spread evenly.

    A solution is the program in `extra["solution"]`. What depends on the machine is no failure: running out of time.
    Without a sandbox none is run.
    """
    found = {
        index: (program, read_tests(problem.answer, f"the tests of {problem.id}"))
        for index, problem in enumerate(problems)
        if problem.kind == KIND and (program := extract_program(str(problem.extra.get("solution") or "")))
    }
    chosen = (
        [list(found)[i * len(found) // MOST_SOLVED] for i in range(MOST_SOLVED)] if len(found) > MOST_SOLVED else found
    )
    tried = {index: found[index] for index in chosen}
    keys = {index: hash(repr(each)) for index, each in tried.items()}
    new = [index for index in tried if keys[index] not in _solved]
    try:
        reports = judge_all(shared_sandbox(), [tried[index] for index in new], Limits()) if new else []
    except SandboxError:
        return {}, 0
    for index, report in zip(new, reports, strict=True):
        known = report.reason != "time" and (report.reason != NOT_JUDGED or report.detail.startswith(UNTESTED))
        _solved[keys[index]] = f"{report.reason} ({report.detail})" if report.reason and known else ""
    return {index: _solved[key] for index, key in keys.items() if _solved[key]}, len(tried)


_TRIAL = """
import builtins, importlib.machinery, json, os, re, sys

def idle(*given, **named):
    return None

def broken(*given, **named):
    raise RuntimeError("no program")

class Missing:
    "Of a module that is not there, such as the program's own, every name is the function."
    function, __all__ = None, []

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in served:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        pass

    def exec_module(self, module):
        function = self.function
        def attribute(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return function
        module.__getattr__ = attribute

missing = Missing()

def passes(function, names, bound, setup, tests):
    space, results, missing.function = {"__name__": "test"}, [], function
    sys.meta_path[:] = [each for each in sys.meta_path if each is not missing] + [missing]
    for name in [name for name, module in sys.modules.items() if getattr(module, "__loader__", None) is missing]:
        del sys.modules[name]
    for code in [setup, *tests]:
        try:
            exec(compile(code, "test.py", "exec"), space)
            results.append(True)
        except BaseException:
            results.append(False)
        if code is setup:
            space = {**dict.fromkeys(names, function), **space, **dict.fromkeys(bound, function)}
    return [results[0] and passed for passed in results[1:]]

token, served, problems = json.load(sys.stdin)
for key, problem in problems.items():
    names = {*re.findall(r"\\b[A-Za-z]\\w*", " ".join(problem[-1]))} - {*dir(builtins)}
    found = json.dumps([passes(function, names, *problem) for function in (idle, broken)])
    os.write(1, f"\\n{token} {key} {found}\\n".encode())
"""
# What tests cannot do here.
_BEYOND = (
    (re.compile(r"\basyncio\.|Asyncio"), "run asyncio, which the sandbox does not allow"),
    (re.compile(r"builtins\.input|sys\.stdin\b"), "replace the input of their own process, not the program's"),
)
_LONG = 20_000  # characters of tests in which no names are looked up
AT_ONCE = 50  # problems whose assertions run in one process, one after the other
# The fault of tests, by their hash; empty if they have none.
_known: dict[str, str] = {}


def require_failing(found: Iterable[tuple[str, Problem]]) -> None:
    """Raises TaskError for a problem whose tests cannot fail, beginning with the text paired with it.

    A program that returns None from every function that they name and prints nothing must fail at least one of them. A
    single test may pass, unless it also passes if every function raises an error. Assertions run in the sandbox,
    thousands in seconds; without a sandbox they are not checked.
    """
    tested = [(where, read_tests(problem.answer, where)) for where, problem in found if problem.kind == KIND]
    keys = [f"{hash(repr(tests)):x}" for _, tests in tested]
    new = {key: tests for key, (_, tests) in zip(keys, tested, strict=True) if key not in _known}
    tried = {
        key: [[tests.function, "candidate"] if tests.function else [], tests.setup, code]
        for key, tests in new.items()
        if (code := [case.code for case in tests.cases if isinstance(case, AssertTest)])
    }
    try:
        results = _tried(tried, AT_ONCE)
        # Problems that crash or never end also lose the others in their process: run each by itself.
        results |= _tried({key: tried[key] for key in tried if key not in results}, 1)
    except SandboxError:
        results = {}
    _known.update((key, _fault(tests, *results.get(key, ([], [])))) for key, tests in new.items())
    for key, (where, _) in zip(keys, tested, strict=True):
        if _known[key]:
            raise TaskError(f"{where}: {_known[key]}")


def _tried(problems: dict[str, list[Any]], at_once: int) -> dict[str, tuple[list[bool], list[bool]]]:
    """By key, whether each assertion passes with a program that does nothing, and with one whose functions raise."""
    chunks = [dict(list(problems.items())[i : i + at_once]) for i in range(0, len(problems), at_once)]
    token = secrets.token_hex(16)  # tests may print, too
    jobs = [
        Job("stdio", ({"program": _TRIAL},), json.dumps([token, SERVED, each]).encode(), number)
        for number, each in enumerate(chunks)
    ]
    runs = shared_sandbox().run(jobs, Limits()) if jobs else []
    line = re.compile(rf"^{token} (-?\w+) (\[\[.+)$", re.MULTILINE)
    return {key: json.loads(found) for run in runs for key, found in line.findall(run.text)}


def _fault(tests: ProgramTests, idle: Sequence[bool], broken: Sequence[bool]) -> str:
    code = "\n".join(case.code for case in tests.cases if isinstance(case, AssertTest))
    asked = imported_packages(f"{tests.setup}\n{code}")
    if absent := sorted(name for name in asked if find_spec(name) is None and f'modules["{name}"]' not in tests.setup):
        return f"the tests import {' and '.join(absent)}, which is not installed here: pip install {' '.join(absent)}"
    if beyond := next((why for shape, why in _BEYOND if shape.search(code)), ""):
        return f"the tests {beyond}, so that right programs would fail them"
    with contextlib.suppress(SyntaxError):
        if lacking := next(_unfilled(ast.parse(code)), ""):
            return f"the test function {lacking}, which nothing fills: fixtures are not run"
        if len(code) < _LONG and (judges := sorted(names_of_program([tests.setup, code], tests.function)[2])):
            return f"the tests judge results by {judges[0]}, which they neither define nor import: do so in `setup`"
    asserted = iter(idle)
    passed = [
        next(asserted, False)
        if isinstance(case, AssertTest)
        else isinstance(case, StdinTest) and not case.stdout.strip()
        for case in tests.cases
    ]
    if all(passed):
        return "the tests test nothing: a program whose functions return None, and that prints nothing, passes them all"
    vain = next((number for number, both in enumerate(zip(idle, broken, strict=True), 1) if all(both)), None)
    return f"every program passes assertion {vain}: code that others need belongs into `setup`" if vain else ""


def _unfilled(tree: ast.Module) -> Iterator[str]:
    """The test functions with parameters that have no default and no row of values, in words."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    found = [(node, 0) for node in tree.body] + [(node, 1) for each in classes for node in each.body]
    for node, own in found:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            rows = set(re.findall(r"\w+", " ".join(map(ast.unparse, node.decorator_list))))
            needed = node.args.args[own : len(node.args.args) - len(node.args.defaults)]
            if names := [each.arg for each in needed if each.arg not in rows]:
                yield f"{node.name} has parameters ({', '.join(names)})"
