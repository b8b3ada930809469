"""Programs in completions: where they stand, and what counts as one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.verify.programs.program_tests import read_tests
from lite_selfplay.verify.programs.program_text import extract_program, is_program, with_stub

CODE = "def f(x):\n    return x"


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (f"Here it is:\n```python\n{CODE}\n```\nDone.", CODE),
        (f"```py\n{CODE}\n```", CODE),
        (f"```\n{CODE}\n```", CODE),
        (f"~~~python\n{CODE}\n~~~", CODE),
        (f"```python\nx = 1\n```\nBetter:\n```python\n{CODE}\n```", CODE),
        (f"```python\n{CODE}\n```\nIt prints:\n```text\n5\n```", CODE),
        (f"```python\n{CODE}\n```\nRun it:\n```bash\npython f.py\n```", CODE),
        (f"````python\n{CODE}\n````", CODE),
        ("```python\ndef f(x):\n    retu", "def f(x):\n    retu"),
        (CODE, CODE),
        (f"{CODE}\n\n", CODE),
        ("print(input())", "print(input())"),
        (f"<answer>\n{CODE}\n</answer>", CODE),
        (f"Let me see. <answer>```python\n{CODE}\n```</answer>", CODE),
        (f"For example:\n```python\nx = 1\n```\n<answer>\n{CODE}\n</answer>", CODE),
        (f"```python\n{CODE}\n```\n<answer>42</answer>", CODE),
        (f"<answer>\n{CODE}", CODE),
        (f"<think>```python\nx = 1\n```</think>\n```python\n{CODE}\n```", CODE),
        ("<answer>def f(x) return</answer>", "def f(x) return"),
        ("    return x + 1", "    return x + 1"),
        ("```python\n    return x\n```", "    return x"),
    ],
)
def test_the_program_of_a_completion(text, program):
    assert extract_program(text) == program


@pytest.mark.parametrize(
    "text",
    [
        *("", "I do not know.", "42", "x", "'text'", "<answer></answer>", "The answer is 5."),
        *("<think>```python\nx = 1\n```", "```bash\nls\n```", "```python\n```"),
        "```python\n" + "x" * 60000 + "\n```",
    ],
)
def test_no_program(text):
    assert extract_program(text) is None


USAGE = "print(f(2))"
CALL = [{"function": "f", "arguments": [1], "expected": 1}]
LATER = [
    (CALL, CODE, f"```python\n{USAGE}\n```"),
    (CALL, CODE, "It prints\n```\n1\n```\nand\n```\nx = f(1)\n```"),
    (CALL, "f = lambda x: x", f"```\n{USAGE}\n```"),
    (CALL, f"class A:\n    {CODE[:8]}: pass", f"```\n{USAGE}\n```"),
    (["assert f(1) == 1"], CODE, "```\nassert f(3) == 3\n```"),
    ({"test": "def check(candidate):\n    assert candidate(1) == 1", "entry_point": "f"}, CODE, f"```\n{USAGE}\n```"),
    ([["1", "1"]], "n = int(input())\nprint(n)", "```\nimport os\nos.system('python a.py')\n```"),
    ([["1", "1"]], "import sys\nprint(sys.stdin.read())", "```\n1\n```"),
    ([["", "5"]], "print(5)", "```\n5\n```"),
    ({"tests": ["assert f(1) == 1"], "stub": "def f(x):\n"}, "    return x", f"```\n{USAGE}\n```"),
]


@pytest.mark.parametrize(("tests", "program", "after"), LATER)
def test_usage_and_output_may_follow_the_program(tests, program, after):
    asked = read_tests(tests).asked
    for text in (f"```python\n{program}\n```\n{after}", f"{after}\nor\n```python\n{program}\n```\n{after}"):
        assert extract_program(text, asked=asked) == program
        assert extract_program(f"<answer>{text}</answer>", block_only=True, asked=asked) == program
    better = program.replace("x", "xx")
    assert extract_program(f"```\n{program}\n```\n{after}\n```\n{better}\n```", asked=asked) == better


def test_in_the_block_alone():
    text = f"```python\nx = 1\n```\n<answer>\n{CODE}\n</answer>"
    assert extract_program(text, block_only=True) == CODE
    assert extract_program(f"```python\n{CODE}\n```", block_only=True) is None
    assert extract_program(f"<answer>{CODE}", block_only=True) is None
    assert extract_program(f"<answer>```python\n{CODE}\n```</answer>", block_only=True) == CODE


BOMBS = [
    "(" * 40000, "-" * 4999 + "1", "(\n" + "1+\n" * 15000 + "1)", "x = " + "[\n" * 9000, "lambda:" * 700 + "1",
    "f" + "(1)\n(2)" * 5000, "(a" + ".b\n" * 15000 + ")", "not " * 1200 + "1", "1if 1else " * 480 + "1", "\x00" * 9,
]  # fmt: skip


@pytest.mark.parametrize("text", BOMBS)
def test_a_source_that_is_a_bomb_is_only_a_text(text):
    assert is_program(text) in (True, False)


@given(st.text(max_size=300))
def test_any_text_is_read(text):
    for mark in ("", "```python\n", "<answer>", "```\n"):
        program = extract_program(mark + text)
        assert program is None or program.strip()


def test_a_stub_is_completed_or_written_anew():
    stub = "import math\n\n\ndef f(x):\n    'doc'\n"
    assert with_stub("", "    x = 1\n    y = 2") == "x = 1\ny = 2"
    assert with_stub(stub, "    return 1") == "import math\n\n\ndef f(x):\n    'doc'\n    return 1"
    assert with_stub(stub, CODE) == f"{stub.rstrip()}\n\n\n{CODE}"
