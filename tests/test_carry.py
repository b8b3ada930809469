"""Wheels in parts: split, brought along, joined again, and refused where anything is not as it was."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.gpu import schedule
from tests.made import module_of

SCRIPT = Path(__file__).parent / "gpu" / "carry.py"
carry = module_of(SCRIPT)


def wheel(folder: Path, name: str, filler: int = 0) -> Path:
    """A wheel of a package with one module that says its name."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"NAME = {name!r}\n# {'x' * filler}\n")
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return path


@pytest.fixture
def parts(tmp_path: Path) -> tuple[Path, list[Path]]:
    """Three wheels in parts of 1,000 bytes, the second of them over several; the folder and the wheels."""
    (tmp_path / "whole").mkdir()
    files = [wheel(tmp_path / "whole", name, size) for name, size in (("first", 0), ("second", 2500), ("third", 100))]
    carry.split(files, tmp_path / "brought", part_bytes=1000)
    return tmp_path / "brought", files


def test_parts_hold_no_more_than_they_may_and_make_the_same_files(parts: tuple[Path, list[Path]]):
    folder, files = parts
    held = [[path for path in part.iterdir() if path.name != "manifest.json"] for part in folder.glob("part-*")]
    assert all(sum(path.stat().st_size for path in pieces) <= 1000 for pieces in held)
    assert len(held) == -(-sum(path.stat().st_size for path in files) // 1000)
    assert sum(len(pieces) for pieces in held) > len(files)
    joined = carry.join(folder)
    assert [path.read_bytes() for path in joined] == [path.read_bytes() for path in files]
    assert [path.name for path in joined] == [path.name for path in files]
    before = [path.stat().st_mtime_ns for path in joined]
    assert [path.stat().st_mtime_ns for path in carry.join(folder)] == before  # what is there and whole is left alone


def test_splitting_again_leaves_no_old_piece(parts: tuple[Path, list[Path]]):
    folder, files = parts
    assert carry.split(files[:1], folder, part_bytes=10_000) == 1
    assert [path.name for path in folder.glob("part-*")] == ["part-1"]
    assert len(carry.join(folder)) == 1


def test_what_is_missing_or_damaged_is_refused_by_name(parts: tuple[Path, list[Path]]):
    folder, files = parts
    piece = next((folder / "part-2").glob("*.whl.*"))
    whole = piece.read_bytes()
    piece.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(carry.CarryError, match=rf"{piece.name} is damaged .*: bring part-2 along again"):
        carry.join(folder)
    piece.unlink()
    with pytest.raises(carry.CarryError, match=rf"{piece.name} is missing: bring part-2 along"):
        carry.join(folder)
    assert not list((folder / "joined").glob("second*.whl"))
    piece.write_bytes(whole)
    carry.join(folder)[0].write_bytes(b"something else")
    assert carry.join(folder)[0].read_bytes() == files[0].read_bytes(), "what was joined is checked again"
    manifest = folder / "part-1" / "manifest.json"
    other = {**json.loads(manifest.read_text()), "other.whl": {"sha256": "", "pieces": []}}
    for text, said in (
        (json.dumps(other), "not of one set"),
        ("{", r"manifest\.json"),
        ('{"a.whl": {}}', r"manifest\.json"),
        ('{"../a.whl": {"sha256": "", "pieces": []}}', r"manifest\.json"),
    ):
        manifest.write_text(text)
        for same in folder.glob("part-*/manifest.json") if "manifest" in said else ():
            same.write_text(text)
        with pytest.raises(carry.CarryError, match=said):
            carry.join(folder)


def test_no_parts_at_all(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "join", "--wheels", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "make gpu-wheels" in done.stderr


def test_wheels_are_installed_into_a_folder_of_their_own_and_only_once(parts: tuple[Path, list[Path]]):
    folder, _ = parts
    site = folder / "site"
    carry.install(carry.join(folder), site)
    (site / "first.py").write_text("NAME = 'changed'\n")
    carry.install(carry.join(folder), site)
    asked = [sys.executable, "-c", "import first, second, third; print(first.NAME, second.NAME, third.NAME)"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["changed", "second", "third"]
    assert subprocess.run(asked, capture_output=True, timeout=60, check=False).returncode != 0


def test_the_tests_of_a_card_come_by_their_value_and_are_written_one_by_one(tmp_path: Path):
    names = [
        "test_every_game_is_played_for_three_steps[spc-transformers]",
        "test_both_seats_learn_the_letters_in_twenty_steps[transformers]",
        "test_the_base_is_held_in_four_bits_and_the_adapters_in_float32[tiny-transformers]",
        "test_every_game_is_played_for_three_steps[agon-transformers]",
    ]
    assert sorted(names, key=schedule.rank) == [names[2], names[1], names[3], names[0]]
    written = {schedule.RESULTS: str(tmp_path / "results.jsonl")}
    for number in range(2):
        schedule.write({"test": number}, written)
        assert [json.loads(line)["test"] for line in (tmp_path / "results.jsonl").read_text().splitlines()] == [
            *range(number + 1)
        ]
    schedule.write({"test": 2}, {})  # no file is asked for


def test_every_test_that_the_order_names_is_there():
    text = "".join(path.read_text() for path in SCRIPT.parent.glob("test_*.py"))
    assert [start for start in schedule.ORDER if f"def {start.partition('[')[0]}" not in text] == []


def test_no_test_begins_when_the_time_is_used_up():
    assert schedule.left_out({}) is None
    assert schedule.left_out({schedule.UNTIL: "100"}, now=99.0) is None
    assert "used up" in schedule.left_out({schedule.UNTIL: "100"}, now=100.0)
    assert 60 * carry.MINUTES * carry.shares(False)[-1] + carry._GRACE < 20 * 60


def test_tests_that_do_not_end_are_ended():
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert carry._pytest(sleeping, dict(os.environ), 1.0) == 1
    assert carry._pytest([sys.executable, "-c", ""], dict(os.environ), 60.0) == 0


def test_what_is_lacking_is_found():
    assert list(carry.lacking(["pytest", "no-such-package-at-all", "torch"])) == ["no-such-package-at-all"]


def test_the_lists_pin_what_the_locks_pin():
    root = Path(__file__).parents[1]
    assert set(carry.pins(carry.NEEDED)) <= set(carry.pins(root / "requirements-cpu.lock"))
    assert set(carry.pins(root / "requirements-unsloth.lock")) <= set(carry.pins(carry.FOR_UNSLOTH))
    both = [*carry.pins(carry.NEEDED), *carry.pins(carry.FOR_UNSLOTH)]
    assert all(pin.count("==") == 1 for pin in both)
    assert len({pin.partition("==")[0] for pin in both}) == len(both)
