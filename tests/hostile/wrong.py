"""A wrong request, and what must be true of its end."""

import hashlib
import os
from collections.abc import Callable, Mapping
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


def named(name: str, prepare: Prepare) -> Prepare:
    prepare.__name__ = name
    return prepare


def holding(name: str, files: Mapping[str, str | bytes], *, pipe: str | None = None) -> Prepare:
    """A folder with these files, and a pipe; what ends in a slash is a folder. `name` says what is wrong with them."""

    def write(folder: Path) -> None:
        for file, content in files.items():
            place = folder / file
            (place if file.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
            if not file.endswith("/"):
                place.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        if pipe is not None:
            (folder / pipe).parent.mkdir(parents=True, exist_ok=True)
            os.mkfifo(folder / pipe)

    return named(name, write)


def no_file(file: str) -> list[Prepare]:
    """Things of this name that are no regular files."""

    def link(to: str) -> Prepare:
        return lambda folder: (folder / file).symlink_to(folder / to)

    kinds: dict[str, Prepare] = {
        "a_folder": lambda folder: (folder / file).mkdir(),
        "a_pipe": lambda folder: os.mkfifo(folder / file),
        "a_dangling_link": link("nowhere"),
        "a_link_to_itself": link(file),
        "a_device": link("/dev/zero"),
        "a_terminal": link("/dev/tty"),
    }
    return [named(name, prepare) for name, prepare in kinds.items()]


def contents(folder: Path) -> dict[str, str]:
    """What a folder holds, at any depth: of each file its SHA-256, of anything else its kind."""
    found = {}
    for path in folder.rglob("*"):
        kind = "link" if path.is_symlink() else "file" if path.is_file() else "folder" if path.is_dir() else "other"
        content = hashlib.sha256(path.read_bytes()).hexdigest() if kind == "file" else kind
        found[path.relative_to(folder).as_posix()] = content
    return found


def require_a_sentence(request: Request, folder: Path, end: Callable[[], Ended]) -> None:
    """Fails unless a request ended with a promised code, in a sentence, with nothing written that was not there."""
    if request.prepare is not None:
        request.prepare(folder)
    before = contents(folder)
    ended = end()
    if request.plain and (folder / "data.jsonl").exists():
        (folder / "data.jsonl").chmod(0o644)  # so that what it holds can be compared
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
