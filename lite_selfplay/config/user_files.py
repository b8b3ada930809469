"""Files that a user names, and the user's own code: a command never hangs on them, and explains failures.

Existence is checked with `os.path.isfile` and `os.path.exists`: `Path.is_file` raises an error for too long a name.

A user's own code (a reward function, a game, a task, a loss) is `FILE.py:NAME`, a task's also `FILE.py:NAME:OPTIONS`.
A user who names a file agrees to run it. But a configuration may be somebody else's: code that a run folder or a
configuration file names runs only if this user has run it before (`layers.require_accepted`). A record in the user's
home has the path and the SHA-256 of all code that was run, and what else was agreed to.

Whatever such code raises becomes one error, and what it changes in the process is restored: a changed working folder
or torch default would break a later step, far from the cause.
"""

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import inspect
import json
import os
import random
import re
import stat
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import IO, Any

from lite_selfplay.errors import ConfigError, LiteSelfPlayError

_warned: set[tuple[str, str]] = set()


@contextlib.contextmanager
def guarded(
    what: str,
    error: type[LiteSelfPlayError],
    warn: Callable[[str], None] = lambda sentence: None,
    *,
    judges: bool = False,
    failed: str = "raised",
) -> Iterator[None]:
    """A context for running a user's own code. Errors begin with `what` (`the reward function f`) and `failed`, and end
    with the code's last line.

    Whatever the code raises is raised as `error`, including `sys.exit` and exceptions outside `Exception`; this
    library's own errors and KeyboardInterrupt pass. Afterwards the working folder, torch's default type and grad mode
    are restored, and for code that only `judges` also the environment, the number of torch's threads and the state of
    the global random generators. `warn` is called once for each of these that the code had changed.
    """
    before = {name: read() for name, (read, _, only_judges) in _KEPT.items() if judges or not only_judges}
    try:
        yield
    except (KeyboardInterrupt, LiteSelfPlayError):
        raise
    except BaseException as problem:
        raise error(f"{what} {failed} {type(problem).__name__}: {problem}{_place(problem)}") from problem
    finally:
        for name, kept in before.items():
            if _put_back(name, kept) and (what, name) not in _warned:
                _warned.add((what, name))
                warn(f"{what} changed {name}, which was restored: the whole run depends on it")


def _place(problem: BaseException) -> str:
    """Where a user's own code was when it raised an error, as a clause: the file, line and source of its last frame,
    which is in no library. Empty if there is none."""
    libraries = (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), str(Path(__file__).parents[1]), "<frozen")
    frames = traceback.extract_tb(problem.__traceback__)
    theirs = next((frame for frame in reversed(frames) if not frame.filename.startswith(libraries)), None)
    return f" ({theirs.filename}, line {theirs.lineno}: {theirs.line})" if theirs else ""


@contextlib.contextmanager
def unnoticed() -> Iterator[None]:
    """A context that restores the state of the global random generators at its end."""
    before = {name: read() for name, (read, *_) in _KEPT.items() if name.startswith("the state of")}
    try:
        yield
    finally:
        for name, kept in before.items():
            _put_back(name, kept)


def _put_back(name: str, kept: Any) -> bool:
    """Restore what a key of `_KEPT` names. Returns whether it had changed."""
    read, write, _ = _KEPT[name]
    now = read()
    if kept is None or now is None or _equal(kept, now):
        return False
    write(kept)
    return True


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(_equal, first, second))
    same = first == second
    return bool(same.all()) if hasattr(same, "all") else bool(same)


# None: it cannot be read, or its library is not imported.


def _folder() -> str | None:
    with contextlib.suppress(OSError):
        return os.getcwd()
    return None


def _set_environment(kept: dict[str, str]) -> None:
    for name in os.environ.keys() - kept.keys():
        del os.environ[name]
    os.environ.update(kept)


def _of(library: str, name: str) -> Callable[..., Any]:
    """Calls a library's function of this name; returns None while the library is not imported."""

    def call(*arguments: Any) -> Any:
        found: Any = getattr(sys.modules.get(library), name, None)
        return None if found is None else found(*arguments)

    return call


# How to read and to write each, and whether it is restored only for code that judges.
_KEPT: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], bool]] = {
    "the working folder": (_folder, os.chdir, False),
    "torch's default type": (_of("torch", "get_default_dtype"), _of("torch", "set_default_dtype"), False),
    "torch's grad mode": (_of("torch", "is_grad_enabled"), _of("torch", "set_grad_enabled"), False),
    "the number of torch's threads": (_of("torch", "get_num_threads"), _of("torch", "set_num_threads"), True),
    "the environment": (lambda: dict(os.environ), _set_environment, True),
    "the state of random": (random.getstate, random.setstate, True),
    "the state of numpy.random": (_of("numpy.random", "get_state"), _of("numpy.random", "set_state"), True),
    "the state of torch's random generator": (_of("torch", "get_rng_state"), _of("torch", "set_rng_state"), True),
}


_REFERENCE = re.compile(r"(?P<file>.+?\.py)(?::(?P<name>[^:]*)(?::(?P<options>.*))?)?", re.DOTALL)
# A file of problems, perhaps with options: `problems.csv:answer=result`.
_DATA = re.compile(r"(?P<file>.+?\.(?:jsonl?|csv|tsv|parquet))(?::(?P<options>.*))?", re.DOTALL)
# Keys of a configuration that may name a file by a relative path.
_NAMING_FILES = re.compile(
    r"game\.name|run\.reward|roles\..+\.loss|eval\.tasks"
    r"|tasks\.(train|validation|solutions|knowledge)|cold_start\.(tasks|top_up|source)"
)
_SOURCE_LIMIT = 16 * 2**20
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


@contextlib.contextmanager
def failing_as(error: type[LiteSelfPlayError], what: str) -> Iterator[None]:
    """A context that turns an OSError into `error`: `what` failed, such as `cannot read PATH`, and the reason."""
    try:
        yield
    except OSError as problem:
        raise error(f"{what}: {problem.strerror or problem}") from None


def require_file(path: Path, error: type[LiteSelfPlayError]) -> None:
    """Raises `error` unless a path is a regular file: opening a pipe blocks, and reading a device may never end."""
    try:
        with failing_as(error, f"cannot read {path}"):
            mode = path.stat().st_mode
    except ValueError as problem:  # a name with a null byte
        raise error(f"cannot read {path}: {problem}") from None
    if not stat.S_ISREG(mode):
        raise error(f"cannot read {path}: it is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a file")


def open_file(path: Path, error: type[LiteSelfPlayError]) -> IO[bytes]:
    """Open a user's file for reading bytes. Raises `error` if it is missing, unreadable or not a regular file."""
    require_file(path, error)
    with failing_as(error, f"cannot read {path}"):
        return path.open("rb")


def read_file(path: Path, error: type[LiteSelfPlayError], limit: int | None = None) -> bytes:
    """The content of a user's file. Raises `error`, also if it is longer than `limit` bytes."""
    with open_file(path, error) as file, failing_as(error, f"cannot read {path}"):
        content = file.read() if limit is None else file.read(limit + 1)
    if limit is not None and len(content) > limit:
        raise error(f"{path} is longer than {limit >> 20} MB")
    return content


def read_utf8(path: Path, error: type[LiteSelfPlayError], limit: int | None = None) -> str:
    """The text in a user's file, without a byte order mark. Raises `error`, also if it is not UTF-8."""
    try:
        return read_file(path, error, limit).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise error(f"{path}: not UTF-8 ({problem.reason} at byte {problem.start})") from None


# Tasks


def is_saved(path: Path | str) -> bool:
    """Whether a folder is that of a saved `datasets.Dataset` or `DatasetDict`."""
    return any(os.path.isfile(os.path.join(path, name)) for name in ("state.json", "dataset_dict.json"))


def data_of(spec: str) -> tuple[str, str] | None:
    """(file, options) of a task that is a file of problems or the folder of a saved data set; None for any other."""
    found = _DATA.fullmatch(spec)
    file, _, options = spec.partition(":")
    return (file, options) if is_saved(file) else (found["file"], found["options"] or "") if found else None


def task_of(given: Any) -> Any:
    """A task as text: its name or file, or the text of a JSONL file from rows such as `{"problem": ..., "answer":
    ...}`, from pairs, or from a `datasets.Dataset`. A run writes rows into its folder. Raises ConfigError for anything
    else."""
    if given is None or isinstance(given, str | Path):
        return None if given is None else str(given)
    if isinstance(given, Mapping) and hasattr(given, "column_names"):
        first = next(iter(given), "train")
        raise ConfigError(f"tasks takes one split, and this has {', '.join(given)}: give one, as in data[{first!r}]")
    try:
        rows = list(given)
        if not rows or any(isinstance(row, str) for row in rows):
            raise ValueError("a text is not a row" if rows else "no row")
        found = [
            dict(row if isinstance(row, Mapping) else zip(("problem", "answer"), row, strict=True)) for row in rows
        ]
        return "\n".join(json.dumps(row, allow_nan=False) for row in found)
    except (TypeError, ValueError) as error:
        what = 'the name of a task, a file, or rows such as {"problem": "1 + 1?", "answer": "2"}'
        raise ConfigError(f"tasks takes {what}, got {type(given).__name__} ({str(error)[:200]})") from None


def shown_task(spec: str | None) -> str:
    """A task's name for the user, who may have given rows."""
    return "the given rows" if spec and spec.startswith("{") else spec or ""


# A user's own code


def file_of(spec: str) -> Path | None:
    """The file of a `FILE.py:NAME` reference; None for any other name."""
    return Path(found["file"]) if (found := _REFERENCE.fullmatch(spec)) else None


def options_of(spec: str) -> str:
    """The options at the end of a reference; empty without any."""
    return (found["options"] or "") if (found := _REFERENCE.fullmatch(spec)) else ""


def short_name(spec: str) -> str:
    """The NAME of a `FILE.py:NAME` reference; any other name unchanged."""
    return (found["name"] or Path(found["file"]).stem) if (found := _REFERENCE.fullmatch(spec)) else spec


def absolute(spec: str, *, folder: bool = False) -> str:
    """A file, or a `FILE.py:NAME` reference, with its absolute path; other names unchanged.

    `folder`: also for a folder; otherwise a name that is both a folder and a task is the task's.
    """
    found, data = _REFERENCE.fullmatch(spec), data_of(spec)
    file = found["file"] if found else data[0] if data else spec
    there = os.path.isfile(file) or ((folder or data) and os.path.isdir(file))
    return f"{os.path.realpath(file)}{spec.removeprefix(file)}" if there else spec


def load(
    spec: str, flag: str, what: str, fits: Callable[[Any], bool] = callable, of: str = "", *, options: bool = False
) -> Any:
    """Import the object that `FILE.py:NAME` refers to. `fits` tells whether it is of the expected kind, which errors
    describe by `flag`, `what` (`function`) and `of` (`of two arguments`). `options`: whether options may follow.

    Raises ConfigError if there is no such file, it cannot be imported, or it has nothing of that name that fits.
    """
    found = _REFERENCE.fullmatch(spec)
    if found is None or found["name"] is None or (found["options"] is not None and not options):
        raise ConfigError(f"{flag} takes FILE.py:{what.upper()}, got {spec!r}")
    path = Path(found["file"])
    if not os.path.isfile(path):
        raise ConfigError(f"{flag}: no file at {path}")
    agree(_line_of(path))
    values = vars(_imported(path, f"lite_selfplay_{what}_{path.stem}", flag))
    if found["name"] in values and fits(values[found["name"]]):
        return values[found["name"]]
    own = sorted(
        name
        for name, value in values.items()
        if fits(value) and not name.startswith("_") and getattr(value, "__module__", "") == values["__name__"]
    )
    raise ConfigError(f"{flag}: {path} has no {what} {found['name']!r}{of}; it has {', '.join(own) or 'none'}")


class _FromSource(importlib.machinery.SourceFileLoader):
    """Always compiles the source that was recorded: a cached .pyc may hold other code, and none is written."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _imported(path: Path, name: str, flag: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, os.fspath(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look up a class's module there
    with guarded(f"{flag}: {path}", ConfigError, warnings.warn, failed="cannot be imported:"):
        spec.loader.exec_module(module)
    return module


# Code that a configuration names


def leaves(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of every value in nested mappings and lists; an item of a list has the list's path."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from leaves(value, f"{path}.{name}" if path else str(name))
    elif isinstance(values, list | tuple | set):
        for value in values:
            yield from leaves(value, path)
    else:
        yield path, values


def whole_paths(config: Mapping[str, Any]) -> dict[str, str]:
    """The files and `FILE.py:NAME` references in a configuration by key, with absolute paths; task names unchanged."""
    named = {key: text for key, text in leaves(config) if isinstance(text, str) and _NAMING_FILES.fullmatch(key)}
    files = {k: v for k, v in named.items() if file_of(v) is not None or not k.startswith(("game.", "roles."))}
    return {key: absolute(spec, folder=key == "tasks.knowledge") for key, spec in files.items()}


def was_run(place: str) -> bool:
    """Whether this user has run the present version of this code on this machine."""
    file = file_of(place)
    return file is not None and os.path.isfile(file) and agreed(_line_of(file))


def sources_of(config: Mapping[str, Any], reward: Any = None) -> dict[str, dict[str, str | None]]:
    """Name, file and SHA-256 of the user's own code: that which a configuration names, by key, and a `reward` given as
    an object. None without a source."""
    found = {}
    for key, place in leaves(config):
        if isinstance(place, str) and (file := file_of(place)) is not None:
            digest = _sha256(read_file(file, ConfigError)) if os.path.isfile(file) else None
            found[key] = {"name": short_name(place), "file": str(file), "sha256": digest}
    if reward is not None:
        code = inspect.unwrap(getattr(reward, "func", reward))
        code = code if inspect.isroutine(code) or inspect.isclass(code) else type(code)
        found["reward"] = {"name": getattr(code, "__qualname__", repr(code)), "file": None, "sha256": None}
        with contextlib.suppress(OSError, TypeError):  # typed at a prompt, or not written in Python
            found["reward"] |= {
                "file": inspect.getsourcefile(code),
                "sha256": _sha256(inspect.getsource(code).encode()),
            }
    return found


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _record_file() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser().absolute() / "lite-selfplay" / "code.jsonl"


def _record() -> set[str]:
    """The lines of the user's record; empty if it cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return set(_record_file().read_text(encoding="utf-8").splitlines())
    return set()


def _line_of(file: Path) -> dict[str, str]:
    return {"file": os.path.realpath(file), "sha256": _sha256(read_file(file, ConfigError, _SOURCE_LIMIT))}


def agreed(what: Mapping[str, str]) -> bool:
    """Whether this user has agreed to something on this machine."""
    return json.dumps(what) in _record()


def agree(*whats: Mapping[str, str]) -> None:
    """Record, for `agreed`, what the user asks for; a record that cannot be written is ignored."""
    if new := [f"{json.dumps(what)}\n" for what in whats if not agreed(what)]:
        with contextlib.suppress(OSError):
            _record_file().parent.mkdir(parents=True, exist_ok=True)
            with _record_file().open("a", encoding="utf-8") as record:
                record.writelines(new)
