"""Answers that are kept: what is found again, and what is not."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.data import Completion, EvalSpec, Problem, Sampling, Verdict
from lite_selfplay.errors import RunFolderError
from lite_selfplay.evaluation.examiner import Answers
from tests.made import evaluated

from . import scripted

PAPER = Sampling(temperature=0.6, top_p=0.95, max_tokens=50)
PROBLEMS = [Problem("p", "1 + 1?", "2"), Problem("q", "1 + 2?", "3"), Problem("r", "2 + 2?", "4")]
IDENTITY = {"base": "tiny", "stop": (), "weights": {"A": "0" * 64}}
SPECS = (EvalSpec("single", ("A", "B")), EvalSpec("cascade", ("A", "B")))


class Scripted(scripted.Scripted):
    """Each seat says its name and what the seed decides; right where the seed is even."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str], int]] = []

    def sample(
        self, seat: str, prompts: Sequence[str], n: int, sampling: Sampling, seeds: Sequence[Sequence[int]]
    ) -> list[list[Completion]]:
        self.calls.append((seat, list(prompts), n))
        rows = zip(prompts, seeds, strict=True)
        return [[self._said(seat, prompt, seed, sampling) for seed in row] for prompt, row in rows]

    def _said(self, seat: str, prompt: str, seed: int, sampling: Sampling) -> Completion:
        text = f"{seat} thinks. So {seed % 2} it is"
        return Completion(prompt, text, (1,), (seed % 7,) * (seed % 5), (-1.0,) * (seed % 5), "eos", seat, 0, sampling)

    def judge(self, completion: Completion, problem: Problem) -> Verdict:
        return Verdict("So 0" in completion.text, 0.0, answer=completion.text[-7], well_formed=True)


def measured(answers: Answers, table: Scripted | None = None, **options: Any) -> list[Any]:
    table = table or Scripted()
    return [
        evaluated(table, spec, PROBLEMS, sampling=PAPER, tasks="sums", answers=answers, **options) for spec in SPECS
    ]


def test_modes_share_what_they_ask_in_the_same_words():
    table = Scripted()
    apart = measured(Answers(), table, samples=2, ks=(1, 2))
    # The drafts of the cascade are the answers of single: only two seats' challenges are asked for besides.
    assert [(seat, n) for seat, _, n in table.calls] == [("A", 2), ("B", 2), ("B", 1), ("A", 1)]
    assert apart == measured(Answers(), samples=2, ks=(1, 2))


@pytest.mark.parametrize("kept", [0, 1, 5, 12])
def test_a_call_that_was_stopped_goes_on(tmp_path: Path, kept: int):
    path = tmp_path / "eval" / "x.partial.jsonl"
    whole = measured(Answers(IDENTITY, path), rows_at_once=1)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + 3 * 4  # what they are of; three problems, two seats, two stages
    path.write_bytes(b"".join(lines[: 1 + kept]) + (lines[1 + kept][:30] if kept < 12 else b""))  # killed as it wrote
    answers, table = Answers(IDENTITY, path), Scripted()
    assert len(answers.lines) == kept
    assert measured(answers, table, rows_at_once=1) == whole
    assert sum(len(prompts) for _, prompts, _ in table.calls) == 12 - kept
    again = path.read_bytes().splitlines()
    assert [json.loads(line)["key"] for line in again[1:]] == [json.loads(line)["key"] for line in lines[1:]]
    (path.parent / "single.json").write_text("{}")
    answers.remove()
    assert [file.name for file in path.parent.iterdir()] == ["single.json"]  # the folder stays where something is in it
    (path.parent / "single.json").unlink()
    answers.remove()
    assert list(tmp_path.iterdir()) == []


def test_answers_of_other_weights_are_not_read(tmp_path: Path):
    path = tmp_path / "x.partial.jsonl"
    measured(Answers(IDENTITY, path))
    assert Answers({**IDENTITY, "weights": {"A": "1" * 64}}, path).lines == {}
    assert path.read_bytes() == b""


@pytest.mark.parametrize("times", [1, 9])
def test_a_folder_that_another_evaluation_removes_is_made_again(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mkdir, removed = Path.mkdir, list(range(times))

    def gone_at_once(path: Path, *given: Any, **more: Any) -> None:
        mkdir(path, *given, **more)
        if removed:
            removed.pop()
            path.rmdir()

    monkeypatch.setattr(Path, "mkdir", gone_at_once)
    path = tmp_path / "eval" / "x.partial.jsonl"
    answers = Answers(IDENTITY, path)
    if times > 5:
        with pytest.raises(RunFolderError, match="its folder is being removed"):
            measured(answers)
    else:
        measured(answers)
        assert Answers(IDENTITY, path).lines.keys() == answers._memory.keys() != set()


@pytest.mark.parametrize("changed", [{"seed": 1}, {"samples": 2}, {"shots": 1}])
def test_what_was_asked_otherwise_is_asked_again(changed: dict[str, Any]):
    answers, table = Answers(), Scripted()
    measured(answers, table)
    asked = len(table.calls)
    measured(answers, table, **changed)
    assert len(table.calls) >= asked + 2


def test_a_line_that_an_evaluation_did_not_write_and_a_link_are_refused(tmp_path: Path):
    path = tmp_path / "x.partial.jsonl"
    measured(Answers(IDENTITY, path))
    head, first, *_ = path.read_text().splitlines()
    path.write_text(f"{head}\n{json.dumps({**json.loads(first), 'answers': [{'text': 3}]})}\n")
    with pytest.raises(RunFolderError, match="is damaged: remove it"):
        measured(Answers(IDENTITY, path))
    (tmp_path / "link.jsonl").symlink_to(path)
    with pytest.raises(RunFolderError, match="link"):
        Answers(IDENTITY, tmp_path / "link.jsonl")


def test_answers_of_an_earlier_call_are_judged_again(tmp_path: Path):
    """Its checker may have been an older one."""
    path = tmp_path / "x.partial.jsonl"
    whole = measured(Answers(IDENTITY, path))
    lines = (
        path.read_text()
        .replace('"correct": false', '"correct": true')
        .replace('"well_formed": true', '"well_formed": false')
    )
    path.write_text(lines)
    table = Scripted()
    assert measured(Answers(IDENTITY, path), table) == whole
    assert table.calls == []
