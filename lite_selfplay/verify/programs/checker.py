"""Judging programs by the tests of their problems, outside the program's process.

A confined process sends bytes, which are not trusted. A verdict never relies on a program's exit code, and its process
never contains an expected value:

- `StdinTest`: its stdout is compared here;
- `CallTest`: results are returned as canonical text and compared here with that of the expected value;
- `AssertTest`: it runs in a second confined process, which runs no code of the program. The program serves calls, by
  value; after each test the second process writes a secret number that the program cannot know.
"""

import itertools
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

from lite_selfplay.data import NOT_JUDGED, Completion, Problem, Verdict
from lite_selfplay.verify.checking import Checking
from lite_selfplay.verify.extract import AnswerFormat, completion_text
from lite_selfplay.verify.format import well_formed
from lite_selfplay.verify.programs.inside.names import imported_packages
from lite_selfplay.verify.programs.inside.values import canonical, pack
from lite_selfplay.verify.programs.nouns import KIND, Job, Limits, ProgramRun, Reason, Report
from lite_selfplay.verify.programs.program_tests import AssertTest, CallTest, ProgramTests, StdinTest, read_tests
from lite_selfplay.verify.programs.program_text import extract_program, with_stub
from lite_selfplay.verify.programs.sandbox import Sandbox, shared_sandbox

LEAST_SECONDS = 0.1
UNTESTED = "its tests cannot be run: "


def check_batch(
    pairs: Sequence[tuple[Completion, Problem]], expected: AnswerFormat, checking: Checking
) -> list[Verdict]:
    """Judge completions of problems of kind `program`, whose answer has a form that `read_tests` supports.

    `correct`: the program passes every test; `score`: the share that it passes; `reason`: one of
    `lite_selfplay.verify.programs.nouns.Reason`, but `timeout` instead of `time`. Raises TaskError for a problem
    without tests, SandboxError if programs cannot be run safely.
    """
    problems = {id(problem): problem for _, problem in pairs}
    tests = {key: read_tests(each.answer, f"the tests of {each.id}") for key, each in problems.items()}
    found = [
        extract_program(completion_text(each), block_only=expected.block_only, asked=tests[id(problem)].asked)
        for each, problem in pairs
    ]
    programs = [(program, tests[id(problem)]) for program, (_, problem) in zip(found, pairs, strict=True)]
    limits = Limits(seconds=max(LEAST_SECONDS, checking.deadline))
    sandbox = checking.kept(KIND, lambda: shared_sandbox(unsafe_code=checking.unsafe_code))
    reports = judge_all(sandbox, programs, limits, checking.poll)
    return [
        Verdict(
            correct=report.score == 1,
            score=report.score,
            answer=program,
            well_formed=well_formed(completion.text, expected.thinks, completion.prefill),
            reason="timeout" if report.reason == "time" else report.reason,
        )
        for (completion, _), program, report in zip(pairs, found, reports, strict=True)
    ]


@dataclass(frozen=True)
class _Part:
    """A job, the indices of its tests among the program's, and a function that judges each of them from the run."""

    job: Job
    indices: tuple[int, ...]
    judge: Callable[[ProgramRun], list[bool]]


def judge_all(
    sandbox: Sandbox,
    programs: Sequence[tuple[str | None, ProgramTests]],
    limits: Limits,
    poll: Callable[[], None] = lambda: None,
) -> list[Report]:
    """Test each program and report; a program of None is a completion without one."""
    parts = [
        [] if program is None else [*_parts(with_stub(tests.stub, program), tests, number)]
        for number, (program, tests) in enumerate(programs)
    ]
    runs = iter(sandbox.run([part.job for each in parts for part in each], limits, poll))
    return [
        _report(program, tests, [(part, next(runs)) for part in each])
        for (program, tests), each in zip(programs, parts, strict=True)
    ]


def _report(program: str | None, tests: ProgramTests, done: Sequence[tuple[_Part, ProgramRun]]) -> Report:
    results: dict[int, bool] = {}
    failed: tuple[Reason, str] = ("no_program" if program is None else "", "")
    for part, ended in done:
        # Only the test's process can say that a test cannot be run here.
        nonce = part.job.bodies[0].get("nonce", "(?!)").encode()
        fault = re.search(rb"^%b (?:\d+ )?\? ?(.*)$" % nonce, ended.reply, re.MULTILINE)
        untested = f"{UNTESTED}{fault[1].decode('utf-8', 'replace')}"[:300] if fault else ""
        run = replace(ended, reason="not_judged", detail=untested) if untested else ended
        passed = part.judge(run)
        results.update(zip(part.indices, passed, strict=True))
        if not all(passed) and (not failed[0] or run.reason == NOT_JUDGED):
            failed = (run.reason or "wrong_answer", run.detail or _message(run))
    return Report(
        tuple(results.get(i, False) for i in range(len(tests.cases))),
        *failed,
        seconds=sum(run.seconds for _, run in done),
    )


def _message(run: ProgramRun) -> str:
    """The error message of a run that ended by itself."""
    lines = run.reply.decode("utf-8", "replace").splitlines()
    wrong = next((line[2:] for line in lines if line.startswith(("! ", "? "))), "")
    errors = run.stderr.decode("utf-8", "replace").strip().splitlines()
    return (wrong or (errors[-1] if errors else ""))[:300]


def _parts(program: str, tests: ProgramTests, number: int) -> Iterator[_Part]:
    """The jobs of a program: one for each text of stdin, one for all calls of a function, one for all assertions."""
    calls: dict[str, dict[int, CallTest]] = {}
    asserted: dict[int, AssertTest] = {}
    for index, case in enumerate(tests.cases):
        if isinstance(case, StdinTest):
            job = Job("stdio", ({"program": program},), case.stdin.encode("utf-8", "surrogatepass"), number)
            yield _Part(job, (index,), partial(_by_text, case.stdout.encode("utf-8", "surrogatepass"), tests.tolerance))
        elif isinstance(case, CallTest):
            calls.setdefault(case.function, {})[index] = case
        else:
            asserted[index] = case
    for function, cases in calls.items():
        tried = [_readings(case.arguments) for case in cases.values()]
        packed = [[*map(pack, given)] for readings in tried for given in readings]
        job = Job("call", ({"program": program, "function": function, "calls": packed},), program=number)
        wanted = [[canonical(each) for each in _expected(case, tests)] for case in cases.values()]
        judge = partial(_by_value, wanted, [*map(len, tried)], tests.tolerance)
        yield _Part(job, tuple(cases), judge)
    if asserted:
        code = [case.code for case in asserted.values()]
        nonce = secrets.token_hex(16)
        test = {"setup": tests.setup, "function": tests.function, "tests": code, "nonce": nonce}
        packages = imported_packages("\n".join([tests.setup, *code]))
        job = Job("check", (test, {"program": program}), program=number, packages=bool(packages))
        yield _Part(job, tuple(asserted), partial(_by_nonce, nonce, len(code)))


def _by_text(wanted: bytes, tolerance: float, run: ProgramRun) -> list[bool]:
    return [not run.reason and same_text(run.stdout, wanted, tolerance)]


def _readings(value: Any) -> list[Any]:
    """A value from JSON, and, if there are mappings whose keys are all whole numbers as text, the same with numbers:
    JSON has no other keys."""
    other = _with_numbers(value)
    return [value] if pack(other) == pack(value) else [value, other]


def _with_numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        numbers = all(isinstance(key, str) and re.fullmatch(r"0|-?[1-9]\d{0,18}", key, re.ASCII) for key in value)
        return {int(key) if numbers else key: _with_numbers(item) for key, item in value.items()}
    return type(value)(map(_with_numbers, value)) if type(value) in (list, tuple) else value


def _expected(case: CallTest, tests: ProgramTests) -> list[Any]:
    """The results that are right."""
    alone = case.expected[0] if tests.in_lists and isinstance(case.expected, list) and len(case.expected) == 1 else None
    return _readings(case.expected) + ([] if alone is None else _readings(alone))


def _by_value(wanted: Sequence[Sequence[str]], tried: Sequence[int], tolerance: float, run: ProgramRun) -> list[bool]:
    read = run.reply.decode("utf-8", "replace").split("\n")[:-1]
    # A program that ran on after its last value has not returned it.
    lines = iter(read[: sum(tried) - 1] if run.reason and len(read) >= sum(tried) else read)
    given = [[line[2:] for line in itertools.islice(lines, count) if line.startswith("= ")] for count in tried]
    pairs = (itertools.product(*pair) for pair in zip(given, wanted, strict=True))
    return [any(same_value(line, text, tolerance) for line, text in each) for each in pairs]


def _by_nonce(nonce: str, count: int, run: ProgramRun) -> list[bool]:
    lines = run.reply.split(b"\n")
    return [f"{nonce} {number} +".encode() in lines for number in range(count)]


# Characters of a number that is compared with a tolerance.
_LONGEST_NUMBER = 4000


def same_text(given: bytes, wanted: bytes, tolerance: float = 0.0) -> bool:
    """Whether two texts have the same lines, ignoring spaces at their ends and empty lines at the end of the text. With
    a tolerance, words of a line may also be decimals that are close."""
    ours, theirs = _lines(given), _lines(wanted)
    close = (_alike(a.split(), b.split(), _decimal, tolerance) for a, b in zip(ours, theirs, strict=False))
    return ours == theirs or (tolerance > 0 and len(ours) == len(theirs) and all(close))


def same_value(given: str, wanted: str, tolerance: float = 0.0) -> bool:
    """Whether two canonical texts (`inside.values.canonical`) have the same value; NaN never does. A tuple counts as a
    list, since JSON has no tuples, unless a tuple is expected anywhere."""
    theirs = wanted.split(" ")
    brackets = {} if "(" in theirs else {"(": "[", ")": "]"}
    ours = [brackets.get(token, token) for token in given.split(" ")]
    return "#nan" not in theirs and _alike(ours, theirs, _fraction, tolerance)


def _lines(text: bytes) -> list[bytes]:
    return [line.rstrip() for line in text.replace(b"\r\n", b"\n").rstrip().split(b"\n")]


def _alike(ours: Sequence[Any], theirs: Sequence[Any], read: Callable[[Any], Fraction], tolerance: float) -> bool:
    """Whether two lists of tokens are the same, except that numbers may only be close."""
    return len(ours) == len(theirs) and all(
        a == b or (tolerance > 0 and _close(a, b, read, tolerance)) for a, b in zip(ours, theirs, strict=True)
    )


def _close(given: Any, wanted: Any, read: Callable[[Any], Fraction], tolerance: float) -> bool:
    try:
        number, other = read(given), read(wanted)
    except (ArithmeticError, ValueError):
        return False
    return abs(number - other) <= Fraction(tolerance) * max(Fraction(1), abs(other))


def _decimal(word: bytes) -> Fraction:
    """A plain decimal number. Raises ValueError or OverflowError for anything else: no underscores, no other alphabets'
    digits, no nan."""
    if len(word) > 400 or not set(word) <= set(b"+-.0123456789eE"):
        raise ValueError
    return Fraction(float(word))


def _fraction(token: str) -> Fraction:
    """A number of a canonical text. Raises ValueError or ZeroDivisionError for anything else."""
    if not token.startswith("#") or len(token) > _LONGEST_NUMBER:
        raise ValueError
    above, _, below = token[1:].partition("/")
    return Fraction(int(above, 16), int(below or "1", 16))
