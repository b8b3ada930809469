"""Files: untrusted when read, and written atomically.

A file may be damaged or a stranger's. So nothing is executed, no link is followed, and sizes are bounded; errors are
one sentence that names the file. Files and folders are written beside their target and then renamed, so that the older
one survives a crash or a full disk.
"""

import codecs
import contextlib
import csv
import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError

from lite_selfplay.config.user_files import failing_as, is_saved, open_file, read_file, read_utf8, require_file
from lite_selfplay.errors import LiteSelfPlayError, RunFolderError

if TYPE_CHECKING:
    from torch import Tensor

JSON_LIMIT = LINE_LIMIT = 64 * 2**20  # bytes of a JSON file, and of a line
STATE_LIMIT = 8 * JSON_LIMIT  # bytes of a checkpoint's state, with all that a game remembers
DATA_LINE_LIMIT = 10_000_000  # bytes of a line of problems, passages or examples


def read_json(path: Path, kind: type[BaseModel] | None = None, limit: int | None = None) -> dict[str, Any]:
    """The object in a JSON file. Raises RunFolderError if the file cannot be read, is longer than `limit` bytes (None:
    `JSON_LIMIT`), is a link, does not hold an object of this `kind`, or has a number such as NaN."""
    require_no_link(path)
    found = parse_object(read_file(path, RunFolderError, limit or JSON_LIMIT), str(path))
    try:
        if kind is not None:
            kind.model_validate(found, strict=True)
    except ValidationError as error:
        odd = error.errors()[0]
        key = ".".join(map(str, odd["loc"]))
        raise RunFolderError(f"{path} is invalid: {key or odd['msg']}") from None
    return found


def read_lines(path: Path) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    """(line number, bytes, object) of each line of a JSONL file; nothing if there is no file.

    Skips a last line that a kill cut short. Raises RunFolderError, with the line's number, if a line is longer than
    `LINE_LIMIT` or holds no object.
    """
    if not os.path.lexists(path):
        return
    for number, line in lines_of(path, RunFolderError):  # bytes: the cut may lie inside a character
        if not line.endswith(b"\n"):
            return
        yield number, line, parse_object(line, f"{path}, line {number}")


def read_object_lines(path: Path, error: type[LiteSelfPlayError]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line of a user's JSONL file, without blank lines. Raises `error`, with the line's
    number, if a line is longer than `DATA_LINE_LIMIT` or has no object."""
    for number, line in lines_of(path, error, DATA_LINE_LIMIT):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.strip():
            yield number, parse_object(line.rstrip(), f"{path}, line {number}", error)


def read_rows(path: Path, error: type[LiteSelfPlayError]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name in errors, row) of each row of a user's data: JSON lines, a JSON list, a table (`.csv` and `.tsv`, whose
    first line names the columns), a `.parquet` file, or the folder of a saved `datasets.Dataset`. Raises `error`."""
    kind = path.suffix.lower()
    if kind == ".parquet" or is_saved(path):
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(_stored(path, error), 1))
    elif kind in (".csv", ".tsv"):
        yield from _table(path, error)
    elif kind == ".json" and (text := read_utf8(path, error, JSON_LIMIT)).lstrip().startswith("["):
        rows = parse_object(f'{{"rows": {text}}}'.encode(), str(path), error)["rows"]
        for number, row in enumerate(rows, 1):
            if not isinstance(row, dict):
                raise error(f"{path}, row {number}: must be an object, not {type(row).__name__}")
            yield f"{path}, row {number}", row
    else:
        yield from ((f"{path}, line {number}", row) for number, row in read_object_lines(path, error))


def _table(path: Path, error: type[LiteSelfPlayError]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a table, without empty cells. Its cells are separated by the mark that is most frequent in the first
    line outside quotes: a comma, semicolon, tab or bar."""
    text = read_utf8(path, error)
    first = re.sub(r'"[^"]*"', "", text.partition("\n")[0])
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True, delimiter=max(",;\t|", key=first.count))
    try:
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            if None in row or None in row.values():
                raise error(f"{where}: not as many cells as the first line has")
            yield where, {name: cell for name, cell in row.items() if cell.strip()}
    except csv.Error as problem:
        raise error(f"{path}, line {rows.line_num}: not CSV ({problem})") from None


def _stored(path: Path, error: type[LiteSelfPlayError]) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file or of a saved data set. Raises `error`, also for one with several splits."""
    from datasets import load_dataset, load_from_disk

    try:
        found: Any = load_from_disk(path) if is_saved(path) else None
        if isinstance(found, dict):
            raise error(f"{path} has the splits {', '.join(found)}: give one, as in {path / next(iter(found))}")
        yield from found or load_dataset("parquet", data_files=str(path), split="train", streaming=True)
    except LiteSelfPlayError:
        raise
    except Exception as problem:  # the library raises its own errors, pyarrow's and the system's
        raise error(f"cannot read {path}: {(str(problem).strip() or type(problem).__name__).splitlines()[0]}") from None


def lines_of(path: Path, error: type[LiteSelfPlayError], limit: int = LINE_LIMIT) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line) of each line of a file. Raises `error` for a line of more than `limit` bytes, and if the
    file cannot be read."""
    with open_file(path, error) as file, failing_as(error, f"cannot read {path}"):
        for number, line in enumerate(iter(lambda: file.readline(limit + 1), b""), 1):
            if len(line) > limit:
                raise error(f"{path}, line {number}: longer than {limit:,} bytes")
            yield number, line


def read_tensors(path: Path) -> "dict[str, Tensor]":
    """The tensors of a safetensors file, on the CPU. Raises RunFolderError if the file is a link, is not safetensors,
    is truncated, or has numbers that are not finite."""
    from safetensors.torch import load_file

    require_no_link(path)
    if not os.path.exists(path):
        raise RunFolderError(f"{path} is missing")
    require_file(path, RunFolderError)
    try:
        with failing_as(RunFolderError, f"cannot read {path}"):
            tensors: dict[str, Tensor] = load_file(path)
    # The header is untrusted JSON, and parsing it may raise any of these.
    except (SafetensorError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as why:
        raise RunFolderError(f"{path} is not a safetensors file, or is damaged: {why}") from None
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise RunFolderError(f"{path} is damaged: {name} holds numbers that are not finite")
    return tensors


def require_no_link(path: Path) -> None:
    """Raises RunFolderError if a file or folder is a symbolic link."""
    if os.path.islink(path):
        raise RunFolderError(f"{path} is a symbolic link, which is not followed")


def first_link(folder: Path) -> Path | None:
    """The first symbolic link among a folder and everything in it; None if there are no links."""
    return next((path for path in [folder, *sorted(folder.rglob("*"))] if path.is_symlink()), None)


def parse_object(content: bytes, where: str, error: type[LiteSelfPlayError] = RunFolderError) -> dict[str, Any]:
    """Parse bytes as a JSON object. Raises `error`, beginning with `where`."""
    try:
        found = json.loads(content.decode(), parse_constant=_finite, parse_float=_finite, object_pairs_hook=_once)
        if b"\\u" in content:  # only escapes can be half a surrogate pair
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise error(f"{where}: holds half a surrogate pair, which is not text") from None
    except UnicodeDecodeError as problem:
        raise error(f"{where}: not UTF-8 ({problem.reason} at byte {problem.start})") from None
    except json.JSONDecodeError as problem:
        raise error(f"{where}: not JSON ({problem.msg} at column {problem.colno})") from None
    except ValueError as problem:  # NaN, a number of thousands of digits, or a key twice
        raise error(f"{where}: not JSON ({str(problem).partition(':')[0]})") from None
    except RecursionError:
        raise error(f"{where}: nested too deeply") from None
    if not isinstance(found, dict):
        raise error(f"{where}: must be an object, not {type(found).__name__}")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs) and (odd := [name for name, value in pairs if found[name] != value]):
        raise ValueError(f"the key {odd[0][:60]!r} is there twice, with different values")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


# Writing


@contextlib.contextmanager
def write_errors(what: Path | str, error: type[LiteSelfPlayError] = RunFolderError) -> Iterator[None]:
    """A context for writing `what`. Raises `error` with the reason if that fails."""
    try:
        yield
    except (OSError, SafetensorError) as problem:
        raise error(f"cannot write {what}: {getattr(problem, 'strerror', None) or problem}") from None


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append objects to a JSONL file, all at once and onto the disk. Raises OSError."""
    text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """Write `path` atomically: it is replaced once the new content is on disk, and kept if anything fails. Raises
    OSError."""
    aside = path.with_name(f".{path.name}.partial")
    try:
        aside.unlink(missing_ok=True)
        with aside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def write_whole(path: Path, text: str, limit: int | None = None) -> None:
    """Write a text as UTF-8 atomically. Raises OSError, also if it has more than `limit` bytes."""
    content = text.encode("utf-8")
    if limit is not None and len(content) > limit:
        raise OSError(errno.EFBIG, f"it has {len(content):,} bytes, and no more than {limit:,} could be read again")
    with written_whole(path) as file:
        file.write(content)


@contextlib.contextmanager
def written_whole_folder(target: Path) -> Iterator[Path]:
    """An empty folder beside `target` that replaces it once everything in it is on disk. If anything fails, the older
    one is kept and the new one deleted. Raises OSError. Only one process at a time may write to a `target`."""
    aside = target.with_name(f".{target.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)  # what a killed process left
    aside.mkdir(parents=True)
    try:
        yield aside
        for path in [*aside.rglob("*"), aside]:
            if path.is_file():
                path.chmod(aside.stat().st_mode & 0o666)  # safetensors writes files that only their owner may read
            sync(path)
        replace_folder(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def replace_folder(aside: Path, target: Path) -> None:
    """Replace `target` by the folder `aside`, in the same parent, with a rename. Raises OSError.

    Until then the older folder is kept, as `target` or as `.NAME.old`. If a killed process left both, the latter is
    whole.
    """
    old = target.with_name(f".{target.name}.old")
    if target.exists() and old.exists():
        shutil.rmtree(target)
    elif target.exists():
        target.rename(old)
    try:
        aside.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    """Flush a file or folder to disk, so that after a crash no renamed file lacks its content."""
    if path.is_dir() and os.name == "nt":
        return  # Windows has no handle to flush a folder by.
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(file: Path) -> str:
    """The SHA-256 of a whole file, as 64 hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
