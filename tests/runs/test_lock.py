"""One writer for a run folder, across real processes."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lite_selfplay.errors import RunFolderError
from lite_selfplay.runs.folder import LOCK, writer, writing

HOLDER = """
import sys, time
from pathlib import Path
from lite_selfplay.runs.folder import writing
with writing(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that writes `tmp_path`."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_second_process_is_refused_until_the_first_is_killed(holder, tmp_path):
    before = (tmp_path / LOCK).read_bytes()
    said = rf"is being written by process {holder.pid}; wait.*--resume \S+ --rollouts http://a:1`"
    with pytest.raises(RunFolderError, match=said) as caught, writing(tmp_path, again=" --rollouts http://a:1"):
        pass
    assert caught.value.exit_code == 2
    assert (tmp_path / LOCK).read_bytes() == before
    assert writer(tmp_path) == f"process {holder.pid}"
    holder.send_signal(signal.SIGKILL)
    holder.wait(30)
    assert writer(tmp_path) is None
    with writing(tmp_path):
        assert writer(tmp_path) == f"process {os.getpid()}"


def test_a_second_run_in_the_same_process_is_refused_and_nothing_is_left_behind(tmp_path):
    for _ in range(2):
        with writing(tmp_path):
            assert (tmp_path / LOCK).is_file()
            with pytest.raises(RunFolderError, match=rf"by process {os.getpid()}; wait"), writing(tmp_path):
                pass
        assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "other").write_text("mine")
    (tmp_path / LOCK).symlink_to(tmp_path / "other")
    with pytest.raises(RunFolderError, match="cannot write to"), writing(tmp_path):
        pass
    assert (tmp_path / "other").read_text() == "mine"


@pytest.mark.skipif(os.name == "nt", reason="Windows has locks of another kind")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_keeps_nothing_out_and_that_is_said(tmp_path, monkeypatch, number):
    def no_locks(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", no_locks)
    said: list[str] = []
    with writing(tmp_path, warn=said.append):
        assert writer(tmp_path) == f"process {os.getpid()}"
    assert said == [f"the file system of {tmp_path} has no locks: nothing keeps a second process from writing it"]
    assert list(tmp_path.iterdir()) == []
    assert writer(tmp_path) is None


@pytest.mark.skipif(os.name == "nt", reason="Windows has locks of another kind")
def test_a_run_is_seen_to_be_written_where_a_lock_needs_the_right_to_write(holder, tmp_path, monkeypatch):
    """As on NFS, which makes of such a lock one of a range of bytes."""
    import fcntl

    lock = fcntl.flock

    def as_on_nfs(descriptor: int, operation: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        lock(descriptor, operation)

    monkeypatch.setattr("fcntl.flock", as_on_nfs)
    assert writer(tmp_path) == f"process {holder.pid}"
    holder.kill()
    holder.wait(30)
    assert writer(tmp_path) is None
