"""Passages: texts from which a role, such as a proposer, writes problems.

A text file is split at blank lines, and neighbouring paragraphs are joined up to a maximum length. A JSONL file has a
passage per line, a folder has those of all its files, and from a data set on the hub the first rows are streamed. A
passage is a `Problem` without an answer.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from lite_selfplay.config.user_files import read_utf8
from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks.files import read_object_lines
from lite_selfplay.tasks.hub_data import streamed
from lite_selfplay.tasks.task import Task

TEXT_FILES, LINE_FILES = (".txt", ".md"), (".jsonl",)
COLUMNS = ("text", "passage", "content", "solution")
JOINED_CHARACTERS = 1500  # paragraphs of a text are joined up to this length
HUB_ROWS = 10_000  # the most rows that are read from a data set on the hub


def read_passages(spec: str) -> list[Problem]:
    """Passages from a `.txt`, `.md` or `.jsonl` file, a folder of them (at any depth), or `hub:NAME[:SPLIT[:COLUMN]]`.

    A line of a JSONL file has its passage under one of `COLUMNS`, or is a problem: then the passage is the problem with
    its answer. Raises TaskError, naming file and line, if there is no passage.
    """
    if spec.startswith("hub:"):
        found = list(_from_hub(*spec.removeprefix("hub:").split(":")))
    else:
        path = Path(spec)
        if not os.path.exists(path):
            raise TaskError(f"no passages at {path}: give a text or JSONL file, a folder of them, or hub:NAME")
        files = sorted(f for f in path.rglob("*") if f.suffix in TEXT_FILES + LINE_FILES) if path.is_dir() else [path]
        names = [file.relative_to(path).as_posix() if path.is_dir() else file.stem for file in files]
        found = [passage for file, name in zip(files, names, strict=True) for passage in _of_file(file, name)]
    if not found:
        raise TaskError(f"{spec} has no passage")
    return found


def passages_of(task: Task) -> list[Problem]:
    """The problems of a task as passages: each with its worked solution or, if it has none, its answer."""
    return [Problem(p.id, _with_answer(p.text, p.extra.get("solution", p.answer))) for p in task.problems[:HUB_ROWS]]


def short_enough(passages: Sequence[Problem], tokens: Callable[[str], int], limit: int) -> list[Problem]:
    """The passages of at most `limit` tokens. Raises TaskError if there are none."""
    kept = [passage for passage in passages if tokens(passage.text) <= limit]
    if not kept:
        raise TaskError(f"every passage is longer than {limit} tokens: raise tasks.passage_tokens, or shorten them")
    return kept


def _of_file(path: Path, name: str) -> list[Problem]:
    texts: Iterable[tuple[int, str]] = (
        ((number, _text_of(row, f"{path}, line {number}")) for number, row in read_object_lines(path, TaskError))
        if path.suffix in LINE_FILES
        else enumerate(_joined(read_utf8(path, TaskError)), 1)
    )
    return [Problem(f"{name}-{number}", text) for number, text in texts]


def _text_of(row: dict[str, Any], where: str) -> str:
    question = row.get("problem", row.get("question"))
    if isinstance(question, str) and question.strip():
        return _with_answer(question.strip(), row.get("solution", row.get("answer")))
    found = next((row[key] for key in COLUMNS if isinstance(row.get(key), str) and row[key].strip()), None)
    if found is None:
        raise TaskError(f"{where}: no text under {', '.join(COLUMNS)}, problem or question")
    return str(found).strip()


def _with_answer(question: str, answer: Any) -> str:
    return question if answer in (None, "") else f"{question}\n{answer}"


def _joined(text: str) -> Iterator[str]:
    passage = ""
    for paragraph in (part.strip() for part in re.split(r"\n[^\S\n]*\n", text)):
        joined = f"{passage}\n\n{paragraph}".strip()
        if passage and len(joined) > JOINED_CHARACTERS:
            yield passage
            joined = paragraph
        passage = joined
    if passage:
        yield passage


def _from_hub(name: str, split: str = "train", column: str = "", *rest: str) -> Iterable[Problem]:
    if rest:
        raise TaskError(f"passages from the hub are hub:NAME[:SPLIT[:COLUMN]], got hub:{name}:{split}:{column}:...")
    why = f"cannot stream {name} from the hub (--knowledge also takes a text or JSONL file, or a folder of them)"
    for number, row in enumerate(islice(streamed(name, None, split, why), HUB_ROWS), 1):
        where = f"{name}, row {number}"
        if column and not isinstance(row.get(column), str):
            raise TaskError(f"{where}: no text under {column!r} (its columns: {', '.join(row)})")
        if text := row[column].strip() if column else _text_of(row, where):
            yield Problem(f"{name}-{number}", text)
