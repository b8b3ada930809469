"""Programs and their tests: what passes, what does not, and why."""

import json
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from lite_selfplay.errors import ConfigError, TaskError
from lite_selfplay.verify.programs import Limits, open_sandbox, run_program, run_tests
from lite_selfplay.verify.programs.nouns import Job
from lite_selfplay.verify.programs.problems import as_json
from lite_selfplay.verify.programs.program_tests import AssertTest, CallTest, ProgramTests, StdinTest, read_tests
from lite_selfplay.verify.programs.sandbox import shared_sandbox
from tests.made import shared
from tests.verify.programs.outside import programs_of

FAST = Limits(seconds=1.0, memory_mb=128, output_kb=64)
BRIEF = Limits(seconds=0.5)
SQUARE = "def square(x):\n    return x * x"


def test_a_program_runs():
    run = run_program("import sys\nprint(sum(map(int, input().split())))\nprint('said', file=sys.stderr)", "1 2 3")
    assert (run.reason, run.text, run.stderr) == ("", "6\n", b"said\n")
    assert 0 < run.seconds < 2
    assert 10 < run.memory_mb < 100


ENDS = [
    ("while True: pass", "time", "more than"),
    ("import time; time.sleep(60)", "time", "more than"),
    ("x = bytearray(10 ** 9)", "memory", "128 MiB"),
    ("print('x' * 10 ** 6)", "output", "64 KiB"),
    ("import os\nwhile True: os.write(1, b'x' * 10000)", "output", "64 KiB"),
    ("def f(:", "syntax", "SyntaxError"),
    ("if True:\nprint(1)", "syntax", "IndentationError"),
    ("open('/etc/passwd')", "forbidden", "PermissionError"),
    ("import os; os.fork()", "forbidden", "not permitted"),
    ("import socket; socket.socket()", "forbidden", "not permitted"),
    ("import threading; threading.Thread(target=print).start()", "forbidden", "new thread"),
    ("import ctypes; ctypes.CDLL(None).ptrace(0, 0, 0, 0)", "forbidden", "system call"),
    ("1 / 0", "error", "ZeroDivisionError"),
    ("import sys; sys.exit(3)", "error", "exit code 3"),
    ("import sys; sys.exit('no')", "error", "no"),
    ("import numpy", "error", "No module named 'numpy'"),
    ("import os; os.abort()", "error", "SIGABRT"),
    ("import ctypes; ctypes.string_at(0)", "error", "SIGSEGV"),
    ("pass", "", ""),
    ("raise SystemExit", "", ""),
    ("import sys; sys.exit(0)", "", ""),
]
"""Programs, and the reason and a word of the detail of their end."""


def test_a_run_says_how_it_ended():
    jobs = [Job("stdio", ({"program": program},), program=number) for number, (program, *_) in enumerate(ENDS)]
    runs = shared_sandbox().run(jobs, FAST)
    ends = [(case, run) for case, run in zip(ENDS, runs, strict=True)]
    assert [end for end in ends if end[0][1] != end[1].reason or end[0][2] not in end[1].detail] == []


FORMS = [
    [["3", "9\n"], ["4", "16"]],
    [("3", "9"), ("4", "16")],
    [{"stdin": "3", "stdout": "9"}, {"input": "4\n", "output": "16\n"}],
    {"input": ["3\n", "4\n"], "output": ["9\n", "16\n"]},
    {"inputs": ["3", "4"], "outputs": ["9", "16"]},
    {"tests": [["3", "9"], ["4", "16"]]},
    {"inputs": [["3"], ["4"]], "outputs": [["9"], ["16"]]},
    ProgramTests((StdinTest("3", "9"), StdinTest("4", "16"))),
]


CALLS = [
    [{"function": "square", "arguments": [3], "expected": 9}, {"function": "square", "args": [0.5], "output": 0.25}],
    {"fn_name": "square", "inputs": [[3], [0.5]], "outputs": [9, 0.25]},
    {"function": "square", "tests": [{"input": [3], "output": 9}, {"input": [0.5], "output": 0.25}]},
    [CallTest("square", (3,), 9), CallTest("square", (0.5,), 0.25)],
]


ASSERTED = [
    ["assert square(3) == 9", "assert square(2) == 5"],
    {"test_list": ["assert square(3) == 9", "assert square(2) == 5"]},
    {"tests": ["assert candidate(3) == 9", "assert candidate(2) == 5"], "entry_point": "square"},
    [AssertTest("assert square(3) == 9"), AssertTest("assert square(2) == 5")],
]


HALF = "def square(x):\n    return 9"


@pytest.mark.parametrize(
    ("tests", "right", "half"),
    [
        *((form, "print(int(input()) ** 2)", "print(9)") for form in FORMS),
        *((form, SQUARE, HALF) for form in CALLS),
        *((form, "class Solution:\n    def square(self, x):\n        return x * x", HALF) for form in CALLS),
        *((form, f"{SQUARE} if x == 3 else 5", SQUARE) for form in ASSERTED),
    ],
)
def test_every_form_is_read(tests, right, half):
    whole, part = run_tests([right, half], tests)
    assert (whole.results, whole.passed, whole.total, whole.reason, whole.score) == ((True, True), 2, 2, "", 1.0)
    assert (part.results, part.passed, part.total, part.reason) == ((True, False), 1, 2, "wrong_answer")
    assert part.score == 0.5


def test_a_program_that_completes_a_head():
    tests = {"tests": ["assert f(2) == 4"], "stub": "import math\n\n\ndef f(x):\n    'Twice.'\n"}
    assert run_tests("    return math.floor(2 * x)", tests).score == 1
    assert run_tests("def f(x):\n    return math.floor(2 * x)", tests).score == 1
    assert run_tests("    pass", tests).score == 0


def test_the_tests_of_a_program_that_ran_out_of_time_are_not_run():
    report = run_tests("while True: pass", [["", ""]] * 20, BRIEF)
    assert (report.passed, report.total, report.reason) == (0, 20, "time")
    assert report.seconds < 6


def test_what_was_right_before_the_time_was_over_counts():
    program = "def f(x):\n    while x > 1: pass\n    return x"
    calls = [{"function": "f", "arguments": [x], "expected": x} for x in range(4)]
    assert run_tests(program, calls, BRIEF).results == (True, True, False, False)
    asserted = [f"assert f({x}) == {x}" for x in range(4)]
    report = run_tests(program, asserted, BRIEF)
    assert (report.results, report.reason) == ((True, True, False, False), "time")


def test_many_programs_at_once():
    reports = run_tests([SQUARE, "def square(x", "x = 1"], CALLS[0])
    assert [(each.passed, each.reason) for each in reports] == [(2, ""), (0, "syntax"), (0, "wrong_answer")]
    assert "defines no square" in reports[2].detail
    assert run_tests([], CALLS[0]) == []


def test_chance_is_the_same_in_every_sandbox():
    program = "import random\nprint(random.random(), hash('a'))"
    with closing(open_sandbox(size=1)) as other:
        assert run_program(program, sandbox=other).stdout == run_program(program).stdout


def test_values_of_every_kind_travel():
    program = textwrap.dedent(
        """
        import collections, decimal, fractions
        def same(x): return x
        def kinds(): return [(1, 2.5), {"a": {1, 2}}, b"b", None, True, frozenset([1]), 1j, fractions.Fraction(1, 3)]
        def counted(x): return collections.Counter(x)
        def lazy(x): return (i * i for i in range(x))
        def raises(x): raise KeyError(x)
        class Box:
            def __init__(self, x): self.x = x
        def box(x): return Box(x)
        def cleared(x): x.clear(); return len(x)
        def unbox(b): return b.x
        """
    )
    tests = [
        "from fractions import Fraction\n"
        "assert kinds() == [(1, 2.5), {'a': {1, 2}}, b'b', None, True, frozenset([1]), 1j, Fraction(1, 3)]",
        "assert same('\\ud800é\\n') == '\\ud800é\\n' and same(10 ** 400) == 10 ** 400",
        "assert counted('aab') == {'a': 2, 'b': 1}",
        "assert list(lazy(4)) == [0, 1, 4, 9]",
        "try:\n    raises('a')\nexcept KeyError as error:\n    assert 'a' in str(error)\nelse:\n    assert False",
        "assert unbox(box(3)) == 3",
        "assert same(float('nan')) != same(float('nan'))",
        "x = [3, 1]\nassert sorted(same(x)) == [1, 3] and x == [3, 1]",
        "x = [1]\nassert cleared(x) == 0 and x == [1]",  # arguments go by value
    ]
    assert run_tests(program, tests).results == (True,) * len(tests)


@pytest.mark.parametrize(
    "tests",
    [
        *(None, [], 3, {}, {"tests": []}, [[]], [["1"]], [["1", 2]], [["1", "2", "3"]], [""]),
        {"input": ["1"], "output": []},
        {"function": "f", "arguments": [object()], "expected": 1},
        *({"tests": [["", ""]], **odd} for odd in ({"stub": 3}, {"tolerance": 2}, {"tolerance": "no"})),
    ],
)
def test_what_is_no_test_is_refused(tests):
    with pytest.raises(TaskError, match="the tests"):
        read_tests(tests)
    with pytest.raises(TaskError, match="the tests, number 1: defines `check`, but no `entry_point`"):
        read_tests([CHECK])


@pytest.mark.parametrize("values", [{"seconds": 0}, {"memory_mb": 1}, {"output_kb": 0}, {"seconds": float("nan")}])
def test_limits_have_bounds(values):
    with pytest.raises(ConfigError):
        Limits(**values)


def test_honest_habits_work():
    habits = programs_of(Path(__file__).with_name("habits.txt"))
    reports = run_tests([*habits.values()], [["hi\n", "hi\n"]])
    assert len(habits) >= 16
    assert [(name, report) for name, report in zip(habits, reports, strict=True) if not report.passed] == []


@pytest.mark.data
@pytest.mark.long
def test_every_solution_of_humaneval_passes_and_no_stub_does():
    rows = [json.loads(line) for line in shared("humaneval").read_text().splitlines()]
    failed, passed = [], []
    for row in rows:
        name, head = row["entry_point"], row["prompt"]
        tests = {"test": f"{row['test']}\ncheck({name})\n", "entry_point": name, "stub": head, "setup": head}
        right, stub = run_tests([row["canonical_solution"], "    return None"], tests, Limits(seconds=10))
        failed += [] if right.score == 1 else [(row["task_id"], right)]
        passed += [row["task_id"]] if stub.passed else []
    assert (len(rows), failed, passed) == (164, [], [])


# Every form of tests that a data set may have, and programs that are wrong in every way

RIGHT = ["def add(a, b):\n    return a + b", "add = lambda a, b: b - -a"]
SUMS = [
    *("-77", "None", "a", "b", "a - b", "a * b", "a + b + 1", "abs(a + b)", "3", "0", "True", "str(a + b)"),
    *("[a + b]", "(a + b,)", "{a + b}", "a + b + 1e-3", "float('nan')", "float('inf')", "1j", "print(a + b)"),
    *("lambda: a + b", "add", "iter([a + b])", "NotImplemented", "a + b if a > 0 else None", "a or b"),
]
WRONG = [
    *(f"def add(a, b):\n    return {value}" for value in SUMS),
    *programs_of(Path(__file__).with_name("wrong.txt")).values(),
]
ENDLESS = ["def add(a, b):\n    return add(a, b)", "def add(a, b):\n    while True: pass"]
CHECK = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(-5, 2) == -3\n"
CASES = (
    "class {}(unittest.TestCase):\n    def setUp(self):\n        self.two = 2\n"
    "    def test_sum(self):\n        self.assertEqual(add(1, self.two), 3)\n"
    "    def test_less(self):\n        self.assertEqual(add(-5, 2), -3)\n"
)
ALL_FORMS = {
    "check of HumanEval": {"test": f"\n\nMETADATA = {{}}\n\n\n{CHECK}", "entry_point": "add"},
    "check that is called": {"test": f"{CHECK}\ncheck(add)", "entry_point": "add"},
    "check in a list": [{"test": CHECK, "entry_point": "add"}],
    "check without parameters": [CHECK.replace("(candidate)", "()").replace("candidate", "add")],
    "check after a head": {"test": CHECK, "entry_point": "add", "setup": "def add(a, b):\n    ..."},
    "test_list of MBPP": {
        "test_list": ["assert close(add(1, 2), 3)", "assert add(-5, 2) == -3"],
        "test_setup_code": "def close(a, b):\n    return abs(a - b) < 1e-9",
    },
    "assertions": ["assert add(1, 2) == 3\nassert add(-5, 2) == -3"],
    "unittest": [f"import unittest\n\n{CASES.format('TestAdd')}"],
    "unittest with two classes": [f"import unittest\n{CASES.format('A')}\n{CASES.format('B')}"],
    "unittest as a file": [f"import unittest\n{CASES.format('A')}\nif __name__ == '__main__':\n    unittest.main()"],
    "unittest that runs itself": [f"import unittest\n{CASES.format('A')}\nunittest.main()\n"],
    "calls": {"fn_name": "add", "inputs": [[1, 2], [-5, 2]], "outputs": [3, -3]},
}


WHOLE = ("check of HumanEval", "test_list of MBPP", "unittest", "calls")
"""Forms that are each judged in another way: to them every wrong program is given, to the others one in five."""
FORMS_AND_SHARES = [
    *((form, 1 if form in WHOLE else 5) for form in ALL_FORMS),
    *(pytest.param(form, 1, marks=pytest.mark.long) for form in ALL_FORMS if form not in WHOLE),
]


@pytest.mark.parametrize(("form", "share"), FORMS_AND_SHARES)
def test_every_form_tells_right_programs_from_wrong_ones(form, share):
    tests = read_tests(ALL_FORMS[form])
    assert (len(tests.cases) == 1) == form.startswith(("check", "unittest", "assertions"))
    endless = ENDLESS if form == "unittest" else []  # each ends at a limit, after a second or two
    programs = [*RIGHT, *WRONG[::share], *endless]
    reports = run_tests(programs, tests, FAST)
    assert [program for program, report in zip(programs, reports, strict=True) if report.score == 1] == RIGHT


def test_what_was_read_is_read_again_as_it_is():
    for form in ALL_FORMS.values():
        read = read_tests(form)
        assert read_tests({"tests": list(read.cases), "function": read.function, "setup": read.setup}) == read
        codes = [case.code for case in read.cases if isinstance(case, AssertTest)]
        assert [case.code for case in read_tests(codes).cases] == codes if codes else True


JSON_FORMS = [
    ({"fn_name": "f", "inputs": [[3], [4]], "outputs": [[6], [8]]}, "def f(x): return 2 * x", "def f(x): return [x]"),
    ({"fn_name": "f", "inputs": [[3], [4]], "outputs": [[6], [8]]}, "def f(x): return [2 * x]", "f = str"),
    ([{"function": "f", "arguments": [1], "expected": None}, {"fn_name": "f", "input": [2], "output": 5}],
     "def f(x): return 5 if x == 2 else None", "def f(x): return 5 * x"),
    ({"tests": [{"input": '"ab"\n2', "output": '"abab"', "testtype": "functional"}], "metadata": '{"func_name": "f"}'},
     "class Solution:\n    def f(self, s, n): return s * n", "def f(s, n): return s"),
    ({"tests": [{"input": "[1, 2]", "output": "3", "testtype": "functional"}],
      "starter_code": "class Solution:\n    def f(self, xs: list[int]) -> int:"}, "f = sum", "f = max"),
    ([{"function": "f", "arguments": [{"1": [2], "2": []}], "expected": {"1": 1, "2": 0}}],
     "def f(graph): return {n: len(graph[n]) for n in range(1, 3)}", "def f(graph): return {1: 0, 2: 0}"),
    ([{"function": "f", "arguments": [{"1": [2], "2": []}], "expected": {"1": 1, "2": 0}}],
     "def f(graph): return {n: len(graph[n]) for n in '12'}", "def f(graph): return {}"),
]  # fmt: skip


@pytest.mark.parametrize(("tests", "right", "wrong"), JSON_FORMS)
def test_json_that_can_be_read_in_two_ways(tests, right, wrong):
    read = read_tests(tests)
    good, bad = run_tests([right, wrong], read)
    assert (good.score, bad.reason, bad.score < 1) == (1, "wrong_answer", True)
    assert read_tests(as_json(read)) == read


def test_a_test_that_cannot_be_run_judges_nobody():
    for tests in ({"tests": ["assert f(1) == 1"], "setup": "import json.nothing"}, ["assert f(1 == 1"]):
        report = run_tests("def f(x): return 1", tests)
        assert (report.reason, report.score) == ("not_judged", 0)
        assert report.detail.startswith("its tests cannot be run: ")
    for program in (
        "def g(x): return 1",
        "def f(x): raise ModuleNotFoundError",
        "def f(x): raise SyntaxError",
        "f = (",
    ):
        for tests in (["from solution import f\nassert f(1) == 1"], {"tests": ["assert x == 1"], "setup": "x = f(1)"}):
            assert run_tests(program, tests).reason not in ("", "not_judged")
