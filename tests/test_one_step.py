"""`examples/one_step.py`, which imports nothing of this library, computes what the library computes."""

import json
import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, train
from lite_selfplay.games.propose_solve import questions
from lite_selfplay.games.propose_solve.questions import Vote
from tests.made import module_of

EXAMPLE = Path(__file__).parents[1] / "examples" / "one_step.py"


@pytest.fixture(scope="module")
def example() -> Any:
    return module_of(EXAMPLE)


def played(tmp_path: Path, name: str, **sections: Any) -> Path:
    """Two steps in full precision, with what a step is computed again from."""
    run = {"steps": 2, "max_completion_tokens": 24, "save_every": 1, "keep_tokens": True, "dir": tmp_path / name}
    model = {"name": "tiny", "precision": "fp32"}
    kept = {"run": run, "model": model, "cold_start": {"enabled": False}, "tasks": {"train": "letters"}}
    return train(RunConfig.of({"game": {"name": name}}, kept, sections)).path


def check(example: Any, run: Path) -> None:
    """Every group's advantages, each seat's gradient before and after clipping, and its weights after the step."""
    groups: dict[tuple[int, str, int], list[Any]] = {}
    for line in map(json.loads, (run / "episodes.jsonl").read_text().splitlines()):
        groups.setdefault((line["step"], line["role"], line["group"]), []).append(line)
    moved = 0
    for lines in groups.values():
        theirs, ours = [line["advantage"] for line in lines], example.advantages([line["reward"] for line in lines])
        assert [a or 0.0 for a in theirs] == pytest.approx([a or 0.0 for a in ours], abs=1e-12)
    for step in (1, 2):
        for figures in example.recompute(run, step).values():
            moved += figures["gradient"] > 0
            assert figures["gradient"] == pytest.approx(figures["gradient in the run"], rel=1e-5)
            if figures["gradient"]:
                assert figures["gradients differ by"] < 1e-5
                assert figures["weights differ by, of the step"] < 1e-3
    assert moved >= 2


KL = {"roles": {"*": {"beta": 0.3}}}


# In pairs most groups have no variance, and are in the KL term alone.
@pytest.mark.parametrize(("game", "sections"), [("agon", {}), ("agon", {**KL, "run": {"group_size": 2}}), ("grpo", KL)])
def test_steps_of_a_game(example: Any, tmp_path: Path, game: str, sections: dict[str, Any]) -> None:
    check(example, played(tmp_path, game, **sections))


def test_steps_of_sqlm_with_a_shared_seat(example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model states no value, so its votes are counted by the number of a completion's first token."""

    def vote(table: Any, groups: Sequence[Sequence[Any]], **_: Any) -> list[Vote]:
        found = []
        for group in groups:
            answers = [str(completion.token_ids[0] % 2) for completion in group]
            most = max(answers.count("0"), answers.count("1"))
            label = None if 2 * most == len(answers) else "01"[answers.count("1") == most]
            found.append(Vote(label, most, len(answers), [answer == label for answer in answers], tuple(answers)))
        return found

    monkeypatch.setattr(questions, "vote", vote)
    run = played(tmp_path, "sqlm", game={"proposer_every": 1, "seats": "shared"}, run={"group_size": 5})
    roles = {line["role"] for line in map(json.loads, (run / "episodes.jsonl").read_text().splitlines())}
    assert roles == {"proposer", "solver"}
    check(example, run)


def test_it_is_alone_short_and_makes_the_library_s_random_model(example: Any, tmp_path: Path, tiny_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert not re.search(r"^\s*(?:from|import) lite_selfplay", text, re.MULTILINE)
    assert len(text.splitlines()) <= 250
    example.make_tiny(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == (tiny_path / "model.safetensors").read_bytes()
    from transformers import AutoTokenizer

    ours, theirs = (AutoTokenizer.from_pretrained(folder) for folder in (tmp_path, tiny_path))
    turn = [{"role": "user", "content": "Ünder 12 trees"}]
    options = {"add_generation_prompt": True, "return_dict": False}
    assert ours.apply_chat_template(turn, **options) == theirs.apply_chat_template(turn, **options)


def test_it_plays_a_step(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    seats = re.findall(r"^(\w): rows \d+, loss \S+, gradient \d", capsys.readouterr().out, re.MULTILINE)
    assert seats == ["A", "B"]
