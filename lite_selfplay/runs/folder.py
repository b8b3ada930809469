"""The run folder: what a run writes down, and how it is read back."""

import contextlib
import difflib
import errno
import json
import os
import platform
import re
import shlex
import socket
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard

from filelock import FileLock, Timeout, lock_descriptor
from pydantic import Field, create_model, model_validator

from lite_selfplay.config import RunConfig, load_layer
from lite_selfplay.config.user_files import failing_as, open_file, places_in, require_accepted
from lite_selfplay.errors import ConfigError, LiteSelfPlayError, RunFolderError
from lite_selfplay.games.presentation import percent
from lite_selfplay.models.packages import versions
from lite_selfplay.tasks.files import (
    parse_object,
    read_json,
    read_lines,
    require_no_link,
    write_errors,
    write_whole,
    written_whole,
)
from lite_selfplay.tasks.registry import OBJECTS

if TYPE_CHECKING:
    import numpy as np


CONFIG, ENVIRONMENT, METRICS, EPISODES = "config.yaml", "environment.json", "metrics.jsonl", "episodes.jsonl"
ADAPTERS, CHECKPOINTS, CARD, BUDGET = "adapters", "checkpoints", "README.md", "budget.json"
EVALUATIONS, EXAMPLES, COLLECTIONS, PREFLIGHT = "eval", "cold_start.jsonl", "collections", "preflight.json"
TRACKER, TENSORBOARD, WANDB = "tracker.json", "tensorboard", "wandb"
ROLLOUTS, TOKENS = "rollouts", "tokens"
COLD_START = "cold start"
"""What `environment.json` says of a folder whose seats were taught their format `only`."""
_Interval = Annotated[list[float], Field(min_length=2, max_length=2)]
_Score = create_model("_Score", pass_at_1=float, ci95=_Interval)
_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("tasks", "best"), str),
    **dict.fromkeys(("n", "samples"), int),
    **dict.fromkeys(("pass_at_1", "tokens_final_mean", "tokens_total_mean"), float),
    "seats": dict[str, _Score],
    "directions": (dict[str, _Score], {}),
    "per_problem": dict[str, Any],
    "moment": (str, None),
    "step": (int, None),
    "mean_of_directions": (float | None, None),
}


def _whole(found: Any) -> Any:
    if (
        found.best not in {**found.seats, **found.directions}
        or (found.moment is not None and found.step is None)
        or (len(found.directions) > 1 and found.mean_of_directions is None)
    ):
        raise ValueError("it is no whole evaluation")
    return found


_CHECKS: dict[str, Any] = {"whole": model_validator(mode="after")(_whole)}
# What is read of an evaluation.
_Evaluation = create_model("_Evaluation", __validators__=_CHECKS, **_FIELDS)
PACKAGES = ("lite-selfplay", "torch", "transformers", "trl", "peft", "bitsandbytes", "accelerate", "unsloth")


class RunFolder:
    """A run's own folder. Lines are appended whole and flushed, a step at a time.

    `ours`: whether this process writes it. Of several that play a run together, one does.
    """

    def __init__(self, path: Path, ours: bool = True):
        self.path, self.ours = path, ours

    def require_free(self) -> None:
        """Raises RunFolderError where something is there already, or where nothing can be, as under too long a name."""
        path = self.path
        none = contextlib.suppress(FileNotFoundError, NotADirectoryError)
        with failing_as(RunFolderError, f"cannot read {path}"), none:
            os.lstat(path)
            if not os.path.isdir(path) or any(path.iterdir()):
                raise self._taken()

    def _taken(self) -> RunFolderError:
        again = f", or go on with `{self.resume_command()}`"
        return RunFolderError(
            f"{self.path} exists already and a run folder is never overwritten: choose another --run-dir"
            f"{again if os.path.isfile(self.path / CONFIG) else ''}"
        )

    def create(self, config: RunConfig, tasks: str = "", **facts: Any) -> None:
        """Make the folder with `config.yaml`, what `write_environment` writes and `tasks`, problems that were given as
        objects, in one rename where none was there.

        Raises RunFolderError where it is not free or cannot be written.
        """
        self.require_free()
        new = [path for path in self.path.parents if not os.path.lexists(path)]
        # An empty folder that is there stays: it may be where a disk is mounted.
        partial = self.path if os.path.exists(self.path) else self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            partial.mkdir(parents=True, exist_ok=True)
            with (partial / CONFIG).open("x", encoding="utf-8") as file:
                file.write(config.to_yaml())
            if tasks:
                write_whole(partial / OBJECTS, tasks + "\n")
            write_whole(partial / ENVIRONMENT, _as_json({**environment(), **facts}))
            if partial != self.path:
                partial.rename(self.path)
        except OSError as error:
            beside = partial != self.path
            # Whether another run was quicker.
            taken = isinstance(error, FileExistsError) or (beside and os.path.exists(self.path))
            made = [partial / name for name in (CONFIG, OBJECTS, ENVIRONMENT) if beside or not taken]
            for path in [*made, *([partial, *new] if beside else [])]:
                with contextlib.suppress(OSError):
                    path.unlink() if path in made else path.rmdir()
            if taken:
                raise self._taken() from None
            raise RunFolderError(f"cannot write to {self.path}: {error.strerror or error}") from None

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """A folder that a run wrote. Raises RunFolderError for any other."""
        if not os.path.isfile(path / CONFIG):
            raise RunFolderError(f"{path} is not a run folder: it has no {CONFIG}{nearest_runs(path)}")
        return cls(path)

    def config(self) -> RunConfig:
        """The run's configuration. Raises ConfigError."""
        config = RunConfig.of(load_layer(self.path / CONFIG), {"run": {"dir": str(self.path)}})
        file = self.path / OBJECTS
        return config.having({"tasks": str(file.absolute())}) if os.path.isfile(file) else config

    def config_to_load(self, trust_remote_code: bool, unsafe_code: bool = False) -> RunConfig:
        """`config`, for who loads the base, the game and the tasks.

        Raises ConfigError where code of the base, or of what it writes, is to be run without protection, and that is
        not asked for anew: that the folder says so is not enough, since it may be a stranger's. So does a game or a
        task whose code this user has not run here. Reward functions and losses are looked at by who calls them.
        """
        config = self.config()
        places = places_in(config.values()).items()
        played = {key: place for key, place in places if key != "run.reward" and not key.startswith("roles.")}
        require_accepted(played, self.path / CONFIG)
        if config.model.trust_remote_code and not trust_remote_code:
            raise ConfigError(
                f"{self.path} was made with a model that runs Python code of its own ({config.model.name}): read that "
                "code, and if you trust it give --trust-remote-code again"
            )
        if config.tasks.unsafe_code and not unsafe_code:
            raise ConfigError(
                f"{self.path} was made with --unsafe-code, under which programs that the model writes may run without "
                "protection: if that is meant, give --unsafe-code again"
            )
        return config

    def rewrite_config(self, config: RunConfig) -> None:
        """Put another configuration in the place of the old one. Raises RunFolderError where that cannot be."""
        with write_errors(f"to {self.path}"):
            write_whole(self.path / CONFIG, config.to_yaml())

    def require_own_files(self) -> None:
        """Raises RunFolderError where a part of the folder is a link, through which a run would write elsewhere."""
        parts = (ADAPTERS, CHECKPOINTS, CARD, BUDGET, EVALUATIONS, EXAMPLES, COLLECTIONS, PREFLIGHT, LOCK)
        of_trackers = (TRACKER, TENSORBOARD, WANDB)
        for name in (CONFIG, ENVIRONMENT, METRICS, EPISODES, OBJECTS, *parts, *of_trackers, ROLLOUTS, TOKENS):
            require_no_link(self.path / name)

    def noted(self, what: Literal["code", "data"]) -> dict[str, dict[str, Any]]:
        """The user's own code (`config.user_files.sources_of`), or the problems (`Plan.data`), that the run was made
        with, as far as that was noted: where `environment.json` is damaged, in the newest checkpoint."""
        found = self._environment().get(what)
        if not _is_of_objects(found):
            from lite_selfplay.runs.checkpoints import MANIFEST, find_checkpoints

            last = find_checkpoints(self.path / CHECKPOINTS)[-1:]
            found = read_json(last[0].path / MANIFEST).get(what) if last else None
        return found if _is_of_objects(found) else {}

    def rewards(self) -> str:
        """What completions earn, in words; empty where the run's `environment.json` does not say."""
        return str(self._environment().get("rewards") or "")

    def _environment(self) -> dict[str, Any]:
        """What `environment.json` holds; nothing where it is damaged, without which a run goes on."""
        with contextlib.suppress(RunFolderError):
            return read_json(self.path / ENVIRONMENT)
        return {}

    def note(self, facts: Mapping[str, Any]) -> None:
        """Write down what the run goes on with: its code, its rewards, and other facts that `environment.json` lacks.

        Raises RunFolderError where that cannot be.
        """
        was = self._environment()
        if (now := {**facts, **was, "code": facts["code"], "rewards": facts["rewards"]}) != was:
            with write_errors(f"to {self.path}"):
                write_whole(self.path / ENVIRONMENT, _as_json(now))

    def resume_command(self, again: str = "", more: str = "") -> str:
        """The command that goes on with the run, or the call, where its reward was given in Python. `again` and `more`:
        what the command is given besides the folder."""
        if (reward := self.noted("code").get("reward")) is not None:
            name = re.sub(r"[^\w.<>]", "", str(reward.get("name")))  # it may be a stranger's, and is there to be copied
            return f"resume({str(self.path)!r}, reward={name})"
        return f"lite-selfplay train --resume {shlex.quote(str(self.path))}{again}{more}"

    def seats(self) -> dict[str, Path]:
        """The folder of each seat's adapter that has been saved. Raises RunFolderError where they lie elsewhere."""
        require_no_link(self.path / ADAPTERS)
        found = sorted((self.path / ADAPTERS).glob("*/adapter_config.json"))
        return {file.parent.name: file.parent for file in found}

    def base(self) -> str:
        """The identity of the base model. Raises RunFolderError where `environment.json` does not say."""
        path = self.path / ENVIRONMENT
        try:
            base = read_json(path).get("base")
        except RunFolderError as error:
            raise RunFolderError(f"{path} does not say which base the run was made over ({error})") from None
        if not isinstance(base, str):
            raise RunFolderError(f"{path} does not say which base the run was made over")
        return base

    # Evaluations

    def write_evaluation(self, name: str, result: Mapping[str, Any]) -> Path:
        """Write `eval/NAME.json` in the place of an older one. Raises RunFolderError where that cannot be."""
        path = self.path / EVALUATIONS / f"{name}.json"
        text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        with write_errors(f"to {path.parent}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        return path

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """The evaluations made in training, by their moment, in the order of the steps."""
        found = [result for result in self._evaluation_files().values() if "moment" in result]
        return {result["moment"]: result for result in sorted(found, key=lambda result: result["step"])}

    def best(self) -> dict[str, Any] | None:
        """Of the evaluations made in training at a step whose checkpoint is there the one with the highest pass@1, that
        of the best seat or direction; of equals, the earliest. Raises RunFolderError for a damaged file."""
        saved = {path.parent.name for path in (self.path / CHECKPOINTS).glob("step-*/manifest.json")}
        there = [found for found in self.evaluations().values() if f"step-{found['step']}" in saved]
        return max(there, key=lambda found: (found["pass_at_1"], -found["step"]), default=None)

    def later_evaluations(self) -> dict[str, dict[str, Any]]:
        """Those made of the finished run, by the name of their file. Both raise RunFolderError for a damaged file."""
        return {name: result for name, result in self._evaluation_files().items() if "moment" not in result}

    def _evaluation_files(self) -> dict[str, dict[str, Any]]:
        return {path.stem: read_json(path, _Evaluation) for path in sorted((self.path / EVALUATIONS).glob("*.json"))}

    # Lines

    def append(self, metrics: Mapping[str, Any], episodes: Iterable[Mapping[str, Any]], limit_mb: float) -> bool:
        """Write a step's lines. Returns False once `episodes.jsonl` has reached its limit and is left as it is."""
        path = self.path / EPISODES
        room = (path.stat().st_size if path.exists() else 0) < limit_mb * 1e6
        if room:
            _append_lines(path, episodes)
        _append_lines(self.path / METRICS, [metrics])
        return room

    def keep_tokens(self, step: int, columns: Mapping[str, "np.ndarray"]) -> None:
        """Write `tokens/step-N.safetensors`, in the place of one of a step that is played again. Raises OSError."""
        from safetensors.numpy import save

        (self.path / TOKENS).mkdir(exist_ok=True)
        with written_whole(self.path / TOKENS / f"step-{step}.safetensors") as file:
            file.write(save(dict(columns)))

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`. Raises RunFolderError naming a damaged line, as `episodes` does."""
        return [row for _, row in _lines(self.path / METRICS)]

    def episodes(self) -> Iterator[dict[str, Any]]:
        """The lines of `episodes.jsonl`."""
        return (row for _, row in _lines(self.path / EPISODES))

    def cut(self, step: int) -> None:
        """Drop the lines of all steps after this one, counted from 1, as a resume behind it needs.

        Raises RunFolderError, with nothing changed, where a line cannot be read or the folder cannot be written.
        """
        paths = [path for name in (METRICS, EPISODES) if (path := self.path / name).exists()]
        with write_errors(f"to {self.path}"):
            with contextlib.ExitStack() as stack:  # neither takes its place before both are written
                for path, file in [(path, stack.enter_context(written_whole(path))) for path in paths]:
                    file.writelines(line for line, row in _lines(path) if row["step"] <= step)
            for path in (self.path / TOKENS).glob("step-*.safetensors"):
                if int(path.stem.removeprefix("step-")) > step:
                    path.unlink()

    def write_environment(self, **facts: Any) -> None:
        """Write versions, machine and some more facts. Raises RunFolderError where that cannot be."""
        with write_errors(f"to {self.path}"):
            write_whole(self.path / ENVIRONMENT, _as_json({**environment(), **facts}))


def nearest_runs(path: Path) -> str:
    """The run that is called most alike, of those beside a path, here and in `runs`, as a sentence after another one.

    Empty where there is none, or something at the path.
    """
    places = {Path(), Path("runs"), *([path.parent] if os.path.isdir(path.parent) else [])}
    runs = sorted(str(found.parent) for place in places for found in place.glob(f"*/{CONFIG}"))
    near = difflib.get_close_matches(str(path), runs, 1, 0.0)
    return f". The nearest run is {near[0]}" if near and not os.path.exists(path) else ""


@contextlib.contextmanager
def as_written(path: Path) -> Iterator[None]:
    """A context that shows what a run wrote. Raises RunFolderError where a line or file does not hold what runs write:
    each key that is shown would have to be checked else."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{path} does not hold what a run writes ({type(error).__name__}: {error}); `lite-selfplay train --resume "
            f"{path}` names what is damaged"
        ) from error


def environment() -> dict[str, Any]:
    """Versions, machine and, in a checkout, the commit."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions(PACKAGES),
        "commit": _commit(),
    }


def _as_json(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, indent=2) + "\n"


def _commit() -> str | None:
    """The commit of the checkout this library is imported from, None where it is installed otherwise."""
    here = Path(__file__).resolve().parents[1]
    if not (here / ".git").exists():
        return None
    try:
        asked = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip()


def _is_of_objects(found: Any) -> TypeGuard[dict[str, dict[str, Any]]]:
    return isinstance(found, dict) and all(isinstance(one, dict) for one in found.values())


def _append_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The lines of a step's file and what each holds. Raises RunFolderError for one that does not name its step."""
    for number, line, row in read_lines(path):
        if type(row.get("step")) is not int:
            raise RunFolderError(f"{path}, line {number}: does not say which step it is of")
        yield line, row


LOCK = ".lock"
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_PATIENCE_S = 0.2  # `writer` takes the lock for a moment, too


@contextlib.contextmanager
def writing(folder: Path, patience_s: float = _PATIENCE_S, *, insist: bool = False, again: str = "") -> Iterator[None]:
    """Hold a run folder's lock, for the length of a context, having waited for it as long as patience allows.

    `again`: what a resume is given besides the folder (`RolloutsSection.again`). `insist`: a file system without locks
    is an error as well. Raises RunFolderError, naming the process, where another one holds it, and where the folder
    cannot be written.
    """
    path = folder / LOCK
    if os.path.exists(path) and not stat.S_ISREG(path.stat().st_mode):
        raise RunFolderError(f"{path} is no file: take it away if no run writes {folder}")
    lock = FileLock(path, timeout=patience_s, on_acquired=_sign)
    try:
        lock.acquire()
    except Timeout:
        raise RunFolderError(
            f"{folder} is being written by {_holder(path)}; wait until it has ended, or stop it (it saves first), and "
            f"go on with `lite-selfplay train --resume {folder}{again}`"
        ) from None
    except OSError as error:
        if insist or error.errno not in _NO_LOCKS:
            raise RunFolderError(f"cannot write to {folder}: {LOCK}: {error.strerror or error}") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows removes no open file
            path.unlink()
        lock.release()


def writer(folder: Path) -> str | None:
    """Who writes a run folder right now, as `process 12 on HOST`; None where nobody does. Nothing is written."""
    path = folder / LOCK
    try:  # without waiting, where it is a pipe
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    try:
        return None if lock_descriptor(descriptor, blocking=False) else _holder(path)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _sign(descriptor: int) -> None:
    """Write down who holds the lock, for the others' message; behind the first byte, which Windows lets nobody read."""
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


LAST_LINE = 2**20
"""Bytes at the end of `metrics.jsonl` in which the last step is looked for."""

Stage = Literal["running", "finished", "stopped", "cold start", "not begun", "damaged"]


@dataclass(frozen=True)
class RunState:
    """A run at a glance.

    `step`: how many steps were played, of `steps` that were asked for. `best`: the checkpoint that was measured best,
    in words, empty without one. `size` in bytes, of all files. `resume`: the command that goes on, None where there is
    nothing to go on from or nothing left to do, as after a `cold start` alone. `problem` says why the run is `damaged`.
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
    """A run folder at a glance; a damaged one has a `problem`. Raises RunFolderError where there is no run folder."""
    folder = RunFolder.open(path)
    size = _size(path)
    try:
        config = folder.config()
        last = last_step(path)
        step = 0 if last is None else last["step"]
        found = folder.best()
        best = "" if found is None else f"{percent(found['pass_at_1'])} after {found['step']} steps"
        taught = (path / ENVIRONMENT).exists() and read_json(path / ENVIRONMENT).get("only") == COLD_START
    except LiteSelfPlayError as error:
        return RunState(path, size=size, problem=str(error))
    steps, over = config.run.steps, last is not None and last.get("over") is True
    stage: Stage = "finished" if over or step >= steps else "stopped" if step else "not begun"
    if taught and not step:
        stage = "cold start"
    if writer(path) is not None:
        stage = "running"
    can = stage in ("stopped", "not begun") and any((path / CHECKPOINTS).glob("step-*/manifest.json"))
    resume = folder.resume_command(config.rollouts.again) if can else None
    return RunState(path, config.game.label, config.model.name, step, steps, stage, best, size, resume)


def run_folders(folder: Path) -> list[Path]:
    """The run folders in a folder, or the folder itself where it is one, oldest first.

    Raises RunFolderError where there is no such folder, or it may not be read.
    """
    with failing_as(RunFolderError, f"cannot read {folder}"):
        if (folder / CONFIG).is_file():
            return [folder]
        found = [path for path in folder.iterdir() if (path / CONFIG).is_file()]
        return sorted(found, key=lambda path: ((path / CONFIG).stat().st_mtime, path.name))


def last_step(path: Path) -> dict[str, Any] | None:
    """The last whole line of a run's `metrics.jsonl`, None without one. Raises RunFolderError where it is damaged."""
    file = path / METRICS
    if not file.exists():
        return None
    with open_file(file, RunFolderError) as opened:
        opened.seek(max(0, opened.seek(0, 2) - LAST_LINE))
        lines = opened.read(LAST_LINE).split(b"\n")[:-1]  # what stands behind the last line end was cut short
    if not lines:
        return None
    row = parse_object(lines[-1], f"{file}, its last line")
    if type(row.get("step")) is not int:
        raise RunFolderError(f"{file}, its last line: does not say which step it is of")
    return row


def _size(path: Path) -> int:
    """Bytes of all files in a folder, links apart; one that goes away meanwhile does not count."""
    total = 0
    for place, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total
