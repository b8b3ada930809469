"""Tests that no program fails are found by letting programs that do nothing pass them."""

import re
import time
from collections.abc import Sequence

import pytest

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.verify.programs import Limits, SandboxError, problems
from lite_selfplay.verify.programs.problems import require_failing

NOTHING = "the tests test nothing"


def fault(tests: object) -> str:
    try:
        require_failing(placed([tests]))
    except TaskError as error:
        return str(error).removeprefix("place 0: ")
    return ""


def placed(tests: Sequence[object]) -> list[tuple[str, Problem]]:
    return [(f"place {number}", Problem("x", "?", each, kind="program")) for number, each in enumerate(tests)]


IDLE = [
    ["def testing_add():\n    return add(1, 2) == 3"],
    ["from solution import add\n\ndef test_add():\n    add(1, 2)"],
    {"tests": ["add(1, 2)"], "entry_point": "add"},
    ["assert add(1, 2) or True", "assert add"],
    ["try:\n    assert add(1, 2) == 3\nexcept AssertionError:\n    pass"],
    ["assert add(1, 2) is None"],
    {"test": "# calls check(candidate)\ndef check(candidate):\n    assert candidate(1) == 2", "entry_point": "add"},
    ["import unittest as u\nclass T(u.TestCase):\n    @u.skip('')\n    def test(self): assert add(1) == 2"],
    [["3", ""], ["4", " \n"]],
]
DECIDING = [
    ["def test_add():\n    assert add(1, 2) == 3"],
    ["from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3"],
    ["assert add(1, 2) == 3"],
    ["assert find('a') is None", "assert find('b') == 1"],  # None may be the answer to one of them
    ["assert add(1, 2) == 3", "try:\n    add('a', 1)\nexcept TypeError:\n    pass\nelse:\n    assert False"],
    {"tests": ["assert close(add(1, 2), 3)"], "setup": "def close(a, b): return abs(a - b) < 1"},
    {"test": "def check(candidate):\n    assert candidate(1) == 2", "entry_point": "f", "setup": "def f(x): ..."},
    ["import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(add(1, 2), 3)"],
    [["3", ""], ["4", "16"]],
    {"fn_name": "f", "inputs": [[1]], "outputs": [0]},
    ["assert no python"],
    [
        "import pytest\ndef test_mean():\n    assert mean([0.1, 0.2]) == pytest.approx(0.15)"
    ],  # not approx of the program
    ["while add(1, 2) is None: pass"],
    ["import os\nos._exit(0)"],
    ["raise SystemExit"],
]


@pytest.mark.parametrize("tests", IDLE)
def test_tests_that_test_nothing(tests):
    assert fault(tests).startswith(NOTHING)


def test_tests_that_can_fail(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(problems, "Limits", lambda: Limits(seconds=0.5))  # one of them never ends
    require_failing(placed(DECIDING))


def test_a_single_assertion_that_every_program_passes_is_named():
    assert fault(["assert add(1, 2) == 3", "import math"]).startswith("every program passes assertion 2")
    assert fault([["1", "2"], "x = 1", "assert add(1, 2) == 3"]).startswith("every program passes assertion 1")


def test_one_that_never_ends_takes_no_other_along():
    tests = [[f"assert add({i}, 2) == 3"] for i in range(20)]
    tests[3:3] = [["import os\nos._exit(0)  # again"], ["add(7, 8)"]]
    with pytest.raises(TaskError, match="place 4: the tests test nothing"):
        require_failing(placed(tests))


def test_a_thousand_take_seconds_and_are_known_the_second_time(monkeypatch: pytest.MonkeyPatch):
    tests = [[f"assert add({i}, 3) == {i + 3}", f"assert add({i}, 4) == {i + 4}"] for i in range(1000)]
    started = time.monotonic()
    require_failing(placed(tests))
    assert time.monotonic() - started < 30  # a second or two on an idle machine

    def no_more(*_: object) -> object:
        raise AssertionError("they are known")

    monkeypatch.setattr(problems, "shared_sandbox", no_more)
    require_failing(placed(tests))


def test_a_test_that_prints_lists_is_no_result():
    require_failing(
        placed([["assert add(1, 2) == 4\nprint('board', [['a', 'b']])", "print('board [[1]]') or add(2) + 1"]])
    )


def test_a_judge_that_nobody_defines_is_named():
    said = "the tests judge results by isclose, which they neither define nor import"
    assert fault(["assert isclose(add(1, 2), 3.0)"]).startswith(said)
    assert fault(["from math import isclose\nassert isclose(add(1, 2), 3.0)", "assert decode(encode(1)) == 1"]) == ""


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(problems, "find_spec", lambda name: None if name == "pytest" else name)
    assert fault(["import numpy\nimport pytest\nassert add(1, 2) == 3"]).startswith(
        "the tests import pytest, which is not"
    )


def test_where_nothing_can_be_run_assertions_are_not_looked_at(monkeypatch: pytest.MonkeyPatch):
    def none() -> object:
        raise SandboxError("not here")

    monkeypatch.setattr(problems, "shared_sandbox", none)
    monkeypatch.setattr(problems, "_known", {})
    assert fault(["assert True"]) == ""
    assert fault([["1", ""]]).startswith(NOTHING)


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        (
            "from unittest.mock import patch\nwith patch('builtins.input'):\n    assert f() == 3",
            "the tests replace the input",
        ),
        (
            "import pytest\n@pytest.mark.parametrize('a', [1])\ndef test_a(a, one, b=2): assert add(a, one) == 2",
            r"the test function test_a has parameters \(one\), which nothing fills",
        ),
        ("import asyncio\nassert asyncio.run(f()) == 3", "the tests run asyncio, which the sandbox does not allow"),
        (
            "import pytest\n@pytest.fixture\ndef s(): return Stack()\ndef test_push(s) -> None:\n    assert s.push(1)",
            r"the test function test_push has parameters \(s\), which nothing fills",
        ),
    ],
)
def test_what_cannot_run_here_is_refused_and_not_judged_wrong(tests: str, said: str):
    assert re.match(said, fault([tests]))
