"""Where each line of `episodes.jsonl` stands: read once, extended as a run goes on, so that no line is kept in memory.

A line is read with indulgence: it is shown, never learned from. What is no completion at all is counted, and not shown.
"""

import json
import os
import re
import threading
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from lite_selfplay.config.user_files import open_file
from lite_selfplay.errors import RunFolderError
from lite_selfplay.tasks.files import LINE_LIMIT

_STEP = re.compile(rb'\{"step": ?(\d{1,15})[,}]')
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)
_DEFAULTS: dict[str, Any] = dict.fromkeys(
    ("problem_id", "tokens", "stop", "reward", "advantage", "correct", "well_formed", "answer", "reason")
)


class EpisodeIndex:
    """The lines of an `episodes.jsonl`, by their step, as far as the file has them now.

    Every call looks first whether the file has grown, or was replaced, as a resume does. Safe to use from several
    threads. `damaged` counts the lines that hold no completion. Raises RunFolderError where the file cannot be read.
    """

    def __init__(self, path: Path):
        self._path, self._lock = path, threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._file: tuple[int, int] | None = None
        self._end = self.damaged = 0
        self._starts, self._of_step = array("Q"), dict[int, "array[int]"]()

    def steps(self) -> dict[int, int]:
        """How many lines each step has, in the order of the file."""
        with self._lock, self._refreshed():
            return {step: len(lines) for step, lines in self._of_step.items()}

    def of_step(self, step: int) -> list[tuple[int, bytes]]:
        """The lines of a step, each after its number."""
        with self._lock, self._refreshed() as file:
            return list(self._read(file, self._of_step.get(step, ())))

    def line(self, number: int) -> bytes | None:
        """One line; None where there is no such line."""
        with self._lock, self._refreshed() as file:
            known = 0 <= number < len(self._starts)
            return next(self._read(file, [number]))[1] if known else None

    def steps_holding(self, words: bytes) -> list[int]:
        """The steps of which some line holds these bytes."""
        with self._lock, self._refreshed() as file:
            of = self._of_step.items()
            return [step for step, lines in of if any(words in line for _, line in self._read(file, lines))]

    def _read(self, file: IO[bytes], numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        for number in numbers:
            file.seek(self._starts[number])
            yield number, file.readline(LINE_LIMIT + 1)

    def _refreshed(self) -> IO[bytes]:
        """The file, open, with everything whole in it known."""
        if not os.path.lexists(self._path):
            self._forget()
            return open(os.devnull, "rb")
        file = open_file(self._path, RunFolderError)
        about = os.fstat(file.fileno())
        if (about.st_dev, about.st_ino) != self._file or about.st_size < self._end:
            self._forget()
            self._file = (about.st_dev, about.st_ino)
        if about.st_size > self._end:
            self._extend(file)
        return file

    def _extend(self, file: IO[bytes]) -> None:
        """Look at the lines behind the last known one, as far as they are whole."""
        file.seek(self._end)
        while (line := file.readline(LINE_LIMIT + 1)).endswith(b"\n") or len(line) > LINE_LIMIT:
            start, size = self._end, len(line)
            while not line.endswith(b"\n") and (line := file.readline(LINE_LIMIT)):  # the rest of one that is too long
                size += len(line)
            self._end += size
            if (step := _step_of(line) if size <= LINE_LIMIT else None) is None:
                self.damaged += 1
                continue
            self._of_step.setdefault(step, array("L")).append(len(self._starts))
            self._starts.append(start)


def _step_of(line: bytes) -> int | None:
    """The step of a line: from its beginning, where a run writes it, else by reading the line."""
    if found := _STEP.match(line):
        return int(found[1])
    row = read_row(line)
    return None if row is None else int(row["step"])


def read_row(line: bytes) -> dict[str, Any] | None:
    """A line as a completion: every key that a run writes is there, texts are texts. None where it is no completion.

    Bytes that are not UTF-8 become replacement characters; halves of surrogate pairs stay what they are.
    """
    try:
        row = _DECODER.decode(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or type(row.get("step")) is not int or not isinstance(row.get("role"), str):
        return None
    texts = {key: row[key] if isinstance(row.get(key), str) else "" for key in ("prompt", "text", "seat")}
    names = {key: row[key] if isinstance(row.get(key), str) else None for key in ("problem_id", "stop")}
    places = {key: row[key] if type(row.get(key)) is int else 0 for key in ("group", "sample")}
    return {**_DEFAULTS, **row, **texts, **names, **places}
