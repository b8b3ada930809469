"""The examples run unchanged, on the random model."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.made import jsonl

EXAMPLES = Path(__file__).parents[1] / "examples"


def printed(folder: Path, name: str, *arguments: str) -> str:
    """What an example prints that is run in a folder and ends well."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["agon.py", "own_loss.py", pytest.param("own_game.py", marks=pytest.mark.long)])
def test_example(name: str, tmp_path: Path):
    assert "adapter" in printed(tmp_path, name)
    assert len(list((tmp_path / "runs").iterdir())) == 1


@pytest.mark.long
def test_from_a_run_to_what_others_use(tmp_path: Path):
    said = printed(tmp_path, "take_it_away.py")
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


def test_the_examples_for_a_small_proposer_are_accepted_in_play(tmp_path: Path):
    from lite_selfplay.games.pasodoble.pasodoble import parse_proposal
    from lite_selfplay.training.examples import read_examples

    rows = [
        {"question": "Ann has 48 clips and buys 24. How many?", "answer": "48+24 = <<48+24=72>>72 clips.\n#### 72"},
        {"question": "Half of 48?", "answer": "48/2 = <<48/2=24>>24.\n#### 24"},
    ]
    jsonl(tmp_path / "in.jsonl", *rows)
    printed(tmp_path, "pasodoble_examples.py", "in.jsonl", "out.jsonl")
    proposer, solver = read_examples(tmp_path / "out.jsonl", ("proposer", "solver"))
    assert parse_proposal(proposer.completion) == ("What is 48 + 24?", "72")
    assert "What is 48 + 24?" in solver.prompt
    assert solver.completion == "48 + 24 = 72. <answer>72</answer>"
