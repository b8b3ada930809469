"""Loading tasks from the argument of `--tasks`: a file of problems, a name with options, or your own function."""

import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from lite_selfplay.config.user_files import data_of, file_of, guarded, load, options_of, require_file
from lite_selfplay.errors import TaskError
from lite_selfplay.scan import Registry
from lite_selfplay.tasks.benchmarks import BENCHMARKS, benchmark_maker
from lite_selfplay.tasks.files import parse_object
from lite_selfplay.tasks.hub_data import FILES, folder_of_data, hub_task, no_file
from lite_selfplay.tasks.jsonl import read_jsonl, task_of
from lite_selfplay.tasks.procedural import refuse_unknown
from lite_selfplay.tasks.task import Task
from lite_selfplay.verify.programs import failing_solutions, require_failing

Maker = Callable[..., Task]
"""Makes a task, as `maker(seed, held_out, **options)`; options are texts.

`held_out` asks for problems that training never sees. A maker of a `procedural` task must keep the two sides apart, as
`lite_selfplay.tasks.procedural.Procedural` does; from other tasks the library removes the held-out problems.
"""

TASKS = Registry[Maker](
    "task",
    {
        "arithmetic": "tasks.arithmetic:arithmetic",
        "code-arithmetic": "tasks.code_arithmetic:code_arithmetic",
        "equations": "tasks.arithmetic:equations",
        "hub": "tasks.hub_data:hub_task",
        "letters": "tasks.procedural:letters",
        "multiplication": "tasks.arithmetic:multiplication",
        "reasoning-gym": "extras.gym:reasoning_gym",
        "stories": "tasks.arithmetic:stories",
    },
    error=TaskError,
)
for _name in BENCHMARKS:
    TASKS.add(_name, benchmark_maker(_name))

# The files in a run folder with problems that were given as objects, by key; until then they are JSON lines. All have
# one name, which is that of the task, so that a resume draws the same problems.
OBJECTS = {
    "tasks.train": "tasks.jsonl",
    "tasks.validation": "validation/tasks.jsonl",
    "tasks.solutions": "solutions/tasks.jsonl",
    "eval.tasks": "held_out/tasks.jsonl",
    "cold_start.tasks": "cold_start/tasks.jsonl",
}
# The tasks that read from the folder of downloaded data.
_OF_DATA = {"hub", *BENCHMARKS}


def register_task(name: str, maker: Maker) -> None:
    """Register a task under a name. Raises TaskError if another task has that name, or the name is not valid.

    A redefined function, from running its cell or file again, replaces the old one.
    """
    if not re.fullmatch(r"[\w-]+", name):
        raise TaskError(f"a task's name may have only letters, digits, _ and -, got {name!r}")
    TASKS.add(name, maker)


def task_names() -> list[str]:
    """The tasks that need no file: the library's, and those registered in this process."""
    return sorted(TASKS.names())


def task_about(name: str) -> str:
    """One sentence about a task's problems: the first line of its maker's docstring. Raises UnknownNameError, or
    ConfigError if there is no such function."""
    return (_maker(name).__doc__ or "").strip().partition("\n")[0]


def _maker(spec: str) -> Maker:
    """The maker of a user's own task, or of one registered by name."""
    if file_of(spec) is not None:
        return load(spec, "--tasks", "function", options=True)
    name = spec.partition(":")[0]
    if name in FILES and name not in TASKS.known:
        raise no_file(name, folder_of_data(None))
    return TASKS.find(name, "A file must end in .jsonl, .json, .csv, .tsv or .parquet; FILE.py:FUNCTION is your own.")


def is_data(spec: str) -> bool:
    """Whether a task is a data set of the hub, given by a benchmark's name or as `hub:NAME`."""
    return file_of(spec) is None and not _is_file(spec) and spec.partition(":")[0] in _OF_DATA


def split_specs(text: str) -> list[str]:
    """Split a comma-separated list of tasks: `svamp,letters:named=10,of=26,gsm8k` are three.

    An item `KEY=VALUE` without a colon before the `=` is an option of the task before it. The name of an existing file
    is one task, commas or not. Raises TaskError for a list without a task, or with an empty item.
    """
    if os.path.isfile(text):
        return [text]
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise TaskError(f"an empty task in {text!r}: tasks are separated by single commas")
    return re.split(r",(?![^,:=]*=)", ",".join(items))


def load_task(spec: str, *, seed: int = 0, held_out: bool = False, data_dir: str | None = None) -> Task:
    """A task from the argument of `--tasks`: a file or a saved data set (`lite_selfplay.tasks.files.read_rows`),
    followed by `:problem=COLUMN,answer=COLUMN` if its columns have other names (see `hub_task`); a name with options
    (`letters:named=10`); or your own function, `FILE.py:FUNCTION` (see `Maker`), which may be followed by options as
    well.

    A task given by name has problems for training or, with `held_out`, problems that training never sees, even with
    another seed or other options. A file has all its rows either way. `data_dir` is the folder of downloaded data for a
    spec that names none itself (None: `$LITE_SELFPLAY_DATA`).
    Raises TaskError for a missing or malformed file, with the line, and for options that are invalid or allow too few
    different problems; UnknownNameError with similar names; ConfigError if there is no such function. Problems of
    programs whose own solution fails their tests are left out, and counted in the task's `caution`, unless they are
    generated; if most solutions fail, TaskError is raised.
    """
    task = _loaded(spec, seed, held_out, data_dir)
    failing, tried = failing_solutions(task.problems) if isinstance(task.problems, list | tuple) else ({}, 0)
    if not failing:
        return task
    examples = "; ".join(f"{task.problems[index].id}: {why}" for index, why in [*failing.items()][:2])
    said = f"{len(failing)} of {tried} solutions in {task.origin or task.name} fail the tests of their own problems"
    if 2 * len(failing) > tried:
        raise TaskError(f"{said}, so right programs would be judged wrong: {examples}")
    rest = [problem for index, problem in enumerate(task.problems) if index not in failing]
    caution = f"{said}, which are left out: {examples}"
    return replace(task, problems=rest, caution="; ".join(filter(None, [task.caution, caution])))


def _loaded(spec: str, seed: int, held_out: bool, data_dir: str | None) -> Task:
    name, _, options = spec.partition(":")
    if spec.startswith("{"):
        file = OBJECTS["tasks.train"]
        named = ((f"{file}, line {number}", line) for number, line in enumerate(spec.split("\n"), 1))
        rows = ((where, parse_object(line.encode(), where, TaskError)) for where, line in named)
        return task_of(rows, file, Path(file).stem)
    if file_of(spec) is not None:
        return _made(_maker(spec), spec, seed, held_out, _options(options_of(spec)))
    if (mapped := data_of(spec)) is not None and mapped[0] != spec:
        if not os.path.isdir(mapped[0]):
            require_file(Path(mapped[0]), TaskError)
        return _made(partial(hub_task, dataset=mapped[0]), spec, seed, held_out, _options(mapped[1]))
    if _is_file(spec) and not os.path.exists(spec) and re.fullmatch(r"[\w-]+/[\w-]+", spec):
        own = [f"`{known}`" for known, benchmark in BENCHMARKS.items() if benchmark.hub.lower() == spec.lower()]
        raise TaskError(f"no task file at {spec}: did you mean {' or '.join([*own, f'`hub:{spec}`'])}?")
    if _is_file(spec):
        return read_jsonl(Path(spec))
    maker = _maker(name)
    # For a task that takes a data set, the first option is the data set's name without a key.
    given = f"dataset={options}" if "dataset" in inspect.signature(maker).parameters else options
    beside = {"data_dir": data_dir} if data_dir is not None and name in _OF_DATA else {}
    return _made(maker, name, seed, held_out, beside | _options(given))


def _is_file(spec: str) -> bool:
    slashed = "/" in spec and spec.partition(":")[0] not in TASKS.known
    return data_of(spec) is not None or slashed or os.path.isfile(spec)


def _made(maker: Maker, name: str, seed: int, held_out: bool, options: Mapping[str, str]) -> Task:
    """The task of a maker. Options that allow no problem are refused here, not in the middle of a run."""
    signature = inspect.signature(maker)
    try:
        if not any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values()):
            refuse_unknown(name, options, list(signature.parameters)[2:])
        signature.bind(seed, held_out, **options)
    except TypeError as error:
        raise TaskError(f"the task {name} is called with (seed, held_out, **options): {error}") from None
    with guarded(f"the task {name}", TaskError, failed="cannot be made:"):
        task = maker(seed, held_out, **options)
        if not isinstance(task, Task):
            raise TaskError(f"the task {name} made a {type(task).__name__}, not a Task")
        if not task.problems:
            raise TaskError(f"the task {name} holds no problem")
        _ = task.problems[0]
    if isinstance(task.problems, list | tuple):  # others are generated on demand
        require_failing((f"{task.origin or name}, problem {problem.id}", problem) for problem in task.problems)
    return task


def _options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise TaskError(f"options of a task are KEY=VALUE, as in letters:named=10, got {item!r}")
        if key in options:
            raise TaskError(f"the option {key!r} of a task is given twice")
        options[key] = value
    return options
