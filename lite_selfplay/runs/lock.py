"""One writer for a run folder: a lock that the system releases when its holder ends, however it ends.

Advisory: it keeps out other runs of this library, nobody else. On a file system without locks, nothing is kept out.
"""

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout, lock_descriptor

from lite_selfplay.errors import RunFolderError

LOCK = ".lock"
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_PATIENCE_S = 0.2  # `writer` takes the lock for a moment, too


@contextlib.contextmanager
def writing(folder: Path, patience_s: float = _PATIENCE_S, *, insist: bool = False, again: str = "") -> Iterator[None]:
    """Hold a run folder's lock, for the length of a context, having waited for it as long as patience allows.

    `again`: what a resume is given besides the folder (`RolloutsSection.again`). `insist`: a file system without locks
    is an error as well. Raises RunFolderError, naming the process, where another one holds it, and where the folder
    cannot be written.
    """
    path = folder / LOCK
    if os.path.exists(path) and not stat.S_ISREG(path.stat().st_mode):
        raise RunFolderError(f"{path} is no file: take it away if no run writes {folder}")
    lock = FileLock(path, timeout=patience_s, on_acquired=_sign)
    try:
        lock.acquire()
    except Timeout:
        raise RunFolderError(
            f"{folder} is being written by {_holder(path)}; wait until it has ended, or stop it (it saves first), and "
            f"go on with `lite-selfplay train --resume {folder}{again}`"
        ) from None
    except OSError as error:
        if insist or error.errno not in _NO_LOCKS:
            raise RunFolderError(f"cannot write to {folder}: {LOCK}: {error.strerror or error}") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows removes no open file
            path.unlink()
        lock.release()


def writer(folder: Path) -> str | None:
    """Who writes a run folder right now, as `process 12 on HOST`; None where nobody does. Nothing is written."""
    path = folder / LOCK
    try:  # without waiting, where it is a pipe
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    try:
        return None if lock_descriptor(descriptor, blocking=False) else _holder(path)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _sign(descriptor: int) -> None:
    """Write down who holds the lock, for the others' message; behind the first byte, which Windows lets nobody read."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f" {os.getpid()} {socket.gethostname()}\n".encode())


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
        file.seek(1)
        pid, _, host = file.read(300).decode("utf-8", "replace").strip().partition(" ")
        if pid.isdecimal() and host.isprintable():
            return f"process {pid} on {host}" if host != socket.gethostname() else f"process {pid}"
    return "another process"
