"""Wheels in parts: split, brought along, joined again, and refused where anything is not as it was."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import conftest
from tests.made import module_of
from tests.made_runs import read_lines

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
    """Three wheels in parts of 1,000 bytes; the folder and the wheels."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "brought").mkdir()
    files = [wheel(tmp_path / "whole", name, size) for name, size in (("first", 0), ("second", 2500), ("third", 100))]
    carry.split(files, tmp_path / "brought", part_bytes=1000)
    return tmp_path / "brought", files


def test_parts_hold_no_more_than_they_may_and_make_the_same_files(parts: tuple[Path, list[Path]]):
    folder, files = parts
    sizes = [path.stat().st_size for path in folder.glob("part-*")]
    assert max(sizes) == 1000
    assert len(sizes) > len(files)
    for _ in range(2):
        joined = carry.join(folder)
        assert [(path.name, path.read_bytes()) for path in joined] == [(path.name, path.read_bytes()) for path in files]
        joined[0].write_bytes(b"something else")  # what was joined is not trusted
    assert carry.split(files[:1], folder, part_bytes=10_000_000) == 1
    assert [path.name for path in folder.glob("part-*")] == ["part-000"]
    assert [path.name for path in carry.join(folder)] == [files[0].name]


def test_what_is_missing_or_damaged_is_refused_by_name(parts: tuple[Path, list[Path]]):
    folder, _ = parts
    sums, part = folder / carry.SUMS, folder / "part-001"
    damaged = part.read_bytes()[:-1] + bytes([part.read_bytes()[-1] ^ 1])
    outside = sums.read_text().replace("part-001", "../part-001")
    for path, content, said in (
        (part, damaged, r"part-001 is damaged, or of another set: bring all parts and SHA256SUMS along again"),
        (part, None, r"part-001 is missing: bring it along"),
        (sums, b"{", "SHA256SUMS in .* is damaged"),
        (sums, outside.encode(), "SHA256SUMS in .* is damaged"),
        (sums, None, "make gpu-wheels"),
    ):
        before = path.read_bytes()
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(carry.CarryError, match=said):
            carry.join(folder)
        assert not (folder / "joined").exists()
        path.write_bytes(before)
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


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What a draw takes along, with small wheels in the place of those that pip would fetch."""
    (tmp_path / "made").mkdir()
    names = {tuple(carry.pins(file)): name for name, file in carry.SETS.items()}
    monkeypatch.setattr(
        carry, "download", lambda wanted, whole, python: [wheel(tmp_path / "made", names[tuple(wanted)], 2500)]
    )
    monkeypatch.setattr(carry, "checkout_bytes", lambda: carry.TRANSFER_BYTES - 10**7 - 10**5)
    base = tmp_path / "base.gguf"
    base.write_bytes(os.urandom(11 * 10**6))
    for name in carry.DATA:
        (tmp_path / name).write_text(f"{name}\n")
    found: list[Path] = carry.pack(tmp_path / "wheels", base, tmp_path)
    return found


def test_a_draw_is_packed_kept_folder_by_folder_and_unpacked_to_the_byte(
    packed: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept, calls = tmp_path / "kept", list[tuple[list[str], dict[str, str]]]()
    assert [folder.name for folder in packed] == ["need-00", "need-01", "vllm-00", "unsloth-00"]
    assert max(sum(file.stat().st_size for file in folder.iterdir()) for folder in packed) <= 10**7 + 10**5

    def begun(command: list[str], **given: Any) -> subprocess.CompletedProcess[str]:
        calls.append((command, given["env"]))
        return subprocess.CompletedProcess(command, 0)

    plain = subprocess.run
    monkeypatch.setattr(
        carry.subprocess, "run", lambda command, **given: (plain if "pip" in command else begun)(command, **given)
    )
    for folder in packed[:2]:  # a transfer each, whose folder is gone with the next
        carry.keep([folder], kept)
    carry.keep([packed[3]], kept)
    (kept / "need" / "joined-partial").mkdir()  # an earlier one was stopped while it unpacked
    assert carry.draw(kept, ["--list", "0-draw.yaml"], 500) == 0
    command, environment = calls[-1]
    joined = kept / "need" / "joined"
    assert {path.name: path.read_bytes() for path in joined.iterdir() if path.suffix != ".whl"} == {
        name: (tmp_path / name).read_bytes() for name in ("base.gguf", *carry.DATA)
    }
    assert not (kept / "need" / "joined-partial").exists()
    assert command[1:] == [
        *(str(carry.ROOT / "benchmarks" / "card.py"), "--data", str(joined), "--out", str(kept / "out")),
        *("--base", str(joined / "base.gguf"), "--list", "0-draw.yaml", "--seconds", command[-1]),
    ]
    assert 400 < float(command[-1]) <= 500
    # The checkout's own code, the needed packages and Unsloth; vLLM, which has not come, is done without.
    sites = [str(carry.ROOT), *(str((kept / name / "site").resolve()) for name in ("need", "unsloth"))]
    assert environment["PYTHONPATH"].split(os.pathsep)[:3] == sites
    assert "LITE_SELFPLAY_GPU_VLLM" not in environment
    carry.keep([packed[2]], kept)
    carry.draw(kept, [], 500)
    assert calls[-1][1]["LITE_SELFPLAY_GPU_VLLM"] == str((kept / "vllm" / "site").resolve())
    assert (kept / "vllm" / "site" / "vllm.py").is_file()


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_draw_without_what_it_needs_is_refused(packed: list[Path], tmp_path: Path, how: str):
    carry.keep(packed[:1] if how == "missing" else packed[:2], tmp_path / "kept")
    if how == "damaged":
        (tmp_path / "kept" / "need" / "part-001").write_bytes(b"something else")
    with pytest.raises(carry.CarryError, match=f"part-001 is {how}"):
        carry.draw(tmp_path / "kept", [], 500)


def test_results_are_written_one_by_one_and_no_test_begins_when_the_time_is_used_up(tmp_path: Path):
    told = {conftest.RESULTS: str(tmp_path / "results.jsonl"), conftest.UNTIL: "100"}
    for number in range(2):
        conftest.write({"test": number}, told)
        assert [row["test"] for row in read_lines(tmp_path / "results.jsonl")] == [*range(number + 1)]
    conftest.write({"test": 2}, {})  # no file is asked for
    assert conftest.left_out({}, 1e9) is None
    assert conftest.left_out(told, 99.0) is None
    assert "used up" in str(conftest.left_out(told, 100.0))
    assert 60 * carry.MINUTES * carry.shares(False)[-1] + carry._GRACE < 20 * 60


def test_the_order_of_the_tests_names_every_file():
    assert sorted(conftest.ORDER) == sorted(path.stem for path in SCRIPT.parent.glob("test_*.py"))


def test_tests_that_do_not_end_are_ended():
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert carry._pytest(sleeping, dict(os.environ), 1.0) == 1
    assert carry._pytest([sys.executable, "-c", ""], dict(os.environ), 60.0) == 0


def test_what_is_lacking_is_found():
    assert carry.lacking(["pytest", "no-such-package-at-all", "torch"]) == ["no-such-package-at-all"]


def test_the_lists_pin_what_the_locks_pin():
    root = Path(__file__).parents[1]
    assert set(carry.pins(carry.NEEDED)) <= set(carry.pins(root / "requirements-cpu.lock"))
    assert set(carry.pins(root / "requirements-unsloth.lock")) <= set(carry.pins(carry.FOR_UNSLOTH))
    both = [*carry.pins(carry.NEEDED), *carry.pins(carry.FOR_UNSLOTH)]
    assert all(pin.count("==") == 1 for pin in both)
    assert len({pin.partition("==")[0] for pin in both}) == len(both)
