"""The folder in the user's cache for converted and generated models, and how they are built whole."""

import errno
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path

from filelock import AcquireReturnProxy, FileLock, Timeout
from safetensors import SafetensorError

from lite_selfplay.errors import RequestError
from lite_selfplay.tasks.files import sha256_of, written_whole_folder

_MANIFEST = ".complete.json"
_FULL = os.strerror(errno.ENOSPC)  # safetensors only has the words


def cache_dir() -> Path:
    """`$LITE_SELFPLAY_CACHE`, else `$XDG_CACHE_HOME/lite-selfplay`, else `~/.cache/lite-selfplay`."""
    if own := os.environ.get("LITE_SELFPLAY_CACHE"):
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "lite-selfplay"


def is_built(folder: Path) -> bool:
    """Whether `folder` holds every file of its manifest, with the listed SHA-256, or of the size that older manifests
    list."""
    try:
        listed: dict[str, str | int] = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return all(told in (_sha256(folder / name), (folder / name).stat().st_size) for name, told in listed.items())
    except (OSError, json.JSONDecodeError):  # building it again reports the error
        return False


def _sha256(file: Path) -> str:
    """The SHA-256 of a file, computed once for each of its states."""
    about = file.stat()
    return _sha256_at(file, about.st_ino, about.st_size, about.st_mtime_ns)


@functools.cache
def _sha256_at(file: Path, *state: int) -> str:
    return sha256_of(file)


def build_once(
    folder: Path, build: Callable[[Path], None], *, say: Callable[[str], None] = lambda sentence: None
) -> Path:
    """Return `folder`, after `build` filled it unless an earlier call did.

    `build(staging)` writes into an empty sibling folder, which is renamed to `folder` after everything is on disk. Of
    two processes the second waits; leftovers of a killed builder are removed by the next one. An error of `build`
    passes through and leaves nothing behind.

    Raises `RequestError` if the cache folder cannot be written, or its disk is full.
    """
    if is_built(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        held = _hold_lock(folder, say)
    except OSError as error:
        raise RequestError(
            f"the cache folder {folder.parent} cannot be written ({error}): set LITE_SELFPLAY_CACHE to one that can."
        ) from error
    with held:
        if not is_built(folder):
            try:
                _build(folder, build)
            except (OSError, SafetensorError) as error:
                if getattr(error, "errno", None) == errno.ENOSPC or _FULL in str(error):
                    raise RequestError(
                        f"the disk of the cache folder {folder.parent} is full: make room on it, or set "
                        "LITE_SELFPLAY_CACHE to a folder on another one."
                    ) from error
                raise
    return folder


def _hold_lock(folder: Path, say: Callable[[str], None]) -> AcquireReturnProxy:
    """Hold the lock beside `folder` until the returned context ends."""
    lock = FileLock(folder.parent / f".{folder.name}.lock")
    try:
        return lock.acquire(timeout=0.2)
    except Timeout:
        say(f"waiting for another process that is building {folder.name}")
        return lock.acquire()


def _build(folder: Path, build: Callable[[Path], None]) -> None:
    with written_whole_folder(folder) as staging:
        build(staging)
        sums = {f.relative_to(staging).as_posix(): sha256_of(f) for f in sorted(staging.rglob("*")) if f.is_file()}
        (staging / _MANIFEST).write_text(json.dumps(sums, indent=1), encoding="utf-8")
