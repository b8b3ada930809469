"""The run folder: writing and reading a run's files."""

import contextlib
import difflib
import errno
import json
import math
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard

from filelock import FileLock, Timeout, lock_descriptor
from pydantic import Field, create_model, model_validator

from lite_selfplay.config import RunConfig, load_layer, set_key
from lite_selfplay.config.layers import require_accepted
from lite_selfplay.config.user_files import failing_as, open_file
from lite_selfplay.errors import LiteSelfPlayError, RunFolderError
from lite_selfplay.games.presentation import percent
from lite_selfplay.models.packages import versions
from lite_selfplay.models.sources import ResolvedModel
from lite_selfplay.models.sources.folders import difference
from lite_selfplay.runs.checkpoints import (
    MANIFEST,
    Checkpoint,
    find_checkpoints,
    holds_seats_of,
    is_taught,
    newest_whole,
)
from lite_selfplay.tasks.files import (
    JSON_LIMIT,
    append_lines,
    parse_object,
    read_json,
    read_lines,
    require_no_link,
    write_errors,
    write_whole,
    written_whole,
)
from lite_selfplay.tasks.registry import OBJECTS

CONFIG, ENVIRONMENT, METRICS, EPISODES = "config.yaml", "environment.json", "metrics.jsonl", "episodes.jsonl"
ADAPTERS, CHECKPOINTS, CARD, BUDGET = "adapters", "checkpoints", "README.md", "budget.json"
EVALUATIONS, EXAMPLES, COLLECTIONS, PREFLIGHT = "eval", "cold_start.jsonl", "collections", "preflight.json"
TRACKER, TENSORBOARD, WANDB = "tracker.json", "tensorboard", "wandb"
ROLLOUTS, TOKENS = "rollouts", "tokens"
_ADAPTER = "adapter_config.json"
# The value of `only` in `environment.json` if the run was only a cold start.
COLD_START = "cold start"
_Score = create_model("_Score", pass_at_1=float, ci95=Annotated[list[float], Field(min_length=2, max_length=2)])


def _whole(found: Any) -> Any:
    if (
        found.best not in {**found.seats, **found.directions}
        or (found.moment is not None and found.step is None)
        or (len(found.directions) > 1 and found.mean_of_directions is None)
    ):
        raise ValueError("the evaluation is incomplete")
    return found


_CHECKS: dict[str, Any] = {"whole": model_validator(mode="after")(_whole)}
# The checked keys of an evaluation, and of `environment.json`.
_Evaluation = create_model(
    "_Evaluation",
    __validators__=_CHECKS,
    tasks=str,
    best=str,
    n=int,
    samples=int,
    pass_at_1=float,
    tokens_final_mean=float,
    tokens_total_mean=float,
    seats=dict[str, _Score],
    directions=(dict[str, _Score], {}),
    per_problem=dict[str, Any],
    moment=(str, None),
    step=(int, None),
    mean_of_directions=(float | None, None),
)
_Environment = create_model("_Environment", base=str)
PACKAGES = ("lite-selfplay", "torch", "transformers", "trl", "peft", "bitsandbytes", "accelerate", "unsloth")


Warn = Callable[[str], None]


def ignored(sentence: str) -> None:
    """A receiver of warnings."""


class RunFolder:
    """A run's folder. A step's lines are appended and flushed together.

    `ours`: whether this process writes it; of several processes of a run, one does.
    """

    def __init__(self, path: Path, ours: bool = True):
        self.path, self.ours = path, ours

    def require_free(self) -> None:
        """Raises RunFolderError if the folder exists and is not empty, or its name is impossible."""
        path = self.path
        with (
            failing_as(RunFolderError, f"cannot read {path}"),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
        ):
            os.lstat(path)
            if not os.path.isdir(path) or any(path.iterdir()):
                raise self._taken()

    def _taken(self) -> RunFolderError:
        again = f", or continue the run with `{self.resume_command()}`" if not self.brought else ""
        return RunFolderError(
            f"{self.path} exists already and a run folder is never overwritten: choose another --run-dir{again}"
        )

    def create(self, config: RunConfig, objects: Mapping[str, str] | None = None, **facts: Any) -> None:
        """Create the folder with `config.yaml`, `environment.json` and `objects`, given problems by key of `OBJECTS`.

        `facts` are added to the environment. A new folder appears by one rename. Raises RunFolderError if it is not
        free or cannot be written.
        """
        self.require_free()
        new = [path for path in self.path.parents if not os.path.lexists(path)]
        beside = not os.path.exists(self.path)  # an empty folder stays: a disk may be mounted there
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}") if beside else self.path
        try:
            partial.mkdir(parents=True, exist_ok=True)
            with (partial / CONFIG).open("x", encoding="utf-8") as file:
                file.write(config.to_yaml())
            for key, rows in (objects or {}).items():
                (partial / OBJECTS[key]).parent.mkdir(exist_ok=True)
                write_whole(partial / OBJECTS[key], rows + "\n")
            write_whole(partial / ENVIRONMENT, _as_json({**environment(), **facts}), JSON_LIMIT)
            if beside:
                partial.rename(self.path)
        except OSError as error:
            # Whether another run was faster.
            taken = isinstance(error, FileExistsError) or (beside and os.path.exists(self.path))
            if beside:
                shutil.rmtree(partial, ignore_errors=True)
                for path in new:
                    with contextlib.suppress(OSError):
                        path.rmdir()
            if taken:
                raise self._taken() from None
            for name in () if beside else (CONFIG, *OBJECTS.values(), ENVIRONMENT):
                (partial / name).unlink(missing_ok=True)
            raise RunFolderError(f"cannot write to {self.path}: {error.strerror or error}") from None

    @classmethod
    def open(cls, path: Path, *, or_adapter: bool = False) -> "RunFolder":
        """An existing run folder, or one that PEFT wrote with a single adapter. Raises RunFolderError if it is none."""
        if not os.path.isfile(path / CONFIG) and not (or_adapter and os.path.isfile(path / _ADAPTER)):
            raise RunFolderError(f"{path} is not a run folder: it has no {CONFIG}{nearest_runs(path)}")
        return cls(path)

    def config(self) -> RunConfig:
        """The run's configuration. Raises ConfigError, and RunFolderError like `require_own_files`."""
        self.require_own_files()
        config = RunConfig.of(load_layer(self.path / CONFIG), {"run": {"dir": str(self.path)}})
        layer: dict[str, Any] = {}
        for key, name in OBJECTS.items():
            if os.path.isfile(self.path / name):  # the folder may have been moved
                set_key(layer, key, str((self.path / name).absolute()))
        return config.having(layer) if layer else config

    def config_to_load(self, trust_remote_code: bool, unsafe_code: bool = False) -> RunConfig:
        """`config`, before its base, game and tasks are loaded.

        The folder may be a stranger's: see `require_accepted`. Reward functions and losses are left to the callers.
        """
        config = self.config()
        values, chosen = config.values(), {"trust_remote_code": trust_remote_code, "unsafe_code": unsafe_code}
        values["run"].pop("reward")
        for role in values["roles"].values():
            role.pop("loss")
        require_accepted(values, self.path / CONFIG, chosen)
        return config

    def outside(self, config: RunConfig) -> dict[str, dict[str, str]]:
        """What a run with this configuration does outside of its folder, by key, for `user_files.agree`."""
        servers, tracker = config.rollouts.servers, config.run.report_to
        keys = {
            "run.report_to": None if tracker in ("none", "tensorboard") else tracker,
            "rollouts.folder": config.rollouts.folder if servers else None,
        }
        return {key: {"folder": os.path.realpath(self.path), key: value} for key, value in keys.items() if value}

    def rewrite_config(self, config: RunConfig) -> None:
        """Replace the configuration. Raises RunFolderError if that fails."""
        with write_errors(f"to {self.path}"):
            write_whole(self.path / CONFIG, config.to_yaml())

    def require_own_files(self) -> None:
        """Raises RunFolderError if a part of the folder is a link, so that something else is read or written."""
        files = (CONFIG, ENVIRONMENT, METRICS, EPISODES, CARD, BUDGET, EXAMPLES, PREFLIGHT, LOCK, TRACKER)
        folders = (ADAPTERS, CHECKPOINTS, EVALUATIONS, COLLECTIONS, TENSORBOARD, WANDB, ROLLOUTS, TOKENS)
        for name in (*files, *folders, *OBJECTS.values()):
            require_no_link(self.path / name)

    def noted(self, what: Literal["code", "data"]) -> dict[str, dict[str, Any]]:
        """The recorded facts about the user's own code (`config.user_files.sources_of`) or the problems (`Plan.data`);
        from the newest checkpoint if `environment.json` is damaged."""
        found = self._environment().get(what)
        if not _is_of_objects(found):
            last = find_checkpoints(self.path / CHECKPOINTS)[-1:]
            found = read_json(last[0].path / MANIFEST).get(what) if last else None
        return found if _is_of_objects(found) else {}

    def rewards(self) -> str:
        """What completions earn, in words; empty if `environment.json` does not say."""
        return str(self._environment().get("rewards") or "")

    def _environment(self) -> dict[str, Any]:
        """The contents of `environment.json`; empty if it is damaged, since a run can continue without it."""
        with contextlib.suppress(RunFolderError):
            return read_json(self.path / ENVIRONMENT)
        return {}

    def note(self, facts: Mapping[str, Any]) -> None:
        """Update code and rewards in `environment.json`, and add facts that it lacks. Raises RunFolderError if that
        fails."""
        was = self._environment()
        if (now := {**facts, **was, "code": facts["code"], "rewards": facts["rewards"]}) != was:
            with write_errors(f"to {self.path}"):
                write_whole(self.path / ENVIRONMENT, _as_json(now), JSON_LIMIT)

    def resume_command(self, again: str = "", more: str = "") -> str:
        """The command that continues the run, or the Python call if its reward was given in Python. `again` and `more`
        are added to the command."""
        if (reward := self.noted("code").get("reward")) is not None:
            name = re.sub(r"[^\w.<>]", "", str(reward.get("name")))  # users copy it, and the folder may be a stranger's
            return f"resume({str(self.path)!r}, reward={name})"
        return f"lite-selfplay train --resume {shlex.quote(str(self.path))}{again}{more}"

    def saved(self, warn: Warn = ignored) -> Checkpoint | None:
        """The checkpoint whose seats are the run's: the newest whole one. None if the folder has none.

        `adapters/` is a copy for other tools, written a moment later. `warn` is told of damaged checkpoints. Raises
        RunFolderError if the run was stopped in its cold start.
        """
        last = newest_whole(self.path / CHECKPOINTS, warn)
        if last is not None and not is_taught(last):
            raise RunFolderError(
                f"{self.path} was stopped in its cold start, which `{self.resume_command()}` does again"
            )
        return last

    def seats(self, warn: Warn = ignored) -> dict[str, Path]:
        """The folder of each seat's adapter: in `saved`, in `adapters/` if that is all there is, or the folder itself
        if PEFT wrote it. Raises RunFolderError like `saved`, and if `adapters` is a link."""
        if self.brought:
            return {self.path.name: self.path}
        place = (self.saved(warn) or self).path / ADAPTERS
        require_no_link(place)
        return {file.parent.name: file.parent for file in sorted(place.glob(f"*/{_ADAPTER}"))}

    @property
    def brought(self) -> bool:
        """Whether this is no run, but an adapter that PEFT wrote."""
        return not os.path.isfile(self.path / CONFIG)

    def base(self) -> str:
        """The identity of the base model. Raises RunFolderError if `environment.json` does not say."""
        path = self.path / ENVIRONMENT
        try:
            return str(read_json(path, _Environment)["base"])
        except RunFolderError as error:
            raise RunFolderError(f"{path} does not say which base the run was made over ({error})") from None

    def require_base(self, model: ResolvedModel) -> None:
        """Raises RunFolderError, naming what differs, if the run was made over another base."""
        if (was := self.base()) != model.identity:
            raise RunFolderError(
                f"{self.path} was made over another base than {model.name} is now: {difference(was, model.identity)}"
            )

    # Evaluations

    def write_evaluation(self, name: str, result: Mapping[str, Any]) -> Path:
        """Write or replace `eval/NAME.json`, without the answers if it could not be read again with them. Raises
        RunFolderError if that fails."""
        path = self.path / EVALUATIONS / f"{name}.json"
        text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        if len(text.encode()) > JSON_LIMIT and result.get("answers"):
            return self.write_evaluation(name, {**result, "answers": {}})
        with write_errors(f"to {path.parent}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text, JSON_LIMIT)
        return path

    def evaluations(self, warn: Warn | None = None) -> dict[str, dict[str, Any]]:
        """The evaluations made in training by their moment, in the order of steps, like `later_evaluations` without
        those whose file is damaged: `warn` is told of them. None: raises RunFolderError for one."""
        found = (result for _, result in self.evaluation_files(warn) if "moment" in result)
        return {result["moment"]: result for result in sorted(found, key=itemgetter("step"))}

    def best(self, among: Iterable[dict[str, Any]] | None = None) -> dict[str, Any] | None:
        """The evaluation made in training with the highest pass@1 (of its best seat or direction) `among` some, else
        all, whose checkpoint exists; the earliest of equals. Damaged ones do not count."""
        every = (found for _, found in self.evaluation_files(ignored)) if among is None else among
        saved = {path.parent.name for path in (self.path / CHECKPOINTS).glob("step-*/manifest.json")}
        there = (found for found in every if "moment" in found and f"step-{found['step']}" in saved)
        return max(there, key=lambda found: (found["pass_at_1"], -found["step"]), default=None)

    def later_evaluations(self, warn: Warn | None = None) -> dict[str, dict[str, Any]]:
        """The evaluations made after training, by file name."""
        return {name: result for name, result in self.evaluation_files(warn) if "moment" not in result}

    def evaluation_files(self, warn: Warn | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        """The name and content of each file in `eval/`, one after the other; `warn` as in `evaluations`."""
        for path in sorted((self.path / EVALUATIONS).glob("*.json")):
            try:
                yield path.stem, read_json(path, _Evaluation)
            except RunFolderError as error:
                if warn is None:
                    raise
                warn(f"an evaluation is left out: {error}")

    # Lines

    def append(self, metrics: Mapping[str, Any], episodes: Iterable[Mapping[str, Any]], limit_mb: float) -> bool:
        """Append a step's lines. Returns False if `episodes.jsonl` has reached its limit and was not extended."""
        path = self.path / EPISODES
        room = (path.stat().st_size if path.exists() else 0) < limit_mb * 1e6
        if room:
            append_lines(path, episodes)
        append_lines(self.path / METRICS, [metrics])
        return room

    def keep_tokens(self, step: int, columns: Mapping[str, Any]) -> None:
        """Write arrays to `tokens/step-N.safetensors`, or replace it if the step is repeated. Raises OSError."""
        from safetensors.numpy import save

        (self.path / TOKENS).mkdir(exist_ok=True)
        with written_whole(self.path / TOKENS / f"step-{step}.safetensors") as file:
            file.write(save(dict(columns)))

    def steps(self, first: int = 0, last: float = math.inf) -> "Steps":
        """The lines of `metrics.jsonl` from step `first` to step `last`. Raises RunFolderError for a damaged line, like
        `episodes`."""
        return Steps(self.path / METRICS, first, last)

    def episodes(self) -> Iterator[dict[str, Any]]:
        """The lines of `episodes.jsonl`."""
        return (row for _, row in _lines(self.path / EPISODES))

    def cut(self, step: int) -> None:
        """Remove the lines and evaluations of all steps after this one (counted from 1), before a resume repeats them.

        Raises RunFolderError, with nothing changed, if a line is damaged or the folder cannot be written.
        """
        paths = [path for name in (METRICS, EPISODES) if (path := self.path / name).exists()]
        with write_errors(f"to {self.path}"):
            with contextlib.ExitStack() as stack:  # both are written before either replaces its file
                for path, file in [(path, stack.enter_context(written_whole(path))) for path in paths]:
                    file.writelines(line for line, row in _lines(path) if row["step"] <= step)
            for path in (*self.path.glob(f"{TOKENS}/step-*"), *self.path.glob(f"{EVALUATIONS}/step-*.json")):
                if (number := path.stem.removeprefix("step-")).isdecimal() and int(number) > step:
                    path.unlink()


@dataclass(frozen=True)
class Steps:
    """The lines of `metrics.jsonl` from one step to another, for any number of passes. Each pass reads the file again
    and keeps no line: there may be a million."""

    path: Path
    first: int
    last: float

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (row for _, row in _lines(self.path) if self.first <= row["step"] <= self.last)


def nearest_runs(path: Path) -> str:
    """A sentence about the run with the most similar path, of those beside it, here and in `runs`. Empty without runs,
    or if the path exists."""
    places = {Path(), Path("runs"), *([path.parent] if os.path.isdir(path.parent) else [])}
    runs = sorted(str(found.parent) for place in places for found in place.glob(f"*/{CONFIG}"))
    near = difflib.get_close_matches(str(path), runs, 1, 0.0)
    return f". The nearest run is {near[0]}" if near and not os.path.exists(path) else ""


@contextlib.contextmanager
def as_written(path: Path) -> Iterator[None]:
    """A context for showing a run. Raises RunFolderError if a line or file has unexpected content, so that not every
    key needs a check."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{path} is damaged ({type(error).__name__}: {error}); `lite-selfplay train --resume {path}` names the file"
        ) from error


def environment() -> dict[str, Any]:
    """Versions, machine and, if this library is imported from a git checkout, the commit."""
    commit, asked = None, ["git", "--git-dir", str(Path(__file__).resolve().parents[2] / ".git"), "rev-parse", "HEAD"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        commit = subprocess.check_output(asked, stderr=subprocess.DEVNULL, text=True, timeout=5).strip()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions(PACKAGES),
        "commit": commit,
    }


def _as_json(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, indent=2) + "\n"


def _is_of_objects(found: Any) -> TypeGuard[dict[str, dict[str, Any]]]:
    return isinstance(found, dict) and all(isinstance(one, dict) for one in found.values())


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """(bytes, object) of each line of a file of steps. Raises RunFolderError for a line without its step."""
    for number, line, row in read_lines(path):
        if type(row.get("step")) is not int:
            raise RunFolderError(f"{path}, line {number}: has no step number")
        yield line, row


LOCK = ".lock"
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


@contextlib.contextmanager
def writing(
    folder: Path, patience_s: float = 0.2, *, insist: bool = False, again: str = "", warn: Warn = ignored
) -> Iterator[None]:
    """A context that holds a run folder's lock, after waiting for it up to `patience_s` seconds: `writer` also takes it
    for a moment.

    `again`: further arguments of a resume (`RolloutsSection.again`). `insist`: a file system without locks is an error,
    too; else `warn` is told of it. Raises RunFolderError if another process holds the lock, naming it, or if the folder
    cannot be written.
    """
    path = folder / LOCK
    if os.path.exists(path) and not os.path.isfile(path):
        raise RunFolderError(f"{path} is not a file: remove it if no run writes {folder}")
    lock = FileLock(path, timeout=patience_s, on_acquired=_sign)
    try:
        lock.acquire()
    except Timeout:
        raise RunFolderError(
            f"{folder} is being written by {_holder(path)}; wait until it has ended, or stop it (it saves first), and "
            f"continue with `lite-selfplay train --resume {folder}{again}`"
        ) from None
    except OSError as error:
        if insist or error.errno not in _NO_LOCKS:
            raise RunFolderError(f"cannot write to {folder}: {LOCK}: {error.strerror or error}") from None
        warn(f"the file system of {folder} has no locks: nothing keeps a second process from writing it")
        descriptor = os.open(path, os.O_RDWR | _NO_LINK)
        _sign(descriptor)
        os.close(descriptor)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows cannot remove an open file
            path.unlink()
        lock.release()


def writer(folder: Path) -> str | None:
    """Who is writing a run folder, as `process 12 on HOST`; None if nobody is. Writes nothing."""
    path = folder / LOCK
    with contextlib.suppress(OSError):
        # NFS locks only files open for writing. O_NONBLOCK: opening a pipe would wait.
        mode = os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY
        descriptor = os.open(path, mode | _NO_LINK | getattr(os, "O_NONBLOCK", 0))
        try:
            return None if lock_descriptor(descriptor, blocking=False) else _holder(path)
        except OSError:  # there are no locks: who began to write has not removed the file
            return _holder(path)
        finally:
            os.close(descriptor)
    return None


def _sign(descriptor: int) -> None:
    """Write who holds the lock into its file, after the first byte, which others cannot read on Windows."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f" {os.getpid()} {socket.gethostname()}\n".encode())


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
        file.seek(1)
        pid, _, host = file.read(300).decode("utf-8", "replace").strip().partition(" ")
        if pid.isdecimal() and host.isprintable():
            return f"process {pid} on {host}" if host != socket.gethostname() else f"process {pid}"
    return "another process"


# The bytes at the end of `metrics.jsonl` that are searched for the last step.
LAST_LINE = 2**20

Stage = Literal["running", "finished", "stopped", "cold start", "not begun", "damaged"]


@dataclass(frozen=True)
class RunState:
    """A run's state in short.

    `step` of `steps` steps were played. `best` describes the best checkpoint, empty without one. `size`: bytes of all
    files. `resume`: the command that continues the run, None if it cannot be continued or has nothing left to do.
    `problem` says why the run is `damaged`.
    """

    path: Path
    game: str = ""
    model: str = ""
    step: int = 0
    steps: int = 0
    stage: Stage = "damaged"
    best: str = ""
    size: int = 0
    resume: str | None = None
    problem: str = ""


def state_of(path: Path) -> RunState:
    """A run folder's state in short; a damaged one has a `problem`. Raises RunFolderError if it is no run folder."""
    folder = RunFolder.open(path)
    size = _size(path)
    try:
        config = folder.config()
        last = last_step(path)
        step = 0 if last is None else last["step"]
        found = folder.best()
        best = "" if found is None else f"{percent(found['pass_at_1'])} after {found['step']} steps"
        taught = (path / ENVIRONMENT).exists() and read_json(path / ENVIRONMENT).get("only") == COLD_START
        steps, over = config.run.steps, last is not None and last.get("over") is True
        # The last save may have failed, or have been killed.
        ended = (over or step >= steps) and all(
            saved.step >= step and holds_seats_of(path, saved) for saved in find_checkpoints(path / CHECKPOINTS)[-1:]
        )
    except (LiteSelfPlayError, OSError) as error:
        return RunState(path, size=size, problem=str(error))
    at_rest: Stage = "finished" if ended else "stopped" if step else "cold start" if taught else "not begun"
    stage: Stage = at_rest if writer(path) is None else "running"
    can = stage in ("stopped", "not begun") and any((path / CHECKPOINTS).glob("step-*/manifest.json"))
    resume = folder.resume_command(config.rollouts.again) if can else None
    return RunState(path, config.game.label, config.model.name, step, steps, stage, best, size, resume)


def run_folders(folder: Path) -> list[Path]:
    """The run folders in a folder, oldest first; the folder itself if it is one. Raises RunFolderError if it cannot be
    read."""
    with failing_as(RunFolderError, f"cannot read the folder {folder}"):
        if (folder / CONFIG).is_file():
            return [folder]
        found = [path for path in folder.iterdir() if (path / CONFIG).is_file()]
        return sorted(found, key=lambda path: ((path / CONFIG).stat().st_mtime, path.name))


def last_step(path: Path) -> dict[str, Any] | None:
    """The last complete line of a run's `metrics.jsonl`, None without one. Raises RunFolderError if it is damaged."""
    file = path / METRICS
    if not file.exists():
        return None
    with open_file(file, RunFolderError) as opened:
        opened.seek(max(0, opened.seek(0, 2) - LAST_LINE))
        lines = opened.read(LAST_LINE).split(b"\n")[:-1]  # a kill may have cut the last one short
    if not lines:
        return None
    row = parse_object(lines[-1], f"{file}, its last line")
    if type(row.get("step")) is not int:
        raise RunFolderError(f"{file}, its last line: has no step number")
    return row


def _size(path: Path) -> int:
    """The bytes of all files in a folder. Links count by their own size, and files removed meanwhile do not count."""
    total = 0
    for place, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total
