"""A folder that comes to be whole or not at all."""

import contextlib
import errno
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from lite_selfplay.errors import ConfigError, SaveFailed
from lite_selfplay.tasks.files import sync


@contextlib.contextmanager
def written_whole_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its name once everything in it is on the disk; after an error nothing is left.

    What a killed process left is removed by the next export to the same place. Raises SaveFailed, ConfigError where
    something has come to be at `out` in the meantime.
    """
    start = f".{out.name}.partial-{socket.gethostname()}-"
    aside = out.with_name(f"{start}{os.getpid()}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for left in out.parent.glob(f"{start}*"):
            pid = left.name.removeprefix(start)
            if pid.isdecimal() and not psutil.pid_exists(int(pid)):
                shutil.rmtree(left)
        aside.mkdir()
        yield aside
        for path in [*(path for path in sorted(aside.rglob("*")) if path.is_file()), aside]:
            if path.is_file():
                path.chmod(aside.stat().st_mode & 0o666)  # safetensors writes files that only their owner may read
            sync(path)
        if os.path.lexists(out):
            raise ConfigError(f"{out} has come to be in the meantime and is not overwritten: choose another --out")
        aside.rename(out)
        sync(out.parent)
    except OSError as error:
        cut_short = " requested and " in str(error)  # numpy's words, without a number, for a file on a full disk
        why = error.strerror or (os.strerror(errno.ENOSPC) if cut_short else error)
        raise SaveFailed(f"cannot write {out}: {why}. Nothing was left there") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
