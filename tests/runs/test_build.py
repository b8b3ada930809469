"""What a run is held to where it goes on: its problems, and the code that it was made with."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, resume, train
from lite_selfplay.errors import RunFolderError
from lite_selfplay.runs.folder import ENVIRONMENT
from tests.made import jsonl

SMALL = {"model": "tiny", "precision": "fp32", "group_size": 2, "problems_per_step": 1, "steps": 1}
SMALL |= {"max_completion_tokens": 4, "preflight": False}
FILES = ("tasks", "eval", "passages", "validation")


def much(completions: Sequence[str], **_: Any) -> list[float]:
    return [float(len(text)) for text in completions]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run for each kind of file that a game draws from, each in its own folder together with the files."""
    runs = {}
    for kind, game, key, name in (
        ("tasks", "grpo", "eval_tasks", "eval"),
        ("passages", "pasodoble", "knowledge", "passages"),
        ("validation", "cpmobius", "validation", "validation"),
    ):
        folder = tmp_path_factory.mktemp(kind)
        for file in FILES:
            jsonl(folder / f"{file}.jsonl", *({"problem": f"{file} {n}?", "answer": str(n)} for n in range(8)))
        drawn = {key: folder / f"{name}.jsonl"}
        config = RunConfig(game=game, tasks=folder / "tasks.jsonl", run_dir=folder / "run", **drawn, **SMALL)
        runs[kind] = train(config).path
    return {**runs, "eval": runs["tasks"]}


CHANGES: dict[str, Callable[[list[Any]], list[Any]]] = {
    "reordered": lambda rows: rows[::-1],
    "another answer": lambda rows: [{**rows[0], "answer": "77"}, *rows[1:]],
    "other words": lambda rows: [*rows[:-1], {**rows[-1], "problem": "What else?"}],
    "one more": lambda rows: [*rows, {"problem": "What else?", "answer": "1"}],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", FILES)
def test_a_run_whose_file_has_changed_does_not_go_on(made: dict[str, Path], kind: str, change: str):
    run = made[kind]
    file = run.parent / f"{kind}.jsonl"
    before = file.read_text()
    jsonl(file, *CHANGES[change]([json.loads(line) for line in before.splitlines()]))
    try:
        with pytest.raises(
            RunFolderError, match=rf"{run} was made with other problems: .* for .*\b{kind} have changed"
        ):
            resume(run, steps=2)
    finally:
        file.write_text(before)


@pytest.mark.parametrize("kind", ["passages", "validation"])
def test_with_the_files_as_they_were_it_goes_on(made: dict[str, Path], kind: str, tmp_path: Path):
    run = shutil.copytree(made[kind], tmp_path / "moved")
    (run / ENVIRONMENT).unlink()  # the checkpoint knows as well
    assert len(resume(run, steps=2).metrics_rows()) == 2
    assert json.loads((run / ENVIRONMENT).read_text())["data"][kind]["rows"] > 0


def test_a_file_that_was_moved_is_the_same_one_and_another_is_not(made: dict[str, Path], tmp_path: Path):
    run = shutil.copytree(made["eval"], tmp_path / "run")
    for name in ("tasks", "eval"):
        shutil.copy(made["eval"].parent / f"{name}.jsonl", tmp_path)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace(str(made["eval"].parent), str(tmp_path)))
    assert len(resume(run, steps=2).metrics_rows()) == 2
    (run / ENVIRONMENT).write_text("")  # a damaged one forgets nothing
    shutil.copy(made["eval"].parent / "passages.jsonl", tmp_path / "tasks.jsonl")
    with pytest.raises(RunFolderError, match="for tasks have changed"):
        resume(run, steps=3)


DAMAGE: dict[str, Callable[[dict[str, Any]], str]] = {
    "cut": lambda facts: json.dumps(facts)[:100],
    "empty": lambda facts: "",
    "of nothing": lambda facts: "{}",
    "of a list": lambda facts: "[]",
    "without the code": lambda facts: json.dumps({key: facts[key] for key in facts if key != "code"}),
    "of other code": lambda facts: json.dumps({**facts, "code": {"reward": 0.5}}),
}


def test_a_damaged_environment_forgets_no_reward(tmp_path: Path):
    tasks = jsonl(tmp_path / "tasks.jsonl", *({"problem": f"{n}?", "answer": str(n)} for n in range(8)))
    run = train(RunConfig(game="grpo", tasks=tasks, run_dir=tmp_path / "run", **SMALL), reward=much).path
    environment = run / ENVIRONMENT
    facts = json.loads(environment.read_text())
    for damage in DAMAGE.values():
        environment.write_text(damage(facts))
        with pytest.raises(RunFolderError, match=r"reward given in Python, much of .*resume\('.*', reward=much\)"):
            resume(run, steps=2)
    assert resume(run, steps=2, reward=much).metrics_rows()[1]["step"] == 2
    mended = json.loads(environment.read_text())
    assert {key: mended[key] for key in ("base", "data", "code")} == {k: facts[k] for k in ("base", "data", "code")}
