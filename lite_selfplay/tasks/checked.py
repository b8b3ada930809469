"""Problems are refused as they are read where no answer could be right, or every one would be."""

import builtins
import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Sequence

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.verify.math import check_all, references
from lite_selfplay.verify.programs.cases import AssertTest, ProgramTests, StdinTest, read_tests
from lite_selfplay.verify.programs.checker import KIND as PROGRAM
from lite_selfplay.verify.programs.nouns import Job, Limits, SandboxError
from lite_selfplay.verify.programs.sandbox import shared_sandbox

AT_ONCE = 50
"""Problems whose assertions one process runs, one after the other."""

_TRIAL = """
import json, os, sys

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

nonce, problems = json.load(sys.stdin)
for number, problem in enumerate(problems):
    found = json.dumps([passes(idle, *problem), passes(broken, *problem)])
    os.write(1, f"\\n{nonce} {number} {found}\\n".encode())
"""
_Problem = tuple[list[str], list[str], str, list[str]]
_known: dict[str, str] = {}
"""What is wrong with tests, by their hash."""


def checked(found: Iterable[tuple[str, Problem]]) -> list[Problem]:
    """The problems, each given after what names it in an error.

    Raises TaskError for a reference that no answer matches, and for tests that no program fails.
    """
    pairs = list(found)
    for where, problem in pairs:
        if problem.kind != "math" or problem.answer is None:
            continue
        given = [f"<answer>{', '.join(values)}</answer>" for values in references(problem.answer)]
        if not any(verdict.correct for verdict in check_all([(text, problem.answer) for text in given])):
            short = str(problem.answer)[:80]
            raise TaskError(
                f"{where}: no answer can be right: the reference {short!r} as an answer is not right itself"
            )
    tested = [(where, read_tests(problem.answer, where)) for where, problem in pairs if problem.kind == PROGRAM]
    for (where, _), fault in zip(tested, faults([tests for _, tests in tested]), strict=True):
        if fault:
            raise TaskError(f"{where}: {fault}")
    return [problem for _, problem in pairs]


def faults(tests: Sequence[ProgramTests]) -> list[str]:
    """Why each program's tests cannot fail, empty where they can.

    They are put to a program that has every function that they name, returns None from each and prints nothing: one of
    them at least has to fail. A test by itself may expect that, unless it passes where every function raises, too.
    Assertions run in the sandbox, a set of thousands in seconds; where there is no sandbox they are not looked at.
    """
    keys = [hashlib.blake2b(repr(each).encode(errors="surrogatepass")).hexdigest() for each in tests]
    new = {key: each for key, each in zip(keys, tests, strict=True) if key not in _known}
    problems = {key: problem for key, each in new.items() if (problem := _problem(each))[-1]}
    found = _tried(problems, AT_ONCE)
    # What ends a process, or never ends, takes its neighbours along.
    found |= _tried({key: problem for key, problem in problems.items() if key not in found}, 1)
    _known.update((key, _fault(each, *found.get(key, ([], [])))) for key, each in new.items())
    return [_known[key] for key in keys]


def _problem(tests: ProgramTests) -> _Problem:
    """The names that may be the program's, those that are, the setup and the assertions."""
    code = [case.code for case in tests.cases if isinstance(case, AssertTest)]
    names = {*re.findall(r"\b[A-Za-z]\w*", "\n".join(code))} - {*dir(builtins)}
    return sorted(names), [tests.function, "candidate"] if tests.function else [], tests.setup, code


def _tried(problems: dict[str, _Problem], at_once: int) -> dict[str, tuple[list[bool], list[bool]]]:
    """By key, whether each assertion passes for a program that does nothing, and for one whose functions raise."""
    nonce, keys = secrets.token_hex(16), list(problems)
    chunks = [keys[i : i + at_once] for i in range(0, len(keys), at_once)]
    given = [json.dumps([nonce, [problems[key] for key in chunk]]).encode() for chunk in chunks]
    jobs = [Job("stdio", ({"program": _TRIAL},), stdin, number) for number, stdin in enumerate(given)]
    try:
        runs = shared_sandbox().run(jobs, Limits()) if jobs else []
    except SandboxError:
        return {}
    lines = [(c, line) for c, run in zip(chunks, runs, strict=True) for line in re.findall(rf"{nonce} (.+)", run.text)]
    return {chunk[int(number)]: json.loads(found) for chunk, line in lines for number, found in [line.split(" ", 1)]}


def _fault(tests: ProgramTests, idle: Sequence[bool], broken: Sequence[bool]) -> str:
    results = iter(idle)
    passed = [
        next(results, False)
        if isinstance(case, AssertTest)
        else isinstance(case, StdinTest) and not case.stdout.strip()
        for case in tests.cases
    ]
    if all(passed):
        return "the tests test nothing: a program whose functions return None, and that prints nothing, passes them all"
    vain = next((number for number, both in enumerate(zip(idle, broken, strict=True), 1) if all(both)), None)
    return f"every program passes assertion {vain}: what others need belongs into `setup`" if vain else ""
