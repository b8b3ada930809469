"""The run folder: never overwritten, whole lines, and cut back where a run goes on."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_selfplay.config import RunConfig, load_layer
from lite_selfplay.errors import RunFolderError
from lite_selfplay.runs import folder as folders
from lite_selfplay.runs.folder import CONFIG, ENVIRONMENT, EPISODES, METRICS, RunFolder, environment
from tests.made_runs import write_evaluation

TINY = RunConfig(game="agon", model="tiny", tasks="letters", steps=3)


def created(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.create(TINY)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return created(tmp_path / "run")


def write_steps(folder: RunFolder, *steps: int, episodes: int = 2) -> None:
    for step in steps:
        rows = [{"step": step, "sample": k, "text": "naïve ✓\n"} for k in range(episodes)]
        assert folder.append({"step": step, "loss": 0.5}, rows, limit_mb=1)


def files(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_new_folder_holds_the_configuration(tmp_path):
    folder = created(tmp_path / "runs" / "deep" / "x")
    assert RunConfig.of(load_layer(folder.path / CONFIG)) == TINY
    folder.rewrite_config(RunConfig.of(TINY.chosen(), {"run": {"steps": 9}}))
    assert (folder.config().run.dir, folder.config().run.steps) == (folder.path, 9)
    assert set(files(folder.path)) == {CONFIG, ENVIRONMENT}


@pytest.mark.parametrize("is_there", [False, True])
def test_a_new_folder_appears_whole(tmp_path, monkeypatch, is_there):
    there: list[bool] = []
    path = tmp_path / "runs" / "x"

    def full(*_: Any) -> None:
        there.append(path.exists())
        raise OSError(28, "No space left on device")

    if is_there:
        path.mkdir(parents=True)
    with monkeypatch.context() as patched:
        patched.setattr("lite_selfplay.runs.folder.write_whole", full)
        with pytest.raises(RunFolderError, match=r"cannot write to [^.]*/runs/x: No space left on device$"):
            created(path)
    assert there == [is_there]
    assert [str(found.relative_to(tmp_path)) for found in tmp_path.rglob("*")] == (["runs", "runs/x"] * is_there)
    assert created(path).config() is not None


def test_of_two_runs_that_make_one_folder_the_slower_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x"

    def overtaken() -> dict[str, Any]:
        monkeypatch.undo()
        shutil.copytree(created(tmp_path / "y").path, path)
        return environment()

    monkeypatch.setattr(folders, "environment", overtaken)
    with pytest.raises(RunFolderError, match="never overwritten"):
        created(path)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["x", "y"]
    before = files(path)
    monkeypatch.setattr(RunFolder, "require_free", lambda self: None)
    with pytest.raises(RunFolderError, match="exists already"):
        created(path)
    assert files(path) == before


def test_a_name_that_no_folder_can_have_is_refused_before_anything_is_loaded():
    with pytest.raises(RunFolderError, match=r"cannot read aaa.*too long"):
        RunFolder(Path("a" * 5000)).require_free()


@pytest.mark.parametrize("name", [CONFIG, "notes.txt", ".hidden"])
def test_a_folder_with_anything_in_it_is_left_alone(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunFolderError, match=r"never overwritten.*--run-dir") as refused:
        created(tmp_path)
    assert ("--resume" in str(refused.value)) == (name == CONFIG)  # else there is no run to go on with
    assert files(tmp_path) == {name: b"mine"}


@pytest.mark.parametrize("operation", ["mkdir", "open", None])
def test_a_place_that_cannot_be_written(tmp_path, monkeypatch, operation):
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    if operation is None:
        (tmp_path / "run").write_text("a file")
    else:
        monkeypatch.setattr(Path, operation, refuse)
    why = "Permission denied" if operation else "Not a directory"
    with pytest.raises(RunFolderError, match=rf"cannot write to .*: {why}"):
        created(tmp_path / "run" / "below")


@pytest.mark.parametrize("place", ["none", "", "file"])
def test_opening_what_is_no_run(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"is not a run folder: it has no config\.yaml"):
        RunFolder.open(tmp_path / place)


def test_lines_come_back_as_they_went_in(folder):
    assert (list(folder.steps()), list(folder.episodes())) == ([], [])  # nothing was written yet
    folder.cut(0)
    assert set(files(folder.path)) == {CONFIG, ENVIRONMENT}
    write_steps(folder, 0, 1)
    assert list(folder.steps()) == [{"step": 0, "loss": 0.5}, {"step": 1, "loss": 0.5}]
    rows = [{"step": step, "sample": k, "text": "naïve ✓\n"} for step in (0, 1) for k in (0, 1)]
    assert list(folder.episodes()) == rows
    assert (folder.path / EPISODES).read_text(encoding="utf-8").count("\n") == 4


@settings(max_examples=20)
@given(st.text())
def test_any_text_is_one_line(tmp_path_factory, text):
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.append({"step": 0}, [{"step": 0, "text": text}, {"step": 0, "text": "next"}], limit_mb=1)
    assert [row["text"] for row in folder.episodes()] == [text, "next"]
    with pytest.raises(ValueError, match="JSON"):
        folder.append({"step": 1, "loss": float("nan")}, [], limit_mb=1)
    assert [row["step"] for row in folder.steps()] == [0]


# Lines of a little over 1,000 bytes: after two of them the limit of 2,000 is reached.
@pytest.mark.parametrize(("limit_mb", "rooms"), [(0.002, [True, True, False, False]), (0, [False] * 4)])
def test_episodes_end_at_their_limit_and_metrics_go_on(folder, limit_mb, rooms):
    row = {"step": 0, "text": "x" * 1000}
    assert [folder.append({"step": step}, [row], limit_mb=limit_mb) for step in range(4)] == rooms
    assert len(list(folder.episodes())) == sum(rooms)
    assert len(list(folder.steps())) == 4


# Without the end of the line, and within a character.
@pytest.mark.parametrize("last", [b'{"step": 3}', '{"step": 3, "text": "✓'.encode()[:-1]])
def test_a_last_line_that_a_kill_cut_short_is_passed_over_and_cut_off(folder, last):
    write_steps(folder, 1, 2, episodes=1)
    for name in (METRICS, EPISODES):
        with (folder.path / name).open("ab") as file:
            file.write(last)
    assert [row["step"] for row in folder.steps()] == [row["step"] for row in folder.episodes()] == [1, 2]
    folder.cut(2)
    write_steps(folder, 3, episodes=1)  # which stands alone
    assert [row["step"] for row in folder.steps()] == [row["step"] for row in folder.episodes()] == [1, 2, 3]


@pytest.mark.parametrize("at", [0, 1, 2, 9])
def test_cutting_keeps_the_earlier_lines_byte_for_byte(folder, at):
    write_steps(folder, *(step for step in (1, 2, 3, 4) if step <= at))
    before = files(folder.path)
    write_steps(folder, *(step for step in (1, 2, 3, 4) if step > at))
    (folder.path / ".metrics.jsonl.partial").write_text('{"step": 77}\n')  # of a cut that was killed
    folder.cut(at)
    assert {name: content for name, content in files(folder.path).items() if content} == before


def test_the_environment_names_versions_and_the_runs_own_facts(folder):
    folder.note({"seed": 7, "device": "a CPU", "code": {}, "rewards": ""})
    facts = json.loads((folder.path / "environment.json").read_text())
    assert facts.keys() == {*environment(), "seed", "device", "code", "rewards"}
    assert (facts["seed"], facts["device"]) == (7, "a CPU")
    assert {"torch", "transformers", "trl", "peft", "lite-selfplay"} <= facts["packages"].keys()
    assert facts["python"].count(".") == 2
    if (Path(folders.__file__).parents[2] / ".git").exists():
        assert re.fullmatch("[0-9a-f]{40}", facts["commit"])


NO_STEP = "has no step number"


@pytest.mark.parametrize(
    ("line", "why"), [('{"step": 1', "not JSON"), ('{"a": 1}', NO_STEP), ('{"step": "1"}', NO_STEP)]
)
@pytest.mark.parametrize("name", [METRICS, EPISODES])
def test_a_damaged_line_is_named_and_nothing_is_cut(folder, name, line, why):
    write_steps(folder, 0, episodes=1)
    with (folder.path / name).open("a") as file:
        file.write(f'{line}\n{{"step": 2}}\n')
    before = files(folder.path)
    with pytest.raises(RunFolderError, match=rf"{name}, line 2: .*{why}"):
        list(folder.steps() if name == METRICS else folder.episodes())
    with pytest.raises(RunFolderError, match=rf"{name}, line 2: "):
        folder.cut(1)
    assert files(folder.path) == before


def test_a_gigantic_environment_is_not_read(folder, monkeypatch):
    folder.note({"base": "tiny:1", "code": {}, "rewards": ""})
    assert folder.base() == "tiny:1"
    monkeypatch.setattr("lite_selfplay.tasks.files.JSON_LIMIT", 100)
    with pytest.raises(RunFolderError, match=r"does not say which base .*is longer than"):
        folder.base()


@pytest.mark.parametrize("name", [CONFIG, METRICS, EPISODES, "adapters", "checkpoints", "environment.json"])
def test_a_part_that_is_a_link_is_refused(folder, tmp_path, name):
    folder.require_own_files()
    (folder.path / name).unlink(missing_ok=True)
    (folder.path / name).symlink_to(tmp_path)
    with pytest.raises(RunFolderError, match=rf"{name} is a symbolic link"):
        folder.require_own_files()


def test_what_is_written_can_be_read(folder, monkeypatch):
    """The bound is the same in both directions; an evaluation that is too long loses its answers."""
    monkeypatch.setattr("lite_selfplay.tasks.files.JSON_LIMIT", 2000)
    monkeypatch.setattr(folders, "JSON_LIMIT", 2000)
    write_evaluation(folder, 1, 0.5)
    whole = folder.evaluations()["after 1 steps"]
    assert folder.write_evaluation("at2", {**whole, "moment": "after 2 steps", "answers": {"p": "x" * 2000}})
    assert folder.evaluations()["after 2 steps"]["answers"] == {}
    for write in (
        lambda: folder.write_evaluation("at3", {**whole, "per_problem": {"x" * 2000: 1}}),
        lambda: folder.note({"code": {}, "rewards": "x" * 2000}),
    ):
        with pytest.raises(RunFolderError, match=r"and no more than 2,000 could be read again"):
            write()
    assert list(folder.evaluations()) == ["after 1 steps", "after 2 steps"]


@pytest.mark.parametrize("content", ["", "[]", '{"moment": "after 1 steps", "step": 1}', " " * 3000])
def test_a_damaged_evaluation_is_left_out_of_the_best(folder, monkeypatch, content):
    monkeypatch.setattr("lite_selfplay.tasks.files.JSON_LIMIT", 2000)
    write_evaluation(folder, 2, 0.5)
    (folder.path / "eval" / "at1.json").write_text(content)
    (folder.path / "checkpoints" / "step-2").mkdir(parents=True)
    (folder.path / "checkpoints" / "step-2" / "manifest.json").write_text("{}")
    said: list[str] = []
    assert list(folder.evaluations(said.append)) == ["after 2 steps"]
    assert len(said) == 1
    assert "at1.json" in said[0]
    assert (folder.best() or {})["step"] == 2
    assert folders.state_of(folder.path).best == "50% after 2 steps"
    with pytest.raises(RunFolderError, match=r"at1\.json"):
        folder.evaluations()


def test_cutting_removes_the_evaluations_of_later_steps(folder):
    write_steps(folder, 1, 2)
    for step in (1, 2):
        write_evaluation(folder, step, 0.5)
        (folder.path / "eval" / f"at{step}.json").rename(folder.path / "eval" / f"step-{step:06}.json")
    (folder.path / "eval" / "step-of-mine.json").write_text("{}")
    folder.cut(1)
    assert sorted(path.name for path in (folder.path / "eval").iterdir()) == ["step-000001.json", "step-of-mine.json"]
