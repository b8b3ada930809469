"""Collections: rows for offline updates, on disk, so that any number of them needs little memory.

A collection is a JSONL file with one row per line. Its last line, `{"rows": N}`, reveals a truncated file. It is
written atomically. Opening it scans it once, checks every line and notes where the lines begin; rows are then read when
they are needed. A game's other files use the same format (`write_objects`, `read_objects`).

A game that learns offline collects rows with their advantages, computes their log-probabilities with the trainer's own
arithmetic (`Table.score`), and then plays one batch of it per step: see `replayed`.
"""

import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from lite_selfplay.config.user_files import open_file
from lite_selfplay.data import Completion, Group, Sample, Sampling, Stream
from lite_selfplay.errors import RunFolderError
from lite_selfplay.tasks.files import LINE_LIMIT, lines_of, parse_object, written_whole
from lite_selfplay.tasks.task import derived_rng

T = TypeVar("T")

EXAMPLE = "example"  # the kind of a row that is trained on by likelihood only


def completion_from_json(values: Mapping[str, Any]) -> Completion:
    """The completion that `dataclasses.asdict` wrote. Raises LookupError, TypeError or ValueError for anything else."""
    sampling = Sampling(**{**values["sampling"], "stop": tuple(values["sampling"]["stop"])})
    ids = {key: tuple(values[key]) for key in ("prompt_ids", "token_ids", "logprobs")}
    return Completion(**{**values, **ids, "sampling": sampling})


@dataclass(frozen=True)
class CollectedRow:
    """A completion to learn from offline.

    `id` names its subject (for SPC a step) and is shared by rows on the same subject; `kind` is its outcome (`won`,
    `right`, ...). `reward` is None for an example. `advantage` weights its gradient; an example's is its weight, and
    its completion has no log-probabilities, because no ratio is computed. `round` counts from 1; 0: before round 1.
    """

    id: str
    role: str
    kind: str
    completion: Completion
    reward: float | None
    advantage: float = 0.0
    round: int = 0

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "CollectedRow":
        """The row that `asdict` wrote. Raises LookupError, TypeError or ValueError for anything else."""
        row = cls(**{**values, "completion": completion_from_json(values["completion"])})
        completion = row.completion
        texts = (row.id, row.role, row.kind, completion.prompt, completion.seat)
        counts = (*completion.prompt_ids, *completion.token_ids, row.round)
        numbers = [row.advantage, *completion.logprobs, *([] if row.reward is None else [row.reward])]
        noted, tokens, example = len(completion.logprobs), len(completion.token_ids), row.kind == EXAMPLE
        required = {
            "id, role, kind, prompt and seat must be texts": all(isinstance(value, str) for value in texts),
            "token ids and the round must be whole numbers from 0": all(type(i) is int and i >= 0 for i in counts),
            "reward, advantage and log-probabilities must be numbers": all(
                type(n) in (int, float) and math.isfinite(n) for n in numbers
            ),
            "there are no token ids": tokens > 0 and len(completion.prompt_ids) > 0,
            f"{noted} log-probabilities for {tokens} tokens": noted == (0 if example else tokens),
            "every row but an example has a reward": (row.reward is None) == example,
        }
        if broken := [sentence for sentence, holds in required.items() if not holds]:
            raise ValueError(broken[0])
        return row


class Collection:
    """A collection on disk, at 8 bytes of memory per row.

    Raises RunFolderError, with file and line, if the file is missing, truncated or damaged.
    """

    def __init__(self, path: Path):
        self.path = path
        self._starts = array("q", (start for start, _ in self._scan()))

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[CollectedRow]:
        """All rows, in the order in which they were written."""
        return (row for _, row in self._scan())

    def rows(self, numbers: Iterable[int]) -> list[CollectedRow]:
        """The rows of these numbers, counted from 0."""
        with open_file(self.path, RunFolderError) as file:
            found = []
            for number in numbers:
                file.seek(self._starts[number])
                found.append(self._parse(file.readline(LINE_LIMIT + 1), number + 1))
            return found

    def batches(self, size: int, *, seed: int, epoch: int) -> list[list[int]]:
        """An epoch's batches of row numbers, shuffled by seed and epoch; the last may be smaller."""
        order = list(range(len(self)))
        derived_rng(seed, self.path.stem, epoch).shuffle(order)
        return [order[i : i + size] for i in range(0, len(order), size)]

    def _scan(self) -> Iterator[tuple[int, CollectedRow]]:
        """Each row, after the offset of its line."""
        return ((start, self._parse(line, number)) for start, number, line in _whole_lines(self.path))

    def _parse(self, line: bytes, number: int) -> CollectedRow:
        return _parsed(line, self.path, number, CollectedRow.from_json, "row of a collection")


def replayed(role: str, rows: Sequence[CollectedRow]) -> Stream:
    """A batch of a collection as an episode's stream, trained with ratios to the stored log-probabilities."""
    samples = [Sample(row.completion, row.reward, advantage=row.advantage) for row in rows]
    return Stream(role, [Group(samples)], replay=True)


def write_objects(path: Path, objects: Iterable[Any]) -> None:
    """Write dataclasses as JSON lines, replacing an older file. Raises ValueError for a number that is not finite."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        count = 0
        for each in objects:
            file.write(json.dumps(asdict(each), ensure_ascii=False, allow_nan=False).encode() + b"\n")
            count += 1
        file.write(json.dumps({"rows": count}).encode() + b"\n")


def read_objects(path: Path, make: Callable[[dict[str, Any]], T], what: str) -> list[T]:
    """The objects in a file of `write_objects`, each built by `make`; `what` names one in errors.

    Raises RunFolderError, with file and line, if the file is missing, truncated or damaged.
    """
    return [_parsed(line, path, number, make, what) for _, number, line in _whole_lines(path)]


def _whole_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """The offset, number (from 1) and content of each line but the last, which must hold their count."""
    count, start, line = 0, 0, b""
    for number, following in lines_of(path, RunFolderError):
        if line:
            yield start, count, line
        count, start, line = number, start + len(line), following
    where, rows = f"{path}, line {max(1, count)}", max(0, count - 1)
    if (parse_object(line, where) if line else {}) != {"rows": rows}:
        raise RunFolderError(
            f'{where}: the file should end with the line {{"rows": {rows}}}: it was truncated, or lines were removed '
            "of it"
        )


def _parsed(line: bytes, path: Path, number: int, make: Callable[[dict[str, Any]], T], what: str) -> T:
    where = f"{path}, line {number}"
    try:
        return make(parse_object(line, where))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RunFolderError(f"{where}: no {what} ({error})") from None


def kinds_of(rows: Sequence[CollectedRow], *kinds: str) -> list[CollectedRow]:
    """The rows of these kinds, in their order."""
    return [row for row in rows if row.kind in kinds]
