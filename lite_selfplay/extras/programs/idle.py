"""Whether tests can fail: they are put to programs that do nothing."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.extras.programs.cases import AssertTest, ProgramTests, StdinTest, read_tests
from lite_selfplay.extras.programs.nouns import Job, Limits
from lite_selfplay.extras.programs.sandbox import SandboxError, shared_sandbox
from lite_selfplay.verify.programs import KIND

_TRIAL = """
import builtins, json, os, re, sys

def idle(*given, **named):
    return None

def broken(*given, **named):
    raise RuntimeError("no program")

def passes(function, names, bound, setup, tests):
    space, results = {"__name__": "test"}, []
    for code in [setup, *tests]:
        try:
            exec(compile(code, "test.py", "exec"), space)
            results.append(True)
        except BaseException:
            results.append(False)
        if code is setup:
            space = {**dict.fromkeys(names, function), **space, **dict.fromkeys(bound, function)}
    return [results[0] and passed for passed in results[1:]]

for key, problem in json.load(sys.stdin).items():
    names = {*re.findall(r"\\b[A-Za-z]\\w*", " ".join(problem[-1]))} - {*dir(builtins)}
    found = json.dumps([passes(function, names, *problem) for function in (idle, broken)])
    os.write(1, f"\\n{key} {found}\\n".encode())
"""
AT_ONCE = 50
"""Problems whose assertions one process runs, one after the other."""
_known: dict[str, str] = {}
"""What is wrong with tests, by their hash."""


def require_failing(found: Iterable[tuple[str, Problem]]) -> None:
    """Raises TaskError for a problem whose tests cannot fail, beginning with what is given before it.

    They are put to a program that has every function that they name, returns None from each and prints nothing: one of
    them at least has to fail. A test by itself may expect that, unless it passes where every function raises, too.
    Assertions run in the sandbox, a set of thousands in seconds; where there is no sandbox they are not looked at.
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
        # What ends a process, or never ends, took its neighbours along.
        results |= _tried({key: tried[key] for key in tried if key not in results}, 1)
    except SandboxError:
        results = {}
    _known.update((key, _fault(tests, *results.get(key, ([], [])))) for key, tests in new.items())
    for key, (where, _) in zip(keys, tested, strict=True):
        if _known[key]:
            raise TaskError(f"{where}: {_known[key]}")


def _tried(problems: dict[str, list[Any]], at_once: int) -> dict[str, tuple[list[bool], list[bool]]]:
    """By key, whether each assertion passes for a program that does nothing, and for one whose functions raise."""
    chunks = [dict(list(problems.items())[i : i + at_once]) for i in range(0, len(problems), at_once)]
    jobs = [Job("stdio", ({"program": _TRIAL},), json.dumps(each).encode(), n) for n, each in enumerate(chunks)]
    runs = shared_sandbox().run(jobs, Limits()) if jobs else []
    return {key: json.loads(found) for run in runs for key, found in re.findall(r"^(-?\w+) (\[\[.+)$", run.text, re.M)}


def _fault(tests: ProgramTests, idle: Sequence[bool], broken: Sequence[bool]) -> str:
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
    return f"every program passes assertion {vain}: what others need belongs into `setup`" if vain else ""
