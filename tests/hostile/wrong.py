"""A wrong request, and what must be true of its end."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .conftest import Ended

TRAIN = ("train", "agon", "--model", "tiny", "--tasks", "letters", "--steps", "1")
SMALL = ("--group-size", "2", "--problems-per-step", "1", "--max-completion-tokens", "2", "--precision", "fp32")
LONG_NAME = "x" * 5000
LONGEST_SENTENCE = 3000
Prepare = Callable[[Path], object]


@dataclass(frozen=True)
class Request:
    """Arguments, how the folder they are given in is prepared, and which exit codes will do.

    A wrong request exits with 2. Where something outside fails (no right to write, a run that fails because of a
    reward function) it is 1. `names` are words that the sentence must hold. `plain` takes root's rights away.
    """

    arguments: tuple[str, ...]
    prepare: Prepare | None = None
    codes: tuple[int, ...] = (2,)
    names: tuple[str, ...] = ()
    plain: bool = False

    @property
    def label(self) -> str:
        prepared = f" [{self.prepare.__name__}]" if self.prepare is not None else ""
        return " ".join(a if len(a) < 40 else f"{a[:20]}..." for a in self.arguments) + prepared


def prepared(request: Request, folder: Path) -> dict[str, str]:
    """The folder made ready; returns what it holds."""
    if request.prepare is not None:
        request.prepare(folder)
    return contents(folder)


def contents(folder: Path) -> dict[str, str]:
    """What a folder holds, at any depth: of each file its SHA-256, of anything else its kind."""
    found = {}
    for path in folder.rglob("*"):
        kind = "link" if path.is_symlink() else "file" if path.is_file() else "folder" if path.is_dir() else "other"
        content = hashlib.sha256(path.read_bytes()).hexdigest() if kind == "file" else kind
        found[path.relative_to(folder).as_posix()] = content
    return found


def require_a_sentence(request: Request, ended: Ended, folder: Path, before: dict[str, str]) -> None:
    """Fails unless a request ended with a promised code, in a sentence, with nothing written that was not there."""
    said = (ended.err if ended.code else ended.err + ended.out).strip()
    told = f"exit code {ended.code} after {ended.seconds:.1f} s\n{said[-800:]}\n{ended.out[-300:]}"
    assert ended.code in request.codes, told
    assert "Traceback" not in said, told
    assert said, "no sentence"
    assert len(said.splitlines()[-1]) < LONGEST_SENTENCE, told
    for name in request.names:
        assert name in said, told
    now = contents(folder)
    new = now.keys() - before.keys()
    if ended.code in (0, 1):  # a run that ended, or failed, leaves its own folder
        new = {name for name in new if not name.startswith("runs")}
    assert not new, f"written: {sorted(new)}"
    assert {name: now.get(name) for name in before} == before, "changed"
