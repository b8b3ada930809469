"""Data sets of the hub: from a folder of downloaded data if one is given, else over the network.

The folder has our JSONL files (`gsm8k_test.jsonl`) or copies of the hub's repositories (`openai/gsm8k/`, as written by
`hf download --local-dir`). No code of a data set is executed.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, TypeVar

from lite_selfplay.config.user_files import data_of
from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks.columns import KINDS, Columns, options_in
from lite_selfplay.tasks.files import read_rows
from lite_selfplay.tasks.jsonl import task_of
from lite_selfplay.tasks.split import fingerprint
from lite_selfplay.tasks.task import Task

DATA_VARIABLE = "LITE_SELFPLAY_DATA"  # the environment variable that names the folder of downloaded data

# Data sets that experiments read from a file of this name, and where to get each.
FILES = {
    "processbench": "https://huggingface.co/datasets/Qwen/ProcessBench",
    "prm800k": "https://github.com/openai/prm800k",
    "deltabench": "https://github.com/OpenStellarTeam/DeltaBench",
}
ASK_AGAIN_S = 60.0  # seconds after which to check again whether the hub is reachable
# When each hub was checked, on the monotonic clock, and why it was unreachable (None: it answered).
_answers: dict[str, tuple[float, str | None]] = {}

T = TypeVar("T")
Rows = Iterable[tuple[str, dict[str, Any]]]
"""(name in errors, row) of each row; a name is `gsm8k_test.jsonl, line 3`."""


@dataclass(frozen=True)
class HubData:
    """A split of a data set of the hub; `split` may join several with `+`. The default `revision` is the newest."""

    hub: str
    split: str
    config: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        which = ", ".join(part for part in (self.config, self.split) if part)
        return f"{self.hub}{f'@{self.revision[:12]}' if self.revision else ''} ({which})"


def read_data(
    data: HubData, columns: set[str], files: Sequence[str] = (), data_folder: str | Path | None = None
) -> tuple[str, Rows]:
    """(where a split was found, its rows with only these columns).

    Looks first in the folder (`in_folder`), then on the hub with its local cache, or in the cache only if the hub does
    not answer within a few seconds. If the split is not found, raises TaskError with what to do.
    """
    path = in_folder(data, files, data_folder)
    if path is None:
        return str(data), _of_hub(data, columns, files, folder_of_data(data_folder))
    if path.is_dir():
        found = path.relative_to(folder_of_data(data_folder) or path)
        return f"{found} ({data.split})", _of_copy(path, data, columns)
    return path.name, read_rows(path, TaskError)


def in_folder(data: HubData, files: Sequence[str], data_folder: str | Path | None = None) -> Path | None:
    """The path of a split in a folder of downloaded data (by default `$LITE_SELFPLAY_DATA`): one of `files` (names of
    JSONL files), or a copy of its repository in `owner/name` or `name`. Raises TaskError if the folder is missing.
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
    """Why the hub is unreachable, as a clause; None if it answers. Checked at most once a minute, with a timeout of
    `HF_HUB_ETAG_TIMEOUT` seconds (4 unless set): the hub's own library would retry for half a minute."""
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
    """The timeout of the hub's first answer, in seconds."""
    return float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or 4.0)


def within(seconds: float, call: Callable[[], T]) -> T:
    """The result or error of `call`, or TimeoutError after `seconds`; the call then continues in a daemon thread,
    because a DNS look-up cannot be interrupted."""
    pool = ThreadPool(1)
    answer = pool.apply_async(call)
    pool.close()
    answer.wait(seconds)
    if not answer.ready():
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answer.get()


def _of_copy(folder: Path, data: HubData, columns: set[str]) -> Rows:
    """The rows of a copy of a repository, streamed from its files, since a cache could be older."""
    why = f"cannot read the copy of a data set in {folder}"
    parts = (streamed(str(folder), data.config, split, why) for split in data.split.split("+"))
    return (
        (f"{data.hub}, row {number}", {name: value for name, value in row.items() if name in columns})
        for number, row in enumerate(chain.from_iterable(parts), 1)
    )


def streamed(place: str, config: str | None, split: str, failed: str) -> Iterator[dict[str, Any]]:
    """The rows of a split, as they are read. Raises TaskError, beginning with `failed`."""
    from datasets import load_dataset

    try:
        yield from load_dataset(place, config, split=split, streaming=True)
    except Exception as error:  # the hub's library raises its own errors, its HTTP client's, pyarrow's and the system's
        raise TaskError(f"{failed}: {reason_of(error)}") from None


def _of_hub(data: HubData, columns: set[str], files: Sequence[str], folder: Path | None) -> Rows:
    from datasets import load_dataset

    why = hub_problem()
    try:
        with _cache_alone() if why else contextlib.nullcontext():
            found = load_dataset(data.hub, data.config, split=data.split, revision=data.revision)
        found = found.select_columns([name for name in found.column_names if name in columns])
    except Exception as error:  # the hub's library raises its own errors, its HTTP client's and the system's
        wanted = " or ".join([*(f"{name}.jsonl" for name in files), f"{data.hub}/"])
        looked = f"not in {folder}" if folder else "and no folder of data is given"
        raise TaskError(
            f"cannot get {data} from the hub ({why or reason_of(error)}), {looked}. Put {wanted} into a folder and "
            f"name it with --data-dir or {DATA_VARIABLE}; if there is a network: hf download --repo-type dataset "
            f"{data.hub} --local-dir FOLDER/{data.hub} (log in with hf auth login and accept its terms if the data set "
            "requires it)"
        ) from None
    return ((f"{data.hub}, row {number}", row) for number, row in enumerate(found, 1))


@contextlib.contextmanager
def _cache_alone() -> Iterator[None]:
    """A context in which the hub's libraries use only their cache."""
    from datasets import config
    from huggingface_hub import constants

    before = config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    try:
        config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
        yield
    finally:
        config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def reason_of(error: Exception) -> str:
    """The first line of an error's message, shortened."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def no_file(name: str, folder: Path | None) -> TaskError:
    """The error for a missing file of one of `FILES`."""
    looked = f"which is not in {folder}" if folder else "and no folder of data is given"
    return TaskError(
        f"{name} is read from the file {name}.jsonl, {looked}. Download it from {FILES[name]}, put it into a folder "
        f"and name that with --data-dir or {DATA_VARIABLE}"
    )


def require_fingerprint(name: str, problems: Sequence[Problem], wanted: str) -> None:
    """Raises TaskError unless the problems' fingerprint begins with `wanted`, 8 hexadecimal digits at least. An empty
    text pins nothing."""
    found = fingerprint(problems) if wanted else ""
    if 0 < len(wanted) < 8 or not found.startswith(wanted.lower()):
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
    kind: str = "",
    config: str = "",
    revision: str = "",
    sha256: str = "",
    data_dir: str = "",
) -> Task:
    """`hub:OWNER/NAME[:SPLIT]`, or a file by its path: any data set, with a map of its columns as options (`Columns`).

    Several columns are joined with `+`: `hub:me/sums:test,problem=Body+Question,answer=Answer,kind=number`. Without
    `problem`, the column is `problem`, `question` or `prompt`. `kind` is by default `choice` with `options`, else
    `expression`. `sha256` pins the problems by their fingerprint. `held_out` is ignored: all rows are returned. Raises
    TaskError if anything cannot be found or read.
    """
    is_file = os.path.isfile(dataset) or data_of(dataset) is not None
    hub, _, split = (dataset, "", "") if is_file else dataset.partition(":")
    if not hub:
        raise TaskError("hub needs the name of a data set, as in hub:openai/gsm8k:test,config=main")
    kind = kind or ("choice" if options else "expression")
    if kind not in KINDS or (options and kind != "choice"):
        kinds = "choice with options" if options else f"one of {', '.join(KINDS)}"
        raise TaskError(f"hub:kind must be {kinds}, got {kind!r}")
    columns = Columns(_names(problem), answer, _names(options), id, solution, _names(keep))
    origin, rows = (
        (Path(dataset).name, read_rows(Path(dataset), TaskError))
        if is_file
        else read_data(HubData(hub, split or "train", config or None, revision or None), columns.names, (), data_dir)
    )
    given = [*rows]
    unmapped = options_in([row for _, row in given]) if is_file and not options and kind != "program" else []
    if unmapped or (kind == "choice" and not options):
        raise TaskError(f"{dataset}: map its options: kind=choice,options={'+'.join(unmapped) or 'COLUMN[+COLUMN]'}")
    stem = Path(dataset).stem if is_file else hub.rpartition("/")[2]
    task = task_of(columns.rows_of(given, kind), origin, stem, columns.options, kind)
    require_fingerprint(f"hub:{dataset}", task.problems, sha256)
    return task if is_file else replace(task, name=f"hub:{dataset}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split("+")) if text else ()
