"""Answers as an evaluation gets them: in memory, so that modes share them, and on the disk, so that it can go on later.

A file holds a line that says what it belongs to, then a line for each problem's answers at a stage. A line that was cut
off is dropped; a file of another evaluation, or of other weights, is not read.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lite_selfplay.data import completion_from_json
from lite_selfplay.errors import RunFolderError
from lite_selfplay.games.modes import Judged
from lite_selfplay.tasks.files import require_no_link, write_errors

SUFFIX = ".partial.jsonl"
_TRIES = 5


@dataclass(frozen=True)
class Answered:
    """The answers to one problem at one stage, and the seconds that they took."""

    answers: Sequence[Judged]
    seconds: float


def key_of(*parts: Any) -> str:
    """A short name of what was asked: the same for the same parts, in every process."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Answers:
    """What was answered so far, by the key of what was asked.

    `identity` says whose answers they are: base, weights, checker. Without a `path` they are kept in memory alone.
    `lines` are what a former call left, by the key of what was asked; another process of this evaluation goes by them.
    `alike` says of seats whose answers are another's as well.
    """

    def __init__(self, identity: Mapping[str, Any] | None = None, path: Path | None = None):
        self._identity = json.loads(json.dumps(dict(identity or {})))  # as it comes back from the file
        self.path = path
        self.lines: dict[str, dict[str, Any]] = {}
        self._memory: dict[str, Answered] = {}
        self.alike: Mapping[str, str] = {}
        if path is not None:
            require_no_link(path)
            self._read(path)

    @property
    def begun(self) -> bool:
        """Whether there is a file with answers."""
        return self.path is not None and self.path.is_file()

    def find(self, key: str) -> Answered | None:
        """The answers to what has this key; None where it was not asked yet."""
        if key in self._memory:
            return self._memory[key]
        line = self.lines.get(key)
        if line is None:
            return None
        try:
            rows = [{**row, "completion": completion_from_json(row["completion"])} for row in line["answers"]]
            self._memory[key] = Answered([Judged(**row) for row in rows], float(line["seconds"]))
        except (LookupError, TypeError, ValueError):
            raise RunFolderError(f"{self.path} is not what an evaluation wrote: remove it to begin anew") from None
        return self._memory[key]

    def keep(self, answered: Mapping[str, Answered]) -> None:
        """Note answers by their keys, and write them down. Raises RunFolderError where that cannot be."""
        self._memory.update(answered)
        self._write(
            {"key": key, "seconds": a.seconds, "answers": [*map(_line, a.answers)]} for key, a in answered.items()
        )

    def remove(self) -> None:
        """Remove the file, and its folder where nothing else is in it."""
        if self.path is None:
            return
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something else is in there
            self.path.parent.rmdir()

    def _read(self, path: Path) -> None:
        """Take in a former call's lines; a file of another identity is cut to nothing."""
        if not path.is_file():
            return
        whole = 0
        with path.open("rb") as file:
            for number, line in enumerate(file):
                try:
                    row = json.loads(line) if line.endswith(b"\n") else None
                except ValueError:
                    row = None
                if not isinstance(row, dict) or (number == 0 and row != self._identity):
                    break
                whole += len(line)
                if isinstance(row.get("key"), str):
                    self.lines[row["key"]] = row
        with write_errors(f"to {path}"):
            os.truncate(path, whole)

    def _write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        if self.path is None:
            return
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        with write_errors(f"to {self.path}"):
            for _ in range(_TRIES):
                with contextlib.suppress(FileNotFoundError):  # another evaluation has just removed its empty folder
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    with self.path.open("a", encoding="utf-8") as file:
                        head = [] if file.tell() else [json.dumps(self._identity) + "\n"]
                        file.writelines(head + lines)
                        file.flush()
                        os.fsync(file.fileno())
                    return
        raise RunFolderError(f"cannot write to {self.path}: its folder is being removed")


def _line(answer: Judged) -> dict[str, Any]:
    """An answer as it is written down: without its prompt and its log-probabilities."""
    return asdict(replace(answer, completion=replace(answer.completion, prompt="", prompt_ids=(), logprobs=())))
