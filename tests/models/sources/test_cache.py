"""Building once: two processes, a killed builder, a failing one, a damaged folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lite_selfplay.errors import RequestError
from lite_selfplay.models.sources import cache

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


def start(target: Path, log: Path, how: str = "live") -> subprocess.Popen[bytes]:
    root = Path(cache.__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen([sys.executable, "-c", BUILDER, str(target), str(log), how], env=environment)


def test_two_processes_build_one(tmp_path):
    target, log = tmp_path / "cache" / "model", tmp_path / "log"
    processes = [start(target, log) for _ in range(2)]
    assert [process.wait(30) for process in processes] == [0, 0]
    assert log.read_text().splitlines() == ["built"]
    assert cache.is_built(target)


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_killed_builder_leaves_nothing_half_made(tmp_path):
    target, log = tmp_path / "cache" / "model", tmp_path / "log"
    assert start(target, log, "die").wait(30) == -signal.SIGKILL
    assert not target.exists()
    assert len(list(target.parent.glob(".model.partial"))) == 1
    cache.build_once(target, lambda staging: (staging / "whole").touch())
    assert cache.is_built(target)
    assert list(target.parent.glob(".model.partial")) == []


def test_an_error_passes_through_and_leaves_nothing(tmp_path):
    def fail(staging: Path) -> None:
        (staging / "part").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.build_once(tmp_path / "model", fail)
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == []


def test_a_damaged_folder_is_built_again(tmp_path):
    target, built = tmp_path / "model", []

    def build(staging: Path) -> None:
        built.append(1)
        (staging / "sub").mkdir()
        (staging / "sub" / "file").write_text("content")

    for expected in (1, 1):
        cache.build_once(target, build)
        assert len(built) == expected
    (target / "sub" / "file").write_text("cut")
    cache.build_once(target, build)
    assert len(built) == 2
    (target / ".complete.json").write_text("{")
    cache.build_once(target, build)
    assert len(built) == 3
    assert (target / "sub" / "file").read_text() == "content"


def test_files_get_the_usual_permissions(tmp_path):
    def build(staging: Path) -> None:
        (staging / "private").touch(mode=0o600)

    target = cache.build_once(tmp_path / "model", build)
    assert (target / "private").stat().st_mode == (target / ".complete.json").stat().st_mode


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("LITE_SELFPLAY_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.cache_dir() == Path.home() / ".cache" / "lite-selfplay"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_dir() == tmp_path / "lite-selfplay"
    monkeypatch.setenv("LITE_SELFPLAY_CACHE", str(tmp_path / "own"))
    assert cache.cache_dir() == tmp_path / "own"


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="LITE_SELFPLAY_CACHE"):
        cache.build_once(tmp_path / "file" / "model", lambda staging: None)
