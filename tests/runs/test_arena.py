"""The arena: who meets whom, what is counted, what is written, and that it goes on where it was stopped."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, train
from lite_selfplay.errors import ConfigError, Interrupted, RunFolderError
from lite_selfplay.runs.arena import Arena, Duels, chosen_steps, hold, summary
from lite_selfplay.runs.folder import ARENA, RunFolder
from lite_selfplay.runs.report.heat_map import save_heat_map
from lite_selfplay.training.progress import Progress

SCORE = {"pass_at_1": 0.5, "ci95": [0.2, 0.8]}


def arena(*duels: Duels, drafts: bool = True) -> Arena:
    names = tuple(dict.fromkeys(name for each in duels for name in (each.first, each.second)))
    return Arena("run", "letters", 10, drafts, names, dict.fromkeys(names, SCORE), duels, {"seed": 0})


BOTH = arena(Duels("A", "B", 3, 1, 4, 2), Duels("B", "A", 0, 2, 6, 2))


def test_a_duel_is_won_by_who_is_right_alone_whoever_drafts():
    assert BOTH.wins("B", "A") == (5, 6)  # 3 conversions, and 2 drafts that A could not keep up with
    assert BOTH.wins("A", "B") == (1, 6)
    assert BOTH.wins("A") == (1, 6)
    assert BOTH.ranking() == ["B", "A"]
    assert summary(BOTH) == "B won 83.3% of its 6 decided duels, which may be chance."
    sure = arena(Duels("A", "B", 20, 1, 0, 0))
    assert summary(sure) == "B won 95.2% of its 21 decided duels."
    assert summary(arena(Duels("A", "B", 0, 0, 5, 5))).startswith("No duel was decided")


def test_tables_and_json():
    columns, rows = BOTH.win_table()
    assert columns == ["", "alone, pass@1", "against all", "against B", "against A"]
    assert rows[0] == ["B", "50% [20, 80]", "83.3% [36, 100] of 6", "-", "83.3% [36, 100] of 6"]
    columns, rows = BOTH.conversion_table()
    assert columns == ["draft by", "answer by B", "answer by A"]
    assert rows == [["B", "-", "+0 of 2, -2 of 8"], ["A", "+3 of 5, -1 of 5", "-"]]
    assert arena(Duels("A", "B", 1, 0, 0, 0), drafts=False).conversion_table()[1] == []
    found = json.loads(json.dumps(BOTH.to_json()))
    assert found["win_rates"]["B"]["A"]["won"] == 5
    assert found["win_rates"]["B"]["A"]["ci95"] == pytest.approx([0.3588, 0.9958], abs=1e-4)
    assert found["duels"][0]["conversions"] == 3


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_heat_map_is_drawn_whatever_names_hold(tmp_path: Path, suffix: str):
    odd = Duels("A$\x1b[31m_{", "<b>B</b>\u202e", 0, 0, 5, 5)
    save_heat_map(arena(odd, Duels("A$\x1b[31m_{", "c", 1, 2, 3, 4)), tmp_path / "new" / f"map.{suffix}")
    drawn = (tmp_path / "new" / f"map.{suffix}").read_bytes()
    assert len(drawn) > 5000
    assert b"<b>" not in drawn
    (tmp_path / "link.png").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match="symbolic link"):
        save_heat_map(BOTH, tmp_path / "link.png")


# With a model


class Stop(Progress):
    """Interrupts once so many questions were answered."""

    def __init__(self, after: int | None = None) -> None:
        self.after, self.said = after, list[str]()

    def say(self, sentence: str) -> None:
        self.said.append(sentence)

    def advance(self, done: int, note: str = "") -> None:
        if self.after is not None and done >= self.after:
            raise Interrupted("stopped")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings: dict[str, Any] = {"model": "tiny", "precision": "fp32", "tasks": "letters", "steps": 2, "save_every": 1}
    sizes = {"group_size": 2, "problems_per_step": 1, "max_completion_tokens": 6}
    seats = {"*": {"init": "gaussian", "init_std": 0.3, "lr": 0.02}}
    folder = tmp_path_factory.mktemp("arena") / "run"
    return train(RunConfig(game="agon", run_dir=folder, seats=seats, **settings, **sizes)).path


def test_the_base_and_seats_of_checkpoints_meet_and_a_stopped_arena_goes_on(run: Path, call: Callable[..., Any]):
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with pytest.raises(Interrupted):
        hold(run, limit=4, progress=Stop(after=8))
    (kept,) = (run / "eval").glob("*.partial.jsonl")
    assert len(kept.read_text().splitlines()) > 4
    ended = call("arena", run, "--limit", "4", "--format", "svg", "--json")
    assert ended.code == 0
    assert "going on with the answers to" in ended.err
    found = json.loads(ended.out)
    names = ["base", "A@0", "B@0", "A@2", "B@2"]
    assert list(found["alone"]) == names
    assert [(each["first"], each["second"]) for each in found["duels"]] == [
        (a, b) for a in names for b in names if a != b
    ]
    for each in found["duels"]:
        assert each["conversions"] + each["regressions"] + each["both_right"] + each["both_wrong"] == found["n"] == 4
    (written,) = (run / ARENA).glob("*.json")
    assert json.loads(written.read_text()) == found
    assert written.with_suffix(".svg").stat().st_size > 5000
    assert not list((run / "eval").glob("*")) if (run / "eval").exists() else True
    assert {file: file.read_bytes() for file in before} == before

    again = call("arena", run, "--limit", "4", "--no-figure")
    assert again.code == 0
    assert len(list((run / ARENA).glob("*.json"))) == 2
    assert "who converts whom" in again.out
    assert "against base" in again.out


def test_what_a_seat_says_is_what_its_checkpoint_says(run: Path):
    """A@2 is the last checkpoint, and so the run's own seat A: the two answer alike."""
    from lite_selfplay.runs.evaluating import Settings, evaluate_all

    settings = Settings(limit=6, seats=("A", "A@2", "A@0"))
    (found,) = evaluate_all(run, ["letters"], ["single"], settings, write=False)
    assert [row[0].completion.text for row in found.rows["A"]] == [row[0].completion.text for row in found.rows["A@2"]]
    assert [row[0].completion.text for row in found.rows["A"]] != [row[0].completion.text for row in found.rows["A@0"]]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--checkpoints", "7"], "has no complete checkpoint of step 7: it has 0, 1, 2"),
        (["--checkpoints", "one"], "--checkpoints takes steps separated by commas, or all; got 'one'"),
        (["--tasks", "nothing"], "unknown task 'nothing'"),
        (["--temperature", "-1"], "temperature must be from 0"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_a_wrong_request_is_a_sentence(run: Path, call: Callable[..., Any], flags: list[str], words: str):
    ended = call("arena", run, *flags)
    assert ended.code == 2
    assert words in ended.err
    assert "Traceback" not in ended.err


def test_what_is_no_run_or_has_no_checkpoint(run: Path, tmp_path: Path, call: Callable[..., Any]):
    assert "is not a run folder" in call("arena", tmp_path).err
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text())
    ended = call("arena", tmp_path)
    assert (ended.code, "has no complete checkpoint whose seats could meet" in ended.err) == (2, True)
    with pytest.raises(ConfigError):
        chosen_steps(RunFolder(run), "0,,2")
    assert chosen_steps(RunFolder(run), "all") == [0, 1, 2]
    assert chosen_steps(RunFolder(run), "2,0") == [0, 2]
