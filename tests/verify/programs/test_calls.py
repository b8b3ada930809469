"""Problems about calls: literals are read and never evaluated, and what a program returns comes back as data."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lite_selfplay.data import NOT_JUDGED, Problem, Verdict
from lite_selfplay.verify import Verifier
from lite_selfplay.verify.programs.calls import CALL, LONGEST, arguments, literal
from lite_selfplay.verify.programs.zygotes import Zygotes
from tests.made import completion

ADD = "def f(a, b=1):\n    return a + b"


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier() as found:
        yield found


def judged(verifier: Verifier, told: dict[str, Any], *texts: str) -> list[Verdict]:
    return verifier.verify([(completion(text), Problem("p", "", told, CALL)) for text in texts])


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 12), (" -1.5 ", -1.5), ("'a'", "a"), ("[1, (2,), {'k': {3}}]", [1, (2,), {"k": {3}}]), ("None", None)],
)
def test_a_literal_is_its_value(text: str, value: Any):
    assert literal(text) == value
    assert arguments(f"{text}, 1") == (value, 1)
    assert arguments(f"{text},") == (value,)


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "1 + 1", "print(1)", "__import__('os')", "[i for i in (1,)]", "lambda: 1", "f'{1}'", "1; 2"),
        *("[" * 100 + "]" * 100, "9" * 5000, "'" + "a" * LONGEST + "'", "{[]: 1}", "'open", "\0", "1 if 2 else 3"),
    ],
)
def test_what_is_no_literal(text: str):
    for read in (literal, arguments):
        with pytest.raises(ValueError, match="no literal"):
            read(text)


def test_which_output(verifier: Verifier):
    right = ["<answer>[1, 2]</answer>", "<answer>`[1.0, 2]`</answer>", "No: <answer>3</answer> <answer>[1,2]</answer>"]
    wrong = [
        "<answer>(1, 2)</answer> <answer>[2, 1]</answer>",
        "<answer>[1, 1 + 1]</answer>",
        "<answer></answer>",
        "[1, 2]",
    ]
    assert [each.correct for each in judged(verifier, {"output": "[1, 2]"}, *right, *wrong)] == [True] * 3 + [False] * 4
    assert [each.reason for each in judged(verifier, {"output": "1"}, "<answer>2</answer>", "1")] == [
        "wrong",
        "no_answer",
    ]
    formed = judged(verifier, {"output": "1"}, "<answer>1</answer>", "<answer>1</answer> <answer>1</answer>")
    assert [(each.correct, each.well_formed) for each in formed] == [(True, True), (True, False)]


def test_which_input(verifier: Verifier):
    said = ["1, 4", "4", "[2], [3]", "'5'", "5, 0, 0", "f(1, 4)", "open('/etc/passwd')", "10**9, 5 - 10**9"]
    found = judged(verifier, {"program": ADD, "output": "5"}, *(f"<answer>{each}</answer>" for each in said))
    assert [each.correct for each in found] == [True, True, *[False] * 6]
    lists = judged(verifier, {"program": ADD, "output": "[2, 3]"}, "<answer>[2], [3]</answer>")
    assert lists[0].correct


@pytest.mark.parametrize(
    ("program", "inputs", "outputs"),
    [
        (ADD, ["1", "'a', 'b'", "[1], [2]"], ["2", "'ab'", "[1, 2]"]),
        (ADD, ["1", "'a'"], None),  # one of them fails
        (ADD, [], None),
        (ADD, ["1 + 1"], None),
        ("def f(a): return {1, 2, 3}", ["1"], ["{1, 2, 3}"]),
        ("def f(a): return set()", ["1"], ["set()"]),
        ("def f(a): return float('nan')", ["1"], None),
        ("def f(a): return range(3)", ["1"], None),
        ("def f(a): return iter([1])", ["1"], None),
        ("class A(int): pass\ndef f(a): return A(7)", ["1"], ["7"]),
        ("class S(str):\n    def __repr__(self): return 'os'\ndef f(a): return S('x')", ["1"], ["'x'"]),
        ("def f(a): return 'x' * 10000", ["1"], None),  # longer than a literal may be
        ("def f(a):\n    while True: pass", ["1"], None),
        (
            'import os\ndef f(a):\n    os.write(3, b\'= ["i", "7"]\\n\' * 2)\n    os._exit(0)',
            ["1"],
            None,
        ),  # more values than calls
        ('import os\ndef f(a):\n    os.write(3, b\'= ["i", "7"]\\n\')\n    os._exit(0)', ["1"], None),
        ('import os\ndef f(a):\n    os.write(3, b\'= ["i", "7"]\\n\' * a)\n    while True: pass', ["1"], None),
        # Another process, another result.
        *((f"def f(a): return {each}", ["1"], None) for each in ("repr(f)", "id([])", "id(0.5 * a)", "hash(object())")),
        ("def f(a): return __import__('os').getpid()", ["1"], None),
        ("def f(a): return __import__('time').time()", ["1"], None),
        ("import os\nbyte = os.urandom(8)\ndef f(a): return byte", ["1"], None),
        ("seen = []\ndef f(a):\n    seen.append(a)\n    return len(seen)", ["1"], None),
        ('import os\ndef f(a):\n    os.write(3, b\'= ["h", 0]\\n= ["h", 0]\\n\')\n    os._exit(0)', ["1"], None),
        ("import os\ndef f(a):\n    os.write(3, b'= __import__\\n' * 2)\n    os._exit(0)", ["1"], None),
    ],
)
def test_what_a_program_returns(verifier: Verifier, program: str, inputs: list[str], outputs: list[str] | None):
    (found,) = judged(verifier, {"program": program, "inputs": inputs}, "whatever")
    assert found.correct is (outputs is not None)
    assert (json.loads(found.answer) if found.answer else None) == outputs
    assert found.reason == ("" if outputs else "invalid")


def test_a_program_that_was_not_judged(verifier: Verifier, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Zygotes, "run", lambda self, jobs, *_: [Zygotes.not_judged for _ in jobs])
    for told in ({"program": ADD, "inputs": ["1"]}, {"program": ADD, "output": "2"}):
        assert [each.reason for each in judged(verifier, told, "<answer>1</answer>")] == [NOT_JUDGED]
