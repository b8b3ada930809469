"""No answer to a problem of reasoning-gym is run as a program, and those that scorers evaluate keep their values."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.extras import gym
from lite_selfplay.extras.gym import open_dataset
from lite_selfplay.extras.gym.literals import read
from lite_selfplay.verify import Verifier
from tests.made import completion

pytest.importorskip("reasoning_gym", reason="needs reasoning-gym")

TOUCHES = "__import__('pathlib').Path('{place}').touch()"
HOSTILE = (
    TOUCHES,
    "[[str({touches})]]",
    "sin('''{touches}''')",
    'Max(["""{touches}"""])',
    "sympify('''{touches}''')",
    "Symbol('x').__class__.__init__.__globals__['sympify']('''{touches}''')",
    "(lambda: open('{place}', 'w'))()",
    "[open('{place}', 'w') for _ in [1]]",
)


def entries() -> Iterator[tuple[str, dict[str, Any]]]:
    """A problem of every data set."""
    from reasoning_gym.factory import DATASETS

    for name in sorted(DATASETS):
        try:
            yield name, open_dataset(name, {}, seed=3, size=1)[0]
        except TaskError:
            assert name == "composite"


def problem(name: str, entry: dict[str, Any]) -> Problem:
    return Problem(
        name, "?", str(entry["answer"]), kind=gym.KIND, extra={"dataset": name, "options": {}, "entry": entry}
    )


def test_no_scorer_runs_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By any of its data sets; nor does the process have the environment that a program would steal."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    place = tmp_path / "ran"
    texts = [text.format(place=place, touches=TOUCHES.format(place=place)) for text in HOSTILE]
    with Verifier(workers=1) as verifier:
        pairs = [(completion(f"<answer>{text}</answer>"), problem(*one)) for one in entries() for text in texts]
        verdicts = verifier.verify(pairs)
        (process,) = verifier._checking._kept[gym.KIND].pids()
        assert b"hf_secret" not in Path(f"/proc/{process}/environ").read_bytes()
    assert not place.exists()
    assert {each.kind for _, each in pairs} == {gym.KIND}
    pays = {name for (_, each), verdict in zip(pairs, verdicts, strict=True) if verdict.correct for name in [each.id]}
    assert pays <= gym._PAYS_ALWAYS.keys()


def test_an_answer_does_not_write_its_verdict():
    forged = "[__import__('os').write(0, b'{\"outcome\": \"score 1.0\"}' + bytes([10])), __import__('os')._exit(0)]"
    one = problem("binary_matrix", open_dataset("binary_matrix", {})[0])
    with Verifier(workers=1) as verifier:
        (verdict,) = verifier.verify([(completion(f"<answer>{forged}</answer>"), one)])
    assert (verdict.correct, verdict.score) == (False, 0.0)


@pytest.mark.parametrize(
    "text", ["[[0, 1], [1, 0]]", "['a', 'b']", "(1, -2.5)", "{1, 2}", "3 * (4 - 1) // 2", "(0x3a << 2) ^ ~1", " 7 % 4 "]
)
def test_literals_and_arithmetic_have_their_python_values(text: str):
    assert read(text) == eval(text.strip())


@pytest.mark.parametrize(
    "text", ["2*x**3/3 - x + C", "exp(2*x)*sin(x)/5 + sqrt(3)*pi", "log(x, 2)*Abs(x) - 0.5*E", "f(x) + 3!", "abs(-7)*6"]
)
def test_formulas_have_their_values_in_sympy(text: str, monkeypatch: pytest.MonkeyPatch):
    import sympy
    from sympy.parsing import sympy_parser

    local = {"C": sympy.Symbol("C")}
    wanted = sympy.parse_expr(text, local_dict=local)
    monkeypatch.setitem(vars(sympy_parser), "eval", read)
    assert sympy.parse_expr(text, local_dict=local) == wanted


@pytest.mark.parametrize(
    "text",
    ["open", "().__class__", "[1][0]", "f'{1}'", "1 if 1 else 2", "lambda: 1", "[x for x in [1]]", "sympify(1)", "S(1)",
     "Integer('1', base=2)", "sin('cos(1)')", "lambdify(x, x)", "preview(x)"],
)  # fmt: skip
def test_anything_else_is_refused(text: str):
    import sympy

    with pytest.raises(ValueError, match="neither a literal nor a formula"):
        read(text, {**vars(sympy), "x": sympy.Symbol("x"), "open": open})


def test_a_data_set_that_has_a_compiler_of_its_own_keeps_it():
    """In a process of its own: names of Python's are replaced in all of the package."""
    program = (
        "from lite_selfplay.extras.gym import open_dataset; from lite_selfplay.extras.gym.literals import replace_eval;"
        "entry = open_dataset('bf', {}, seed=3)[0]; replace_eval(); print(open_dataset('bf', {}, seed=3)[0] == entry)"
    )
    said = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert said.endswith("True\n")  # its compiler prints dots before
