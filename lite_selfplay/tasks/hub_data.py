"""Data sets of the hub: from a folder of downloaded data where one is given, else over the network.

A folder holds our JSONL files (`gsm8k_test.jsonl`) or copies of the hub's own repositories (`openai/gsm8k/`, as
`hf download --local-dir` leaves them). Nothing of a data set is executed.
"""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks.columns import KINDS, Columns, problem_of_row
from lite_selfplay.tasks.files import read_object_lines, read_rows
from lite_selfplay.tasks.split import fingerprint
from lite_selfplay.tasks.task import Task

DATA_VARIABLE = "LITE_SELFPLAY_DATA"
"""The environment variable that names the folder of downloaded data."""

FILES = {
    "processbench": "https://huggingface.co/datasets/Qwen/ProcessBench",
    "prm800k": "https://github.com/openai/prm800k",
    "deltabench": "https://github.com/OpenStellarTeam/DeltaBench",
}
"""Sets that experiments read from a file of this name, and where each is to be had."""

ASK_AGAIN_S = 60.0
"""Seconds for which what was found of the hub holds."""
# When each hub was asked, by the clock, and why it did not answer.
_answers: dict[str, tuple[float, str | None]] = {}

T = TypeVar("T")
Rows = Iterable[tuple[str, dict[str, Any]]]
"""Rows, each after what names it in an error: `gsm8k_test.jsonl, line 3`."""


@dataclass(frozen=True)
class HubData:
    """A split of a data set of the hub; `split` may join several with `+`. Without `revision`, the newest."""

    hub: str
    split: str
    config: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        place = ", ".join(part for part in (self.config, self.split) if part)
        return f"{self.hub}{f'@{self.revision[:12]}' if self.revision else ''} ({place})"


def read_data(
    data: HubData, columns: set[str], files: Sequence[str] = (), data_folder: str | Path | None = None
) -> tuple[str, Rows]:
    """Where a split was found, and its rows with these columns alone.

    Looked for, in this order: what `in_folder` finds; the hub, or its cache on this machine, which alone is asked where
    the hub does not answer in a few seconds. Raises TaskError, saying what to do, where it is nowhere.
    """
    place = in_folder(data, files, data_folder)
    if place is None:
        return str(data), _of_hub(data, columns, lambda why: _nowhere(data, files, folder_of_data(data_folder), why))
    if place.is_dir():
        return f"{place.relative_to(folder_of_data(data_folder) or place)} ({data.split})", _of_copy(
            place, data, columns
        )
    rows = ((f"{place}, line {number}", row) for number, row in read_object_lines(place, TaskError))
    return place.name, rows


def in_folder(data: HubData, files: Sequence[str], data_folder: str | Path | None = None) -> Path | None:
    """Where a folder of downloaded data (by default `$LITE_SELFPLAY_DATA`) holds a split: as one of `files` (names of
    JSONL files), or as a copy of its repository in `owner/name` or `name`. Raises TaskError where there is no folder.
    """
    folder = folder_of_data(data_folder)
    if folder is None:
        return None
    if not os.path.isdir(folder):
        raise TaskError(f"no folder of data at {folder} (--data-dir, {DATA_VARIABLE})")
    lines = [path for path in (folder / f"{name}.jsonl" for name in files) if os.path.lexists(path)]
    copies = [path for path in (folder / data.hub, folder / data.hub.rpartition("/")[2]) if os.path.isdir(path)]
    return next(iter([*lines, *copies]), None)


def folder_of_data(given: str | Path | None) -> Path | None:
    """The folder of downloaded data: the one given, else `$LITE_SELFPLAY_DATA`, if any."""
    given = given or os.environ.get(DATA_VARIABLE)
    return Path(given) if given else None


def hub_problem() -> str | None:
    """Why the hub cannot be asked, a clause; None where it answers. It is waited for once a minute, for
    `HF_HUB_ETAG_TIMEOUT` seconds (4 unless set), where the library underneath would try again for half a minute."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE forbids asking the hub"
    asked, why = _answers.get(constants.ENDPOINT, (-ASK_AGAIN_S, None))
    if time.monotonic() - asked >= ASK_AGAIN_S:
        try:
            within(deadline(), lambda: get_session().head(constants.ENDPOINT, timeout=deadline()))
            why = None
        except Exception as error:  # of httpx, of the system's sockets, or of whatever a proxy is reached with
            why = f"the hub could not be reached ({reason_of(error)})"
        _answers[constants.ENDPOINT] = time.monotonic(), why
    return why


def deadline() -> float:
    """Seconds that the hub has for its first answer."""
    return float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or 4.0)


def within(seconds: float, call: Callable[[], T]) -> T:
    """What `call` returns or raises; `TimeoutError` after `seconds`, leaving it behind in its daemon thread: looking up
    a name takes as long as the resolver likes."""
    box: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            box.put((call(), None))
        except Exception as error:  # Handed over and raised in the caller's thread.
            box.put((None, error))

    threading.Thread(target=work, daemon=True, name="hub-look-up").start()
    try:
        value, error = box.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return value


def _of_copy(place: Path, data: HubData, columns: set[str]) -> Rows:
    """The rows of a copy of a repository, streamed from its files: a cache of a folder outlives its change."""
    from datasets import load_dataset

    number = 0
    try:
        for split in data.split.split("+"):
            for row in load_dataset(str(place), data.config, split=split, streaming=True):
                number += 1
                yield f"{data.hub}, row {number}", {name: value for name, value in row.items() if name in columns}
    except Exception as error:  # the hub's library raises of its own, of pyarrow and of the operating system
        raise TaskError(f"cannot read the copy of a data set in {place}: {reason_of(error)}") from None


def _of_hub(data: HubData, columns: set[str], failed: Callable[[str], TaskError]) -> Rows:
    from datasets import load_dataset

    why = hub_problem()
    try:
        with _cache_alone() if why else contextlib.nullcontext():
            found = load_dataset(data.hub, data.config, split=data.split, revision=data.revision)
        found = found.select_columns([name for name in found.column_names if name in columns])
    except Exception as error:  # the hub's library raises of its own, of requests and of the operating system
        raise failed(why or reason_of(error)) from None
    return ((f"{data.hub}, row {number}", row) for number, row in enumerate(found, 1))


@contextlib.contextmanager
def _cache_alone() -> Iterator[None]:
    """A context in which the hub's libraries ask their cache and nothing else."""
    from datasets import config
    from huggingface_hub import constants

    places: list[Any] = [config, constants]
    before = [place.HF_HUB_OFFLINE for place in places]
    try:
        for place in places:
            place.HF_HUB_OFFLINE = True
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


def reason_of(error: Exception) -> str:
    """The first line of what an error says, short."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def no_file(name: str, folder: Path | None) -> TaskError:
    """What to do where the file of one of `FILES` is not in a folder of downloaded data, or there is none."""
    looked = f"which is not in {folder}" if folder else "and no folder of data is given"
    return TaskError(
        f"{name} is read from the file {name}.jsonl, {looked}. It is to be had at {FILES[name]}: put it into a folder "
        f"and name that with --data-dir or {DATA_VARIABLE}"
    )


def _nowhere(data: HubData, files: Sequence[str], folder: Path | None, why: str) -> TaskError:
    wanted = " or ".join([*(f"{name}.jsonl" for name in files), f"{data.hub}/"])
    looked = f"not in {folder}" if folder else "and no folder of data is given"
    return TaskError(
        f"the hub does not give {data} ({why}), {looked}. Put {wanted} into a folder and name it with --data-dir or "
        f"{DATA_VARIABLE}; where there is a network: hf download --repo-type dataset {data.hub} "
        f"--local-dir FOLDER/{data.hub} (after hf auth login and its terms, where the data set asks for them)"
    )


def require_fingerprint(name: str, problems: Sequence[Problem], wanted: str) -> None:
    """Raises TaskError unless the problems' fingerprint begins with `wanted`, 8 hexadecimal digits at least."""
    found = fingerprint(problems)
    if len(wanted) < 8 or not found.startswith(wanted.lower()):
        raise TaskError(f"{name} has the fingerprint {found[:16]}..., not {wanted}: these are other problems")


def hub_task(
    seed: int = 0,
    held_out: bool = False,
    /,
    dataset: str = "",
    *,
    problem: str = "",
    answer: str = "answer",
    id: str = "id",
    solution: str = "solution",
    options: str = "",
    keep: str = "",
    kind: str = "expression",
    config: str = "",
    revision: str = "",
    sha256: str = "",
    data_dir: str = "",
) -> Task:
    """`hub:OWNER/NAME[:SPLIT]`, or a file by its path: any data set, with a map of its columns as options (`Columns`).

    Several columns are joined with `+`: `hub:me/sums:test,problem=Body+Question,answer=Answer,kind=number`. Without
    `problem`, the column `problem` or `question`. `sha256` pins the problems by their fingerprint. All rows, whichever
    side is asked for. Raises TaskError for anything that cannot be had or read.
    """
    is_file = os.path.isfile(dataset)
    hub, _, split = (dataset, "", "") if is_file else dataset.partition(":")
    if not hub:
        raise TaskError("hub needs the name of a data set, as in hub:openai/gsm8k:test,config=main")
    if kind not in KINDS:
        raise TaskError(f"hub:kind must be one of {', '.join(KINDS)}, got {kind!r}")
    data = HubData(hub, split or "train", config or None, revision or None)
    maps = [
        Columns(
            (name,) if not problem else tuple(problem.split("+")), answer, _names(options), id, solution, _names(keep)
        )
        for name in ([""] if problem else ["problem", "question"])
    ]
    if is_file:
        origin, hub = Path(dataset).name, Path(dataset).stem
        rows: Rows = ((f"{dataset}, line {number}", row) for number, row in read_rows(Path(dataset), TaskError))
    else:
        origin, rows = read_data(data, {name for columns in maps for name in columns.names}, data_folder=data_dir)
    problems = [
        problem_of_row(
            row,
            next((c for c in maps if not c.missing(row)), maps[0]),
            where,
            f"{hub.rpartition('/')[2]}-{n}",
            kind=kind,
        )
        for n, (where, row) in enumerate(rows, 1)
    ]
    if sha256:
        require_fingerprint(f"hub:{dataset}", problems, sha256)
    return Task(hub if is_file else f"hub:{dataset}", problems, origin=origin)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split("+")) if text else ()
