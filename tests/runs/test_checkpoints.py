"""Checkpoints: bit for bit, complete or absent, and refused where they are damaged or another run's."""

import errno
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from lite_selfplay.config import SeatConfig
from lite_selfplay.errors import RunFolderError, SaveFailed
from lite_selfplay.models.adapters import Adapters
from lite_selfplay.runs import checkpoints
from lite_selfplay.runs.checkpoints import MANIFEST, OPTIMIZER, STATE, Checkpoint, find_checkpoints, newest_whole
from lite_selfplay.tasks.files import sha256_of
from lite_selfplay.training.optimizer import load_optimizer_state, optimizer_state, seat_groups
from tests.made import same_weights

SEATS = {name: SeatConfig(rank=2, alpha=4, init="gaussian", init_std=0.1) for name in ("A", "B")}
IDENTITY = {"base": "tiny:1", "game": "agon"}
HASHED = {**IDENTITY, "config_hash": "abc", "config": {"seats": {"A": {"alpha": 32, "rank": 8}}, "seed": 0}}
COUNTS = {"cold_started": True, "skipped_steps": 0, "nonfinite": 0}
STATE_OF_GAME = {"game": {"round": 3}, "sources": {"problems": {"position": 12, "size": 40}}, **COUNTS}


class Player:
    """Seats over the random model and their optimizer."""

    def __init__(self, path: Path, seed: int):
        base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.adapters = Adapters(base, SEATS, seed=seed)
        self.optimizer = torch.optim.AdamW(seat_groups(self.adapters, SEATS))

    def move(self, seat: str, seed: int = 0) -> None:
        """One update along random gradients."""
        generator = torch.Generator().manual_seed(seed)
        self.optimizer.zero_grad(set_to_none=True)
        for parameter in self.adapters.parameters(seat).values():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        self.optimizer.step()
        self.adapters.moved(seat)

    def save(self, folder: Path, step: int, keep: int = 3, **changes: Any) -> Checkpoint:
        values = {"optimizer": optimizer_state(self.optimizer, self.adapters), "state": STATE_OF_GAME, **changes}
        path = checkpoints.save_checkpoint(folder, step, adapters=self.adapters, identity=HASHED, keep=keep, **values)
        return Checkpoint(path, step)

    def load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        optimizer, state = checkpoints.load_checkpoint(checkpoint, self.adapters), checkpoints.read_state(checkpoint)
        load_optimizer_state(self.optimizer, self.adapters, optimizer)
        return state


@pytest.fixture(scope="module")
def players(tiny_path: Path) -> list[Player]:
    """Two that differ in their seats' first weights."""
    return [Player(tiny_path, seed) for seed in (0, 1)]


@pytest.fixture
def player(players: list[Player]) -> Player:
    """One that has moved, and keeps a snapshot of where it was."""
    player = players[0]
    player.adapters.snapshots.clear()
    player.adapters.versions.update(A=0, B=0)
    player.adapters.updates.update(A=0, B=0)
    player.move("A")
    player.adapters.snapshot("A", "A@1")
    player.move("A")
    player.move("B")
    return player


@pytest.fixture
def other(players: list[Player]) -> Player:
    other = players[1]
    other.adapters.snapshots.clear()
    other.optimizer.state.clear()
    return other


def steps(folder: Path) -> list[int]:
    return [checkpoint.step for checkpoint in find_checkpoints(folder)]


def test_everything_comes_back_bit_for_bit(player, other, tmp_path):
    for name in ("z", "a", "A@reference"):
        player.adapters.snapshot("B", name)
        player.move("B")
    player.adapters.restore("A", "A@1")  # which is a change and no update
    assert not same_weights(player.adapters.state("A"), other.adapters.state("A"))
    state = other.load(player.save(tmp_path, 5))
    for seat in ("A", "B"):
        assert same_weights(player.adapters.state(seat), other.adapters.state(seat))
    assert other.adapters.versions == player.adapters.versions == {"A": 3, "B": 4}
    assert other.adapters.updates == {"A": 2, "B": 4}
    kept = {name: snapshot.seat for name, snapshot in other.adapters.snapshots.items()}
    assert kept == {"A@1": "A", "z": "B", "a": "B", "A@reference": "B"}
    for name, snapshot in player.adapters.snapshots.items():
        assert same_weights(snapshot.state, other.adapters.snapshots[name].state)
    mine, theirs = (optimizer_state(p.optimizer, p.adapters) for p in (player, other))
    assert mine
    assert same_weights(mine, theirs)
    assert state | STATE_OF_GAME == state
    assert state["step"] == 5
    unmoved = player.save(tmp_path, 0, optimizer={})
    assert checkpoints.load_checkpoint(unmoved, other.adapters) == {}


def test_only_safetensors_and_json_and_all_of_them_listed(player, tmp_path):
    path = player.save(tmp_path, 5).path
    written = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    assert {Path(name).suffix for name in written} == {".safetensors", ".json"}
    manifest = json.loads((path / MANIFEST).read_text())
    assert manifest["files"].keys() == written - {MANIFEST}
    assert {OPTIMIZER, STATE, "snapshot-0.safetensors"} <= written
    assert {f"adapters/{seat}/adapter_model.safetensors" for seat in "AB"} <= written
    assert (manifest["step"], manifest["base"], manifest["game"]) == (5, "tiny:1", "agon")
    assert manifest["ranks"] == {"A": 2, "B": 2}
    assert manifest["versions"].keys() == {"lite-selfplay", "torch", "transformers", "peft"}
    with pytest.raises(ValueError, match="JSON"):
        player.save(tmp_path, 6, state={"game": {"score": float("nan")}})
    assert steps(tmp_path) == [5]  # and no other


def test_the_last_few_are_kept(player, tmp_path):
    others = ("step-", "step-x", "step-1.bak", "checkpoint-1", "old-step-1")
    for name in others:
        player.save(tmp_path, 1).path.rename(tmp_path / name)
    assert steps(tmp_path) == steps(tmp_path / "none") == []
    for step in (2, 4, 10, 9):
        player.save(tmp_path, step, keep=2)
    # By number, not by name or age: 9 is older than 10, though written after it.
    assert steps(tmp_path) == [9, 10]
    assert {path.name for path in tmp_path.iterdir()} == {*others, "step-9", "step-10"}


def test_a_damaged_one_does_not_count_among_those_that_are_kept(player, tmp_path):
    for step in (40, 50):
        player.save(tmp_path, step, keep=2)
    flip(tmp_path / "step-50" / STATE)
    last = newest_whole(tmp_path)
    assert last is not None
    assert last.step == 40
    player.save(tmp_path, 41, keep=1)  # a resume from step 40
    found = newest_whole(tmp_path)
    assert found == Checkpoint(tmp_path / "step-41", 41)
    (tmp_path / "step-41" / MANIFEST).unlink()  # a removal that a kill cut short
    player.save(tmp_path, 50, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-50"]
    flip(tmp_path / "step-50" / SEAT)
    player.save(tmp_path, 60, keep=2)
    player.save(tmp_path, 70, keep=2)
    assert steps(tmp_path) == [60, 70]


def test_a_step_can_be_saved_again_over_what_a_killed_save_left(player, other, tmp_path):
    left = tmp_path / ".step-3.partial"
    (left / "adapters").mkdir(parents=True)
    (left / "stray.safetensors").write_bytes(b"half")
    assert steps(tmp_path) == []
    player.save(tmp_path, 3)
    player.move("B", seed=4)
    checkpoint = player.save(tmp_path, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]
    assert not (checkpoint.path / "stray.safetensors").exists()
    other.load(checkpoint)
    assert same_weights(player.adapters.state("B"), other.adapters.state("B"))


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


INCOMPLETE: dict[str, Callable[[Path], None]] = {
    "no manifest": lambda path: (path / MANIFEST).unlink(),
    "half a manifest": lambda path: write(path / MANIFEST, '{"files": {'),
    "files are a list": lambda path: write(path / MANIFEST, '{"files": ["a"]}'),
    "files without size": lambda path: write(
        path / MANIFEST, '{"step": 4, "files": {"state.json": {}, "optimizer.safetensors": {}}}'
    ),
    "no optimizer": lambda path: (path / OPTIMIZER).unlink(),
    "short seat": lambda path: truncate(path / "adapters" / "B" / "adapter_model.safetensors"),
    "a file": lambda path: shutil.rmtree(path) or write(path, ""),
}


@pytest.mark.parametrize("damage", INCOMPLETE)
def test_an_incomplete_one_is_none(player, tmp_path, damage):
    player.save(tmp_path, 2)
    INCOMPLETE[damage](player.save(tmp_path, 4).path)
    assert steps(tmp_path) == [2]


def resumed(folder, other):
    """What a resume does: it looks for the newest whole checkpoint, and loads it."""
    skipped: list[str] = []
    last = newest_whole(folder, skipped.append)
    if last is None:
        raise RunFolderError("; ".join(skipped))
    checkpoints.load_checkpoint(last, other.adapters)


def test_a_resume_reads_every_file_for_its_hash_once(player, other, tmp_path, monkeypatch):
    files = json.loads((player.save(tmp_path, 5).path / MANIFEST).read_text())["files"]
    hashed: list[str] = []
    monkeypatch.setattr(checkpoints, "sha256_of", lambda path: hashed.append(path.name) or sha256_of(path))
    resumed(tmp_path, other)
    assert sorted(hashed) == sorted(Path(name).name for name in files)


def test_another_base_game_or_configuration_is_refused(player, tmp_path):
    checkpoint = player.save(tmp_path, 5)
    checkpoints.check_identity(checkpoint, IDENTITY, "abc")
    for key, value in (("base", "hub:Qwen/Qwen3-0.6B@abc"), ("game", "grpo"), ("precision", "x")):
        with pytest.raises(RunFolderError, match=f"made with another {key}: it is '{value}'( now)?, and was"):
            checkpoints.check_identity(checkpoint, {**IDENTITY, key: value}, "abc")
    with pytest.raises(RunFolderError, match=r"seats\.A\.alpha is 1, and was 32, which a run must keep"):
        checkpoints.check_identity(checkpoint, IDENTITY, "abd", {"seats": {"A": {"alpha": 1, "rank": 8}}, "seed": 0})


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def relisted(path: Path) -> None:
    """Make a manifest fit whatever the files hold now, as somebody could who means harm."""
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"] = {
        name: {"size": (path / name).stat().st_size, "sha256": sha256_of(path / name)} for name in manifest["files"]
    }
    write(path / MANIFEST, json.dumps(manifest))


def rename_entry(path: Path, name: str) -> None:
    write(path / MANIFEST, (path / MANIFEST).read_text().replace('"snapshot-0.safetensors"', json.dumps(name)))


def change_state(path: Path, **values: Any) -> None:
    write(path / STATE, json.dumps({**json.loads((path / STATE).read_text()), **values}))


def change_seat(path: Path, change: Callable[[Tensor], Tensor]) -> None:
    save_file({name: change(tensor).contiguous() for name, tensor in load_file(path / SEAT).items()}, path / SEAT)


def rank_one(factor: Tensor) -> Tensor:
    return factor[:1] if len(factor) == 2 else factor[:, :1]


SEAT = "adapters/A/adapter_model.safetensors"
NAMES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "absolute": (lambda path: rename_entry(path, "/etc/passwd"), r"manifest\.json names '/etc/passwd'"),
    "above": (lambda path: rename_entry(path, "../step-1/state.json"), r"manifest\.json names '\.\./"),
    "backslash": (lambda path: rename_entry(path, "a\\b"), r"manifest\.json names"),
    "drive": (lambda path: rename_entry(path, "C:x"), r"manifest\.json names 'C:x'"),
    "a link": (lambda path: (path / "adapters/x").symlink_to("/tmp"), "adapters/x is a symbolic link"),
    "a flipped bit": (lambda path: flip(path / STATE), rf"{STATE} is damaged.*SHA-256"),
    "one of a seat": (lambda path: flip(path / SEAT), rf"{SEAT} is damaged.*SHA-256"),
    "one of a snapshot": (lambda path: flip(path / "snapshot-0.safetensors"), r"snapshot-0.* is damaged.*SHA-256"),
    "one of the optimizer": (lambda path: flip(path / OPTIMIZER), rf"{OPTIMIZER} is damaged.*SHA-256"),
}
CONTENTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "NaN": (lambda path: write(path / STATE, '{"step": NaN}'), r"state\.json: not JSON \(NaN"),
    "a list": (lambda path: write(path / STATE, "[]"), r"state\.json: must be an object, not list"),
    "another step": (lambda path: change_state(path, step=9), r"state\.json is not the state of step 5"),
    "other seats": (lambda path: change_state(path, versions={"Z": 1}), r"state\.json has the seats Z"),
    "updates of others": (lambda path: change_state(path, updates={"Z": 1}), r"state\.json has the seats Z"),
    "no updates": (lambda path: change_state(path, updates={"A": -1, "B": 0}), r"is invalid: updates\.A"),
    "a pickle": (lambda path: (path / SEAT).write_bytes(pickle.dumps({"a": 1})), f"{SEAT} is not a safetensors file"),
    "cut": (lambda path: truncate(path / SEAT), f"{SEAT} is not a safetensors file"),
    "another rank": (lambda path: change_seat(path, rank_one), f"{SEAT}: .*so it has another rank"),
    "half precision": (lambda path: change_seat(path, lambda t: t.half()), f"{SEAT}: .*float16"),
    "not finite": (lambda path: change_seat(path, lambda t: t * float("nan")), f"{SEAT} is damaged: .*not finite"),
}


@pytest.mark.parametrize("kind", [*NAMES, *CONTENTS])
def test_a_hostile_checkpoint_is_refused_and_left_as_it_is(player, other, tmp_path, kind):
    checkpoint = player.save(tmp_path, 5)
    damage, sentence = NAMES.get(kind) or CONTENTS[kind]
    damage(checkpoint.path)
    if kind in CONTENTS:
        relisted(checkpoint.path)
    before, seats = contents(tmp_path), {seat: other.adapters.state(seat) for seat in ("A", "B")}
    with pytest.raises(RunFolderError, match=sentence) as caught:
        resumed(tmp_path, other)
    assert caught.value.exit_code == 2
    assert contents(tmp_path) == before
    assert all(same_weights(other.adapters.state(seat), seats[seat]) for seat in seats)
    assert other.adapters.snapshots == {}


def test_each_folder_is_listed_with_what_is_wrong_with_it(player, tmp_path):
    for step in (1, 2, 3):
        player.save(tmp_path, step)
    (tmp_path / "step-1" / MANIFEST).unlink()
    flip(tmp_path / "step-3" / SEAT)
    assert [found.problem for found in checkpoints.list_checkpoints(tmp_path)] == [
        "manifest.json is missing",
        None,
        None,
    ]
    damaged = f"{SEAT} is damaged: its SHA-256 is not the one in manifest.json"
    assert [found.problem for found in checkpoints.list_checkpoints(tmp_path, full=True)][1:] == [None, damaged]
    said: list[str] = []
    assert newest_whole(tmp_path, said.append) == Checkpoint(tmp_path / "step-2", 2)
    assert said == [f"skipped {tmp_path / 'step-3'}: {damaged}"]


def test_a_full_disk_leaves_the_earlier_ones_whole(player, tmp_path, monkeypatch):
    player.save(tmp_path, 1)
    before = contents(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    ours = "lite_selfplay"
    for place in (f"{ours}.tasks.files.sync", f"{ours}.runs.checkpoints.write_whole", "safetensors.torch.save_file"):
        with monkeypatch.context() as patch:
            patch.setattr(place, full)
            with pytest.raises(SaveFailed, match=r"cannot write .*step-1: No space left"):
                player.save(tmp_path, 1)
        assert contents(tmp_path) == before
        assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_an_older_one_that_was_moved_aside_is_found_and_put_back(player, tmp_path):
    player.save(tmp_path, 3).path.rename(tmp_path / ".step-3.old")
    (found,) = find_checkpoints(tmp_path)
    assert (found.step, found.path.name) == (3, ".step-3.old")
    player.save(tmp_path, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-3", "step-4"]


def test_a_state_is_read_up_to_the_size_up_to_which_it_is_written(player, tmp_path, monkeypatch):
    monkeypatch.setattr("lite_selfplay.tasks.files.JSON_LIMIT", 5000)
    remembered = {**STATE_OF_GAME, "game": {"buffer": ["x" * 6000]}}
    checkpoint = player.save(tmp_path, 1, state=remembered)
    assert checkpoints.read_state(checkpoint)["game"] == remembered["game"]
    monkeypatch.setattr(checkpoints, "STATE_LIMIT", 5000)
    with pytest.raises(SaveFailed, match=r"cannot write .*step-2: .*no more than 5,000 could be read again"):
        player.save(tmp_path, 2, state=remembered)
    with pytest.raises(RunFolderError, match="is longer than"):
        checkpoints.read_state(checkpoint)
    assert steps(tmp_path) == [1]
