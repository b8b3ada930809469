"""Benchmarks of programs by name: where each one's data lies on the hub, and how its rows say what is tested.

Columns, splits, sizes and licences are those that the hub's data cards state (docs/benchmarks.md). Rows are read, and
nothing in them is run before a program is tested with it, in the sandbox.
"""

import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks.base import Task
from lite_selfplay.tasks.hub import HubData, read_data, require_fingerprint
from lite_selfplay.tasks.procedural import refuse_unknown
from lite_selfplay.tasks.programs import program_problem

Row = Mapping[str, Any]
Reader = Callable[[Row, str], tuple[str, Any, Mapping[str, Any]]]
"""From a row, and what names it in an error: the statement, the tests, and what else is kept (`solution`)."""

_MOST_UNPACKED = 64 * 2**20
"""Bytes of a row's packed tests."""

_ARRAYS = """
import sys, types
numpy = types.ModuleType("numpy")
class ndarray: pass
def flat(x):
    return [z for y in x for z in flat(y)] if isinstance(x, (list, tuple)) else [x]
def allclose(a, b, rtol=1e-05, atol=1e-08):
    a, b = flat(a), flat(b)
    return len(a) == len(b) and all(x == y or abs(x - y) <= atol + rtol * abs(y) for x, y in zip(a, b))
numpy.ndarray, numpy.allclose, numpy.float64, numpy.float32, numpy.inf = ndarray, allclose, float, float, float("inf")
sys.modules["numpy"] = numpy
"""
"""The two names of numpy that EvalPlus' tests use: there is no other package in a sandbox."""


@dataclass(frozen=True)
class CodeBenchmark:
    """A data set of programs to measure on.

    `split` is evaluated, `train` learned from; without `train`, all rows serve both. `read` reads a row. `columns` are
    those that it needs, and `optional` others that it uses. `select` is a column that the option `difficulty` selects
    by, and its default.
    """

    hub: str
    split: str
    read: Reader
    columns: tuple[str, ...]
    licence: str
    size: int
    config: str | None = None
    train: str | None = None
    optional: tuple[str, ...] = ()
    max_completion_tokens: int = 1024
    select: tuple[str, str] | None = None


def _humaneval(row: Row, where: str) -> tuple[str, Any, Mapping[str, Any]]:
    """`check(candidate)` over a function whose head and docstring are given."""
    name, stub, test = _texts(row, ("entry_point", "prompt", "test"), where)
    statement = f"Complete this Python function:\n\n```python\n{stub.strip()}\n```"
    setup = stub if "import numpy" not in test else f"{_ARRAYS}\n{stub}"
    tests = {"test": f"{test}\n\ncheck({name})\n", "function": name, "stub": stub, "setup": setup}
    solution = row.get("canonical_solution")
    return statement, tests, {"solution": f"{stub}{solution}"} if isinstance(solution, str) else {}


def _mbpp(row: Row, where: str) -> tuple[str, Any, Mapping[str, Any]]:
    """A list of assertions, which are a part of what is asked: they say the function's name and its arguments."""
    text = row.get("text") or row.get("prompt")
    asserted = row.get("test_list")
    if not isinstance(text, str) or not isinstance(asserted, list) or not all(isinstance(x, str) for x in asserted):
        raise TaskError(f"{where}: needs 'text' or 'prompt', and 'test_list' of texts")
    imports = row.get("test_imports") or []
    setup = "\n".join([*imports, row.get("test_setup_code") or ""])
    statement = f"{text.strip()}\n\nThe program must pass these tests:\n\n" + "\n".join(asserted)
    tests: dict[str, Any] = {"tests": [*asserted, *(row.get("challenge_test_list") or [])], "setup": setup}
    if isinstance(row.get("test"), str):  # EvalPlus: one text with many more
        tests = {"tests": [row["test"]], "setup": f"{_ARRAYS}\n{setup}"}
    code = row.get("code")
    return statement, tests, {"solution": code} if isinstance(code, str) else {}


def _codecontests(row: Row, where: str) -> tuple[str, Any, Mapping[str, Any]]:
    """Public and private tests of stdin and stdout."""
    (statement,) = _texts(row, ("description",), where)
    tests = []
    for column in ("public_tests", "private_tests"):
        found = row.get(column) or {}
        if not isinstance(found, Mapping):
            raise TaskError(f"{where}: {column!r} must hold 'input' and 'output'")
        inputs, outputs = found.get("input") or [], found.get("output") or []
        if len(inputs) != len(outputs):
            raise TaskError(f"{where}: {column!r} has {len(inputs)} inputs and {len(outputs)} outputs")
        tests += [list(pair) for pair in zip(inputs, outputs, strict=True)]
    return statement, tests, {}


def _livecodebench(row: Row, where: str) -> tuple[str, Any, Mapping[str, Any]]:
    """Public tests as JSON, private ones as JSON or packed; of a function, arguments are JSON, a line each."""
    (statement,) = _texts(row, ("question_content",), where)
    found = [*_listed(row["public_test_cases"], where), *_listed(_unpacked(row["private_test_cases"], where), where)]
    starter = row.get("starter_code")
    if isinstance(starter, str) and starter.strip():
        statement += f"\n\nBegin with:\n\n```python\n{starter.rstrip()}\n```"
    metadata = row.get("metadata") or {}
    metadata = _json(metadata, where) if isinstance(metadata, str) else metadata
    function = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    if any(each.get("testtype") == "functional" for each in found):
        if not isinstance(function, str):
            raise TaskError(f"{where}: tests of a function, and no 'func_name' in 'metadata'")
        calls = [
            {
                "function": function,
                "arguments": [_json(line, where) for line in str(each["input"]).splitlines() if line.strip()],
                "expected": _json(each["output"], where),
            }
            for each in found
        ]
        return statement, calls, {}
    return statement, [[each.get("input"), each.get("output")] for each in found], {}


def _apps(row: Row, where: str) -> tuple[str, Any, Mapping[str, Any]]:
    """`input_output` with inputs and outputs; of a function with `fn_name`, arguments in a list."""
    (statement,) = _texts(row, ("question",), where)
    tests = row["input_output"]
    tests = dict(_json(tests, where)) if isinstance(tests, str) else dict(tests)
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if tests.get("fn_name") and isinstance(outputs, list):  # some rows have each result in a list of its own
        tests["outputs"] = [each[0] if isinstance(each, list) and len(each) == 1 else each for each in outputs]
    elif isinstance(inputs, list) and isinstance(outputs, list):
        tests = {"inputs": [_joined(each) for each in inputs], "outputs": [_joined(each) for each in outputs]}
    starter = row.get("starter_code")
    if isinstance(starter, str) and starter.strip():
        statement += f"\n\nBegin with:\n\n```python\n{starter.rstrip()}\n```"
    solutions = row.get("solutions")
    solutions = _json(solutions, where) if isinstance(solutions, str) and solutions.strip() else solutions
    first = solutions[0] if isinstance(solutions, list) and solutions else None
    return statement, tests, {"solution": first} if isinstance(first, str) else {}


CODE_BENCHMARKS: dict[str, CodeBenchmark] = {
    "humaneval": CodeBenchmark(
        "openai/openai_humaneval", "test", _humaneval, ("prompt", "entry_point", "test"), "MIT", 164,
        optional=("task_id", "canonical_solution"), max_completion_tokens=512,
    ),
    "humanevalplus": CodeBenchmark(
        "evalplus/humanevalplus", "test", _humaneval, ("prompt", "entry_point", "test"), "Apache-2.0", 164,
        optional=("task_id", "canonical_solution"), max_completion_tokens=512,
    ),
    "mbpp": CodeBenchmark(
        "google-research-datasets/mbpp", "test", _mbpp, ("test_list",), "CC-BY-4.0", 500, config="full", train="train",
        optional=("task_id", "text", "prompt", "code", "test_setup_code", "test_imports", "challenge_test_list"),
        max_completion_tokens=512,
    ),
    "mbppplus": CodeBenchmark(
        "evalplus/mbppplus", "test", _mbpp, ("prompt", "test_list", "test"), "Apache-2.0", 378,
        optional=("task_id", "code", "test_imports"), max_completion_tokens=512,
    ),
    "codecontests": CodeBenchmark(
        "deepmind/code_contests", "test", _codecontests, ("description", "public_tests", "private_tests"),
        "CC-BY-4.0", 165, train="train", optional=("name", "difficulty"), max_completion_tokens=4096,
        select=("difficulty", "1"),
    ),
    "livecodebench": CodeBenchmark(
        "livecodebench/code_generation_lite", "test", _livecodebench,
        ("question_content", "public_test_cases", "private_test_cases"), "CC", 1055,
        optional=("question_id", "starter_code", "metadata", "difficulty"), max_completion_tokens=4096,
        select=("difficulty", "all"),
    ),
    "apps": CodeBenchmark(
        "codeparrot/apps", "test", _apps, ("question", "input_output"), "MIT", 5000, train="train",
        optional=("problem_id", "solutions", "starter_code", "difficulty"), max_completion_tokens=2048,
        select=("difficulty", "introductory"),
    ),
}  # fmt: skip

_OPTIONS = ("config", "split", "revision", "sha256", "data_dir")
_IDS = ("id", "task_id", "name", "question_id", "problem_id")
_EASY = {"easy": "1", "medium": "2", "hard": "3"}
"""CodeContests numbers its difficulties, of which the first is easy."""


def load_code_benchmark(name: str, held_out: bool = True, **options: str) -> Task:
    """A benchmark's problems: its evaluation split with `held_out`, else its training split.

    Options: `config`, `split`, `revision`, `sha256`, `data_dir` as of other benchmarks; `difficulty` of CodeContests
    (`easy` by default), APPS (`introductory`) and LiveCodeBench, or `all`. Rows without tests are passed over. Raises
    TaskError where the data cannot be had or read.
    """
    known = CODE_BENCHMARKS[name]
    refuse_unknown(name, options, (*_OPTIONS, *(["difficulty"] if known.select else [])))
    split = options.get("split") or (known.split if held_out else known.train or known.split)
    data = HubData(known.hub, split, options.get("config") or known.config, options.get("revision"))
    files = () if "config" in options or "revision" in options else (f"{name}_{split}", name)
    used = {*known.columns, *known.optional, "id"}
    origin, rows = read_data(data, used, files, options.get("data_dir"))
    wanted = options.get("difficulty") or (known.select[1] if known.select else "all")
    problems = [
        problem
        for number, (where, row) in enumerate(rows, 1)
        if _is_wanted(row, known, wanted)
        if (problem := _problem(known, row, where, f"{name}-{number}")) is not None
    ]
    if not problems:
        raise TaskError(f"{name} holds no problem: {origin} has none that fits (difficulty={wanted})")
    if pin := options.get("sha256"):
        require_fingerprint(name, problems, pin)
    return Task(name, problems, known.max_completion_tokens, origin=origin)


def _is_wanted(row: Row, known: CodeBenchmark, wanted: str) -> bool:
    if known.select is None or wanted == "all" or known.select[0] not in row:
        return True
    found = str(row[known.select[0]]).strip().lower()
    return _EASY.get(found, found) == _EASY.get(wanted.lower(), wanted.lower())


def _problem(known: CodeBenchmark, row: Row, where: str, default: str) -> Problem | None:
    missing = next((column for column in known.columns if row.get(column) is None), None)
    if missing is not None:
        raise TaskError(f"{where}: no column {missing!r} among {', '.join(row) or 'none'}")
    if known.read is _apps and not row["input_output"]:
        return None
    try:
        statement, tests, extra = known.read(row, where)
    except TaskError:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise TaskError(f"{where}: not a row of this benchmark ({type(error).__name__}: {error})") from None
    if not tests:
        return None
    name = next((str(row[key]) for key in _IDS if row.get(key) is not None), default)
    return program_problem(name, statement, tests, where, extra)


def _texts(row: Row, columns: tuple[str, ...], where: str) -> list[str]:
    found = [row[column] for column in columns]
    if not all(isinstance(text, str) and text.strip() for text in found):
        raise TaskError(f"{where}: {' and '.join(columns)} must be texts with something in them")
    return found


def _json(text: Any, where: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise TaskError(f"{where}: a column that should hold JSON does not") from None


def _listed(value: Any, where: str) -> list[Any]:
    found = _json(value, where) if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise TaskError(f"{where}: tests must be a list of objects with input and output")
    return found


def _joined(value: Any) -> Any:
    return "\n".join(map(str, value)) if isinstance(value, list) else value


class _TextAlone(pickle.Unpickler):
    """Reads a pickled text, and nothing that names a class: unpickling one could run anything."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is no text")


def _unpacked(value: Any, where: str) -> Any:
    """Private tests that are packed (pickled, zlib, base64) to keep them out of searches; JSON is left as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] in ("[", "{", ""):
        return value
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(value), _MOST_UNPACKED)
        if unpacker.unconsumed_tail:
            raise TaskError(f"{where}: private tests of more than {_MOST_UNPACKED >> 20} MiB")
        return _TextAlone(io.BytesIO(data)).load()
    except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, ValueError, LookupError) as error:
        raise TaskError(f"{where}: private tests that cannot be unpacked ({type(error).__name__})") from None


def _maker(name: str) -> Callable[..., Task]:
    def make(seed: int = 0, held_out: bool = False, /, **options: str) -> Task:
        return load_code_benchmark(name, held_out, **options)

    data = CODE_BENCHMARKS[name]
    make.__doc__ = f"The benchmark {data.hub} of the hub: {data.size:,} problems, answered by a program."
    return make


CODE_MAKERS: dict[str, Callable[..., Task]] = {name: _maker(name) for name in CODE_BENCHMARKS}
"""Tasks by name, as the registry of tasks takes them."""
