"""Building once: two processes, a killed builder, a failing one, a damaged folder."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lite_selfplay.errors import RequestError
from lite_selfplay.models.sources import cache

ROOT = Path(cache.__file__).parents[3]
BUILDER = """
import os, signal, sys, time
from pathlib import Path
from lite_selfplay.models.sources.cache import build_once

target, log, die = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "die"

def build(staging):
    with log.open("a") as out:
        out.write("built\\n")
    (staging / "half").write_text("half")
    if die:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
    (staging / "half").rename(staging / "whole")

build_once(target, build)
assert (target / "whole").read_text() == "half"
"""


def test_a_killed_builder_leaves_nothing_half_made_and_two_processes_build_one(tmp_path):
    target, log = tmp_path / "cache" / "model", tmp_path / "log"

    def start(how):
        return subprocess.Popen([sys.executable, "-c", BUILDER, str(target), str(log), how], cwd=ROOT)

    assert start("die").wait(30) == -signal.SIGKILL
    assert not target.exists()
    assert [path.name for path in target.parent.iterdir() if path.is_dir()] == [".model.partial"]
    processes = [start("live") for _ in range(2)]
    assert [process.wait(30) for process in processes] == [0, 0]
    assert log.read_text().splitlines() == ["built"] * 2  # by the one that was killed, and by one of the others
    assert cache.is_built(target)
    assert [path.name for path in target.parent.iterdir() if path.is_dir()] == ["model"]


def test_an_error_passes_through_and_leaves_nothing(tmp_path):
    def fail(staging):
        (staging / "part").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.build_once(tmp_path / "model", fail)
    assert {path.suffix for path in tmp_path.iterdir()} == {".lock"}


def test_a_damaged_folder_is_built_again_and_its_files_get_the_usual_permissions(tmp_path):
    target, built = tmp_path / "model", []
    file, complete = target / "sub" / "file", target / ".complete.json"

    def build(staging):
        built.append(1)
        (staging / "sub").mkdir()
        (staging / "sub" / "file").touch(mode=0o600)
        (staging / "sub" / "file").write_text("content")

    for damaged, times in ((None, 1), (None, 1), (file, 2), (complete, 3)):
        if damaged:
            damaged.write_text("{")
        cache.build_once(target, build)
        assert len(built) == times
        assert file.read_text() == "content"
    assert file.stat().st_mode == complete.stat().st_mode


def test_where_the_cache_is_and_one_that_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.delenv("LITE_SELFPLAY_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.cache_dir() == Path.home() / ".cache" / "lite-selfplay"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_dir() == tmp_path / "lite-selfplay"
    monkeypatch.setenv("LITE_SELFPLAY_CACHE", str(tmp_path / "own"))
    assert cache.cache_dir() == tmp_path / "own"
    (tmp_path / "file").touch()
    for folder in ("file", "y" * 300):
        with pytest.raises(RequestError, match="LITE_SELFPLAY_CACHE"):
            cache.build_once(tmp_path / folder / "model", lambda staging: None)


def test_a_file_of_the_same_size_with_other_bytes_is_built_again(tmp_path):
    target, built = tmp_path / "model", []

    def build(staging):
        built.append(1)
        (staging / "file").write_text("content")

    cache.build_once(target, build)
    (target / "file").write_text("contenT")
    cache.build_once(target, build)
    assert (len(built), (target / "file").read_text()) == (2, "content")
    (target / ".complete.json").write_text('{"file": 7}')  # by an earlier release
    cache.build_once(target, build)
    assert len(built) == 2
