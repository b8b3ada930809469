"""Collections on disk: whole or absent, streamed, damage named by file and line."""

import json
import random
import tracemalloc
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.data import Completion, Sampling
from lite_selfplay.errors import RunFolderError
from lite_selfplay.games.collections import EXAMPLE, CollectedRow, Collection, write_objects


def row(number: int = 1, kind: str = "right", reward: float = 1.0, tokens: int = 3) -> CollectedRow:
    ids, sampling = tuple(range(1, tokens + 1)), Sampling(temperature=0.7, stop=("x",))
    asked, logprobs = f"Is step {number} right? ä", tuple(-0.5 * i for i in ids)
    completion = Completion(asked, "Yes.", (5, 6), ids, logprobs, "eos", "critic@round-0", 0, sampling)
    return CollectedRow(f"step-{number}", "critic", kind, completion, reward, 0.25 * number, 1)


EXAMPLE_ROW = replace(row(3), kind=EXAMPLE, completion=replace(row(3).completion, logprobs=()), reward=None)
ROWS = [row(1), row(2, "wrong", -1.0), EXAMPLE_ROW, row(4, tokens=1)]


@pytest.mark.parametrize("rows", [ROWS, []])
def test_rows_come_back_as_they_were(tmp_path: Path, rows: list[CollectedRow]):
    path = tmp_path / "new" / "critic.jsonl"
    write_objects(path, rows)
    collection = Collection(path)
    assert list(collection) == rows
    assert collection.rows([3, 0, 0] if rows else []) == [rows[i] for i in (3, 0, 0) if rows]
    assert len(collection) == len(rows)
    assert bool(collection.batches(4, seed=0, epoch=0)) is bool(rows)
    assert [p.name for p in path.parent.iterdir()] == ["critic.jsonl"]


def test_an_epoch_takes_every_row_once_in_an_order_of_its_own(tmp_path: Path):
    write_objects(tmp_path / "c.jsonl", [row(i) for i in range(10)])
    collection = Collection(tmp_path / "c.jsonl")
    first, second = (collection.batches(4, seed=7, epoch=epoch) for epoch in (0, 1))
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert all(sorted(chain.from_iterable(batches)) == list(range(10)) for batches in (first, second))
    assert first != second
    assert first == Collection(tmp_path / "c.jsonl").batches(4, seed=7, epoch=0)


def test_a_number_that_is_not_finite_is_not_written(tmp_path: Path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_objects(tmp_path / "c.jsonl", [replace(row(), advantage=float("nan"))])


def lines(path: Path) -> list[bytes]:
    write_objects(path, ROWS)
    return path.read_bytes().splitlines(keepends=True)


def changed(line: bytes, **values: object) -> bytes:
    found = json.loads(line)
    for key, value in values.items():
        (found["completion"] if key in found["completion"] else found)[key] = value
    return json.dumps(found).encode() + b"\n"


NO_ROWS: dict[str, list[Any]] = {
    "advantage": ["much", None, True],
    "reward": [None],
    "kind": [EXAMPLE],
    "id": [5],
    "completion": [None, []],
    "token_ids": [[1, 2], [1, 2, -3], [1, 2, 3.5], 3],
    "prompt_ids": [[]],
    "logprobs": [[0, 0, "x"], None],
    "sampling": [{"temperature": 1}, {"heat": 1, "stop": []}],
    "round": [-1],
    "more": [1],
}
DAMAGED = [(key, value) for key, values in NO_ROWS.items() for value in values]


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        *((lambda line, one=one: changed(line, **dict([one])), "no row of a collection") for one in DAMAGED),
        (lambda line: changed(line, token_ids=[], logprobs=[]), "no row of a collection"),
        (lambda line: line.replace(b'"id": ', b'"name": '), "no row of a collection"),
        (lambda line: b"\x00\x00\n", "not JSON"),
        (lambda line: b"[1]\n", "must be an object"),
        (lambda line: b'{"id": "\xff"}\n', "not UTF-8"),
    ],
)
def test_a_line_that_is_no_row_is_named_by_file_and_line(tmp_path: Path, damaged: Any, said: str):
    path = tmp_path / "c.jsonl"
    first, second, *rest = lines(path)
    path.write_bytes(b"".join([first, damaged(second), *rest]))
    with pytest.raises(RunFolderError, match=rf"c\.jsonl, line 2: {said}"):
        Collection(path)


def test_a_collection_that_was_cut_is_not_taken_for_whole(tmp_path: Path):
    path = tmp_path / "c.jsonl"
    whole = b"".join(lines(path))
    ends = {i + 1 for i, byte in enumerate(whole) if byte == ord("\n")}
    for size in sorted({0, 1, 50, len(whole) - 2, *ends, *random.Random(0).sample(range(len(whole)), 40)}):
        path.write_bytes(whole[:size])
        if size >= len(whole) - 1:
            assert list(Collection(path)) == ROWS
        else:
            with pytest.raises(RunFolderError, match=r"c\.jsonl, line [1-5]: "):
                Collection(path)
    first, _, *rest = whole.splitlines(keepends=True)  # a line was removed
    path.write_bytes(b"".join([first, *rest]))
    with pytest.raises(RunFolderError, match=r'line 4: the file should end with the line \{"rows": 3\}'):
        Collection(path)
    path.unlink()
    with pytest.raises(RunFolderError, match=r"cannot read .*c\.jsonl: No such file"):
        Collection(path)


def test_a_long_collection_takes_little_memory(tmp_path: Path):
    path = tmp_path / "c.jsonl"
    write_objects(path, (row(i, tokens=400) for i in range(170)))
    tracemalloc.start()
    collection = Collection(path)
    for batch in collection.batches(4, seed=0, epoch=0)[:3]:
        assert len(collection.rows(batch)) == 4
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size / 4
