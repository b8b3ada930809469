"""Benchmarks by name: each with its data set on the hub, the meaning of its columns and its number of samples.

`--eval-tasks` and `eval` use the evaluation split, `--tasks` the training split if there is one. Columns, revisions and
sizes are taken from the hub's data cards and public evaluation code (docs/tasks.md).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.tasks.choices import ADDED
from lite_selfplay.tasks.columns import Columns, Kind
from lite_selfplay.tasks.hub_data import HubData, hub_problem, in_folder, read_data, require_fingerprint
from lite_selfplay.tasks.jsonl import Reader, Row, codecontests, humaneval, mbpp, problems_of, program_row
from lite_selfplay.tasks.procedural import refuse_unknown
from lite_selfplay.tasks.split import content_key
from lite_selfplay.tasks.task import Task, derived_seed

_BINARY = re.compile(r"[\\(\[{$ ]*(?:text|boxed|mathrm)?[{(]*\s*(?:yes|no|true|false)\s*[)}\]$.\\]*", re.IGNORECASE)


@dataclass(frozen=True)
class Benchmark:
    """A data set for evaluation.

    - `split` is for evaluation, `train` for training; without `train`, all rows are for both.
    - `samples`: completions per problem, by default. `size`: rows of the evaluation split as published.
    - `files`: more JSONL files to look for, after `NAME_SPLIT.jsonl` and `NAME.jsonl`.
    - `read`: reads a row of a programming benchmark. Without it, `columns` suffice.
    - `difficulty`: the column that the option `difficulty` filters by, and the option's default: a number, two joined
      by a dash, or `all`; if the default is one of `LEVELS`, their names are allowed as well.
    - `own_split`: how many rows to train on and to hold out, for data with one split. Content alone decides which; rows
      with a binary answer (yes, no, true, false) are dropped. Fewer rows are split in the same proportion.
    """

    hub: str
    split: str
    columns: Columns
    kind: Kind
    licence: str
    size: int
    config: str | None = None
    revision: str | None = None
    train: str | None = None
    samples: int = 1
    max_completion_tokens: int = 2048
    files: tuple[str, ...] = ()
    read: Reader | None = None
    difficulty: tuple[str, str] | None = None
    own_split: tuple[int, int] | None = None

    @property
    def ours(self) -> Columns:
        """The columns of our own JSONL files."""
        options = ("options",) if self.kind == "choice" else ()
        return Columns(keep=self.columns.keep, options=options, alternatives=self.columns.alternatives)


LEVELS = {"easy": "1", "medium": "2", "hard": "3"}  # the difficulties of CodeContests, by its numbers
_NONE = "none stated"
_HUMANEVAL = Columns(("prompt",), "test", id="task_id", solution="canonical_solution", keep=("entry_point",))
_MBPP = Columns(
    (), "test_list", id="task_id", solution="code",
    optional=("text", "prompt", "test_setup_code", "test_imports", "challenge_test_list"),
)  # fmt: skip

BENCHMARKS: dict[str, Benchmark] = {
    "gsm8k": Benchmark(
        "openai/gsm8k", "test", Columns(("question",)), "number", "MIT", 1319, config="main", train="train",
        revision="740312add88f781978c0658806c59bc2815b9866", max_completion_tokens=512,
    ),
    "math500": Benchmark(
        "HuggingFaceH4/MATH-500", "test", Columns(id="unique_id"), "expression", f"{_NONE} (MATH: MIT)", 500,
        revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be", samples=5,
    ),
    "amc": Benchmark(
        "AI-MO/aimo-validation-amc", "train", Columns(), "number", "Apache-2.0", 83,
        revision="69d78a4a2c840e82d69af6bc742bda09005f6316", samples=10,
    ),
    "aime24": Benchmark(
        "HuggingFaceH4/aime_2024", "train", Columns(), "number", _NONE, 30,
        revision="2fe88a2f1091d5048c0f36abc874fb997b3dd99a", samples=32,
    ),
    "aime25": Benchmark(
        "math-ai/aime25", "test", Columns(), "number", _NONE, 30,
        revision="563bb8404243c5f09de6ec262f2db674fe5bce9b", samples=32,
    ),
    "minerva": Benchmark(
        "math-ai/minervamath", "test", Columns(("question",), alternatives=True), "expression", _NONE, 272, samples=6,
    ),
    "olympiadbench": Benchmark(
        "Hothan/OlympiadBench", "train", Columns(("question",), "final_answer"), "expression", "Apache-2.0", 674,
        config="OE_TO_maths_en_COMP", revision="91184b52131e7fc9455fef848035173aea8cc01a", samples=3,
    ),
    "svamp": Benchmark(
        "ChilleD/SVAMP", "train+test", Columns(("Body", "Question"), "Answer", id="ID"), "number", "MIT", 1000,
        revision="5e0bf1e5e7c0e9c4bc39180d224f41f3f801b7ef", max_completion_tokens=256,
    ),
    "mawps": Benchmark(
        "MU-NLPC/Calc-mawps", "test", Columns(("question",), "result"), "number", "MIT", 520, train="train",
        revision="38c10053efeafd20ab6ff4e08c3ec17de26c19b7", max_completion_tokens=256, files=("mawps_singleop",),
    ),
    "deepmath": Benchmark(
        "zwhe99/DeepMath-103K", "train", Columns(("question",), "final_answer", keep=("difficulty", "topic")),
        "expression", "MIT", 103_022, revision="5cf055d1fe3d7a2eb19719ac020211469736ae44",
        difficulty=("difficulty", "8"), own_split=(3000, 300),
    ),
    "gpqa": Benchmark(
        "Idavidrein/gpqa", "train",
        Columns(
            ("Question",), "Correct Answer", ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"),
            id="Record ID",
        ),
        "choice", "CC-BY-4.0", 198, config="gpqa_diamond", revision="633f5ee89ab8ad4522a9f850766b73f62147ffdd",
        samples=5,
    ),
    "supergpqa": Benchmark(
        "m-a-p/SuperGPQA", "train",
        Columns(("question",), "answer_letter", ("options",), id="uuid", keep=("discipline", "difficulty")),
        "choice", "ODC-BY", 26_529, revision="4430d4458112c7d4497fdcf94d7cc223313d6acf",
    ),
    "omega": Benchmark(
        "allenai/omega-explorative", "test_in", Columns(("messages.0.content",), "ground_truth"), "expression", "MIT",
        100, config="algebra_linear_equation", train="train", revision="b04ae8d4757a2229e8ed65ac6a923e502d0bbb95",
    ),
    "humaneval": Benchmark(
        "openai/openai_humaneval", "test", _HUMANEVAL, "program", "MIT", 164,
        max_completion_tokens=512, read=humaneval,
    ),
    "humanevalplus": Benchmark(
        "evalplus/humanevalplus", "test", _HUMANEVAL, "program", "Apache-2.0", 164,
        max_completion_tokens=512, read=humaneval,
    ),
    "mbpp": Benchmark(
        "google-research-datasets/mbpp", "test", _MBPP, "program", "CC-BY-4.0", 500, config="full", train="train",
        max_completion_tokens=512, read=mbpp,
    ),
    "mbppplus": Benchmark(
        "evalplus/mbppplus", "test", replace(_MBPP, keep=("test",)), "program", "Apache-2.0", 378,
        max_completion_tokens=512, read=mbpp,
    ),
    # As many as Agon trains on and holds out (section 5); none of the test split is known to be EASY.
    "codecontests": Benchmark(
        "deepmind/code_contests", "train",
        Columns(("description",), "public_tests", id="name", keep=("private_tests",)), "program", "CC-BY-4.0", 13_328,
        max_completion_tokens=4096, difficulty=("difficulty", "easy"), own_split=(3000, 300),
        read=codecontests,
    ),
}  # fmt: skip

_OPTIONS = ("config", "split", "revision", "sha256", "data_dir")


def load_benchmark(name: str, held_out: bool = True, **options: str) -> Task:
    """A benchmark's problems: its evaluation split with `held_out`, else its training split.

    Options: `config`, `split` and `revision` instead of the benchmark's own; `sha256`, the beginning of the problems'
    fingerprint, which must match; `data_dir`, the folder of downloaded data; `difficulty` of DeepMath and CodeContests,
    a number (`8`), a range (`5-7`) or `all`. Programming problems without tests are skipped. Raises TaskError if the
    data cannot be found or read, and for other options.
    """
    benchmark = BENCHMARKS[name]
    refuse_unknown(name, options, (*_OPTIONS, *(["difficulty"] if benchmark.difficulty else [])))
    split = options.get("split") or (benchmark.split if held_out else benchmark.train or benchmark.split)
    data = HubData(
        benchmark.hub, split, options.get("config") or benchmark.config, options.get("revision") or benchmark.revision
    )
    column, default = benchmark.difficulty or ("id", "all")
    origin, rows = read_data(
        data,
        benchmark.columns.names | benchmark.ours.names | {column},
        _files(name, split, options),
        options.get("data_dir"),
    )
    wanted = options.get("difficulty") or default
    levels = LEVELS if default in LEVELS else {}
    given = [pair for pair in rows if wanted == "all" or _is_of_difficulty(name, pair[1], column, wanted, levels)]
    columns, first = benchmark.columns, given[0][1] if given else {}
    if benchmark.read is not None:
        read = [(at, program_row(benchmark.read, columns.require(row, at), at, columns.id)) for at, row in given]
        named = [(where, row) for where, row in read if row is not None]
    else:
        columns = benchmark.ours if columns.missing(first) and not benchmark.ours.missing(first) else columns
        named = [*columns.rows_of(given, benchmark.kind)]
    reading = ADDED if len(columns.options) > 1 else ""
    problems = [*problems_of(named, name, columns.options, benchmark.kind, reading)[0].values()]
    if benchmark.own_split:
        problems = _own_side(name, problems, benchmark.own_split, held_out)
    if not problems:
        raise TaskError(f"{name} holds no problem: {origin} has none that fits (difficulty={wanted})")
    require_fingerprint(name, problems, options.get("sha256", ""))
    return Task(name, problems, benchmark.max_completion_tokens, origin=origin, samples=benchmark.samples)


def missing(name: str, data_dir: str | None = None) -> str:
    """Why a benchmark's data are unavailable, as a clause; empty if the folder of downloaded data has both splits or
    the hub is reachable. Raises TaskError for a missing folder."""
    data = BENCHMARKS[name]
    here = all(
        in_folder(HubData(data.hub, split), _files(name, split, {}), data_dir)
        for split in {data.split, data.train or data.split}
    )
    return "" if here else hub_problem() or ""


def _files(name: str, split: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """The names of JSONL files that may hold a split; none if options choose the configuration or revision."""
    if "config" in options or "revision" in options:
        return ()
    return (f"{name}_{split}", *(() if "split" in options else (name, *BENCHMARKS[name].files)))


def _is_of_difficulty(name: str, row: Row, column: str, wanted: str, levels: Mapping[str, Any]) -> bool:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:-(\d+(?:\.\d+)?))?", levels.get(wanted, wanted))
    if match is None:
        raise TaskError(f"{name}:difficulty is a number, or two joined by -, as in 5-7.5, got {wanted!r}")
    found = row.get(column)
    try:
        return float(match[1]) <= float(levels.get(str(found).lower(), found)) <= float(match[2] or match[1])
    except (TypeError, ValueError):
        raise TaskError(f"{name}: {column} must be a number in every row") from None


def _own_side(name: str, problems: Sequence[Problem], sizes: tuple[int, int], held_out: bool) -> list[Problem]:
    """The training or the held-out side of `own_split`. Problems are sorted by a hash of their content; the held-out
    ones come first."""
    different = {content_key(p): p for p in reversed(problems) if not _BINARY.fullmatch(str(p.answer).strip())}
    order = sorted(different, key=lambda key: derived_seed("split", name, key))
    training, kept = sizes
    kept = min(kept, len(order) * kept // (training + kept))
    return [different[key] for key in (order[:kept] if held_out else order[kept : kept + training])]


def benchmark_maker(name: str) -> Callable[..., Task]:
    """The function that makes the task of one of `BENCHMARKS`, for `register_task`."""

    def make(seed: int = 0, held_out: bool = False, /, **options: str) -> Task:
        return load_benchmark(name, held_out, **options)

    data = BENCHMARKS[name]
    answered = f"a{'n' if data.kind == 'expression' else ''} {data.kind}"
    make.__doc__ = f"The benchmark {data.hub} of the hub: {data.size:,} problems, answered by {answered}."
    return make
