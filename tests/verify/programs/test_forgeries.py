"""Wrong programs that want to be judged right. What is expected is drawn anew for each test: none can compute it."""

import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lite_selfplay.verify.programs import Limits, ProgramTests, Sandbox, open_sandbox, read_tests, run_tests
from tests.verify.programs.outside import programs_of

PLACE = Path(__file__).with_name("forged")
LIMITS = Limits(seconds=0.5)


FORGERIES = {kind: programs_of(PLACE / f"{kind}.txt") for kind in ("stdio", "call", "check")}


def drawn(kind: str, tolerance: float = 0.0) -> tuple[ProgramTests, str]:
    """ProgramTests with expected values that nobody can guess, and a program that knows them."""
    known = {number: secrets.token_hex(8) for number in range(2)}
    if kind == "stdio":
        tests = {"tests": [[str(number), text] for number, text in known.items()], "tolerance": tolerance}
        return read_tests(tests), f"print({known!r}[int(input())])"
    if kind == "call":
        calls = [{"function": "f", "arguments": [number], "expected": text} for number, text in known.items()]
        return read_tests({"tests": calls, "tolerance": tolerance}), f"def f(x): return {known!r}[x]"
    plain = [f"assert candidate({number}) == {text!r}" for number, text in known.items()]
    whole = f"def check(candidate):\n    for i, t in {known!r}.items():\n        assert candidate(i) == t, t\ncheck(f)"
    named = f"from math import isclose\nassert all(f(i) == t for i, t in {known!r}.items())\nassert len(f(0)) == 16"
    sums = f"assert sorted(f(1)) == {sorted(known[1])!r} and abs(len(f(0)) - 16) < 1e-6"
    tests = {"tests": [*plain, whole, named, sums], "function": "f", "tolerance": tolerance}
    return read_tests(tests), f"def f(x): return {known!r}[x]"


@pytest.fixture(scope="module", params=["every layer", pytest.param("seccomp", marks=pytest.mark.long)])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    layers = {"layers": ("seccomp",)} if request.param == "seccomp" else {}
    with closing(open_sandbox(size=2, **layers)) as sandbox:
        yield sandbox


def test_there_are_enough_of_them():
    assert sum(map(len, FORGERIES.values())) >= 80


@pytest.mark.parametrize("kind", FORGERIES)
def test_no_forgery_is_judged_right(sandbox, kind):
    tests, right = drawn(kind)
    given = run_tests([*FORGERIES[kind].values()], tests, LIMITS, sandbox=sandbox)
    reports = dict(zip(FORGERIES[kind], given, strict=True))
    assert {name: report.results for name, report in reports.items() if report.passed} == {}
    assert all(report.reason for report in reports.values())
    assert run_tests(right, tests, LIMITS, sandbox=sandbox).score == 1  # what is right is still judged right


@pytest.mark.long
@pytest.mark.parametrize("kind", ["stdio", "call"])
def test_nor_where_numbers_may_be_off(kind):
    """A tolerance opens no door to NaN, infinity, other digits or guesses."""
    known = {number: secrets.randbelow(10**9) + 10**6 for number in range(2)}
    pairs = [[str(number), f"{value}.5"] for number, value in known.items()]
    calls = [{"function": "f", "arguments": [n], "expected": value + 0.5} for n, value in known.items()]
    tests = read_tests({"tests": pairs if kind == "stdio" else calls, "tolerance": 1e-6})
    reports = run_tests([*FORGERIES[kind].values()], tests, LIMITS)
    assert [name for name, report in zip(FORGERIES[kind], reports, strict=True) if report.passed] == []
    right = f"print({known!r}[int(input())] + 0.5000001)" if kind == "stdio" else f"def f(x): return {known!r}[x] + 0.5"
    assert run_tests(right, tests).score == 1


def test_many_of_them_fool_who_believes_an_exit_code():
    """The positive control: tests appended to the program, as many evaluations do it."""
    tests, _ = drawn("check")
    appended = "\ncandidate = f\n" + "\n".join(case.code for case in tests.cases)
    fooled = []
    for name in "equal_to_everything text_equal_to_everything exits_at_once leaves_in_a_call raises_an_exit".split():
        command = [sys.executable, "-I", "-S", "-c", FORGERIES["check"][name] + appended]
        if subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0:
            fooled.append(name)
    assert len(fooled) >= 3, fooled
