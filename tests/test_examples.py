"""The examples run unchanged, on the random model."""

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.made import jsonl

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What an example prints that is run in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def printed(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return printed


@pytest.mark.parametrize(
    "name", ["agon.py", *(pytest.param(name, marks=pytest.mark.long) for name in ("own_loss.py", "own_game.py"))]
)
def test_example(name: str, printed: Callable[..., str], tmp_path: Path):
    assert "adapter" in printed(name)
    assert len(list((tmp_path / "runs").iterdir())) == 1


@pytest.mark.long
def test_from_a_run_to_what_others_use(printed: Callable[..., str], tmp_path: Path):
    said = printed("take_it_away.py")
    assert "chat, base: " in said
    assert "chat, B: " in said
    assert "written: taken-away-page/index.html" in said
    assert "<html" in (tmp_path / "taken-away-page" / "index.html").read_text(encoding="utf-8")
    charts = re.search(r"browser: (?:the page drew (\d+) charts|none is here)", said)
    assert charts is not None
    assert charts[1] is None or int(charts[1]) > 3
    assert "transformers: mean |delta| 0" in said
    assert "  transformers serve taken-away-A\n" in said
    found = json.loads((tmp_path / "taken-away-A" / "verification.json").read_text(encoding="utf-8"))
    assert found["passed"] is True
    assert found["reader"] == "transformers"


def test_the_examples_for_a_small_proposer_are_accepted_in_play(printed: Callable[..., str], tmp_path: Path):
    from lite_selfplay.games.pasodoble.pasodoble import parse_proposal
    from lite_selfplay.training.examples import read_examples

    rows = [
        {"question": "Ann has 48 clips and buys 24. How many?", "answer": "48+24 = <<48+24=72>>72 clips.\n#### 72"},
        {"question": "Half of 48?", "answer": "48/2 = <<48/2=24>>24.\n#### 24"},
    ]
    jsonl(tmp_path / "in.jsonl", *rows)
    printed("pasodoble_examples.py", "in.jsonl", "out.jsonl")
    proposer, solver = read_examples(tmp_path / "out.jsonl", ("proposer", "solver"))
    assert parse_proposal(proposer.completion) == ("What is 48 + 24?", "72")
    assert "What is 48 + 24?" in solver.prompt
    assert solver.completion == "48 + 24 = 72. <answer>72</answer>"
