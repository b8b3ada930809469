"""The data sets of the package reasoning-gym (https://github.com/open-thought/reasoning-gym) as tasks
`reasoning-gym:NAME`, and a checker that judges answers with the data sets' own scorers. Since some answers take long,
all scorers run in separate processes, which can be killed. Their program is this package's module `scoring`;
`lite_selfplay.verify.workers` manages the processes. No answer is run as a program: see the module `literals`."""

import base64
import contextlib
import functools
import json
import os
import pickle
import select
import socket
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lite_selfplay.data import NOT_JUDGED, Completion, Problem, Verdict
from lite_selfplay.errors import TaskError, UnknownNameError, WorkerStartError
from lite_selfplay.tasks.procedural import Procedural
from lite_selfplay.tasks.task import Task, derived_seed
from lite_selfplay.verify.checking import Checking
from lite_selfplay.verify.extract import AnswerFormat, completion_text, extract_answer
from lite_selfplay.verify.format import well_formed
from lite_selfplay.verify.programs.inside.clock import Clock
from lite_selfplay.verify.workers import Worker, Workers

KIND = "reasoning-gym"
SIZE = 10_000

# As of reasoning-gym 0.1.25. Data sets whose rows depend on the order of a set, which differs between processes:
_OF_SETS = frozenset(
    "intermediate_integration isomorphic_strings knight_swap polynomial_multiplication ransom_note word_ladder".split()
)
# Data sets whose rows come from a generator without a seed:
_UNSEEDED = frozenset({"codeio", "list_functions"})
# Data sets whose scorer accepts one answer for any problem: that answer, and its mean score over 200 rows.
_PAYS_ALWAYS = {
    "coin_flip": ("the answer 0", 0.94),
    "game_of_life": ("an empty board", 0.96),
    "game_of_life_halting": ("any answer", 1.0),
    "puzzle24": ("the answer 6*4*1/1", 1.0),
}


def open_dataset(name: str, options: Mapping[str, Any], *, seed: int = 0, size: int = 100) -> Any:
    """Make the data set `name` of reasoning-gym, with `size` problems generated from `seed`. `options` are fields of
    the data set's configuration. The result is a sequence of entries, dicts with `question` and `answer`; its method
    `score_answer(answer, entry)` scores an answer. Raises UnknownNameError if reasoning-gym has no data set of this
    name; TaskError if the package cannot be imported, or if the data set lacks an option or rejects its value."""
    with warnings.catch_warnings():  # users of this library do not need its warnings
        warnings.simplefilter("ignore")
        try:
            from reasoning_gym.factory import DATASETS, create_dataset
        except ImportError as error:
            raise TaskError(
                f"tasks of reasoning-gym need its package, which cannot be imported ({error}): pip install "
                "reasoning-gym"
            ) from None
        if name not in DATASETS:
            raise UnknownNameError("data set of reasoning-gym", name, DATASETS)
        known = [field.name for field in fields(DATASETS[name][1]) if field.name not in ("seed", "size")]
        unknown = next((option for option in options if option not in known), None)
        if unknown is not None:
            raise TaskError(f"{KIND}:{name} has no option {unknown!r}; it takes {', '.join(known) or 'none'}")
        try:
            return create_dataset(name, seed=seed, size=size, **options)
        except Exception as error:  # a data set's own checks may raise anything
            given = ", ".join(f"{key}={value}" for key, value in options.items()) or "none"
            raise TaskError(f"{KIND}:{name} rejects its options ({given}): {error or type(error).__name__}") from None


def reasoning_gym(seed: int = 0, held_out: bool = False, /, dataset: str = "", **options: str) -> Task:
    """Make a task with 10,000 problems of the data set `dataset` of reasoning-gym.

    - `seed`: the seed that the problems are generated from
    - `held_out`: whether to make the problems reserved for evaluation or those for training; no problem is in both,
      whatever the seeds
    - `options`: fields of the data set's configuration, except `seed` and `size`; each value is parsed as JSON
      (`max_terms="3"` is the number 3), or kept as text if it is not JSON

    A problem's `extra` has the data set's entry, which the scorer needs. A problem's `answer` is None if the data set
    has no reference answer. Raises UnknownNameError if reasoning-gym has no data set of this name. Raises TaskError if
    `dataset` is empty, the package cannot be imported, an option is unknown, or an option's value is rejected. Also
    raises TaskError for a data set whose problems would differ between processes: one that draws random numbers without
    the seed, or one that depends on Python's hash seed while PYTHONHASHSEED is not set.
    """
    if not dataset:
        raise TaskError(f"{KIND} needs the name of a data set, as in {KIND}:chain_sum,max_terms=3")
    name, values = f"{KIND}:{dataset}", {key: _value(text) for key, text in options.items()}

    @functools.cache
    def rows(attempt: int) -> Any:
        parts = (seed, KIND, dataset, attempt) if attempt else (seed, KIND, dataset)
        # Some data sets seed numpy with the sum of seed and index, which must fit into 32 bits.
        return open_dataset(dataset, values, seed=derived_seed(*parts) % 2**31, size=SIZE)

    def make(index: int, attempt: int) -> Problem:
        try:
            entry = rows(attempt)[index]
        except Exception as error:  # options that pass a data set's own checks may still make its generator fail
            raise TaskError(f"{name} cannot make its problem {index}: {error or type(error).__name__}") from error
        answer = entry["answer"]
        return Problem(
            f"{dataset}-{index}",
            entry["question"].strip(),
            None if answer is None else str(answer),
            kind=KIND,
            extra={"dataset": dataset, "options": values, "entry": entry},
        )

    rows(0)
    if dataset in _UNSEEDED:
        raise TaskError(f"{name} ignores the seed and gives different problems each time: choose another data set")
    if dataset in _OF_SETS and os.environ.get("PYTHONHASHSEED", "random") == "random":
        raise TaskError(
            f"{name} gives different problems in each process: set the environment variable PYTHONHASHSEED=0"
        )
    answer, paid = _PAYS_ALWAYS.get(dataset, ("", 0.0))
    caution = f"the scorer of {name} gives {answer} a mean score of {paid:.0%}, whatever the problem: see docs/tasks.md"
    return Task(name, Procedural(name, SIZE, held_out, make), procedural=True, caution=caution if answer else "")


def _value(text: str) -> Any:
    try:
        return json.loads({"True": "true", "False": "false"}.get(text, text))
    except ValueError:
        return text


# Longer answers count as unparsable: they would only keep the scorer busy.
MAX_CHARACTERS = 10_000


def check_batch(
    pairs: Sequence[tuple[Completion, Problem]], expected: AnswerFormat, checking: Checking
) -> list[Verdict]:
    """Judge completions by the scorers of their problems' data sets in reasoning-gym. `pairs` are completions with
    their problems. `expected` is the required output format, and `checking` has the time limit and the pool of scoring
    processes. Returns a verdict for each completion, whose `correct` is true if the score is 1. Raises TaskError if a
    problem's `extra` has no entry of reasoning-gym, and WorkerStartError if no process can be started."""
    answers = [extract_answer(completion_text(completion), block_only=expected.block_only) for completion, _ in pairs]
    asked = {
        index: {**_question(problem), "answer": answer}
        for index, ((_, problem), answer) in enumerate(zip(pairs, answers, strict=True))
        if answer is not None and len(answer) <= MAX_CHARACTERS
    }
    pool = checking.kept(KIND, lambda: WorkerPool(checking.workers, checking.deadline))
    outcomes = dict(zip(asked, pool.work(list(asked.values()), checking.poll), strict=True))
    return [
        _verdict(
            completion, answer, outcomes.get(index, "no_answer" if answer is None else "unparsable"), expected.thinks
        )
        for index, ((completion, _), answer) in enumerate(zip(pairs, answers, strict=True))
    ]


def _question(problem: Problem) -> dict[str, Any]:
    extra = problem.extra
    if not {"dataset", "options", "entry"} <= set(extra):
        raise TaskError(f"{problem.id} is of kind {KIND!r} but does not name its data set and entry")
    # Entries contain tuples and fractions, which JSON would change.
    entry = base64.b64encode(pickle.dumps(extra["entry"])).decode()
    return {"dataset": extra["dataset"], "options": dict(extra["options"]), "entry": entry}


def _verdict(completion: Completion, answer: str | None, outcome: str, thinks: bool) -> Verdict:
    kind, _, figure = outcome.partition(" ")
    score = min(1.0, max(0.0, float(figure))) if kind == "score" else 0.0
    reason = {"score": "wrong", "crash": "unparsable"}.get(kind, kind)
    return Verdict(
        correct=score >= 1.0,
        score=score,
        answer=answer,
        well_formed=well_formed(completion.text, thinks, completion.prefill),
        reason="" if score >= 1.0 else reason,
    )


Question = Mapping[str, Any]

MEMORY_MB = 4096  # a scoring process's limit of address space, if the system supports one
_PASSED_ON = "HOME LANG LC_ALL LD_LIBRARY_PATH PYTHONHASHSEED PYTHONHOME PYTHONPATH PYTHONUSERBASE SYSTEMROOT".split()
START_SECONDS = 120.0  # importing reasoning-gym takes seconds, far more on a loaded machine


@dataclass(eq=False)
class Scorer(Worker):
    """The parent's handle of a process that scores answers with reasoning-gym. `heard` is the part of the
    process's output that was received and not yet parsed by the method `message`."""

    heard: bytes = b""

    def message(self) -> dict[str, Any]:
        """Parse the bytes received so far as a JSON object, and discard them. This reads nothing more from the process.
        WorkerPool calls this once the process has sent a whole line, or has ended. The result is empty if the bytes are
        not a JSON object, for example because the process ended in the middle of a line."""
        line, self.heard = self.heard, b""
        try:
            found = json.loads(line or b"{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


class WorkerPool(Workers[Scorer, Question, str]):
    """Processes that score answers with reasoning-gym's scorers.

    - `size`: the most processes at a time, or None for 2 (1 on a machine with one core)
    - `deadline`: the seconds that a process may take for a question, without the time in which it waits for a CPU
    - `command`: a program with the same protocol that replaces `lite_selfplay.extras.gym.scoring`, or None for that one

    The method `work` takes questions (dicts, see `scoring`) and returns an outcome for each. An outcome is the
    program's reply, such as `score 0.5` or `unparsable`; "timeout" if the process was killed at the deadline; "crash"
    if two processes died on the question; or "not_judged" if the machine was so busy that the process did not get
    `deadline` seconds of CPU time, even when no other question was scored at the same time. `work` raises
    WorkerStartError if no process can be started.
    """

    late, given_up, not_judged = "timeout", "crash", NOT_JUDGED

    def __init__(self, size: int | None = None, deadline: float = 5.0, command: Sequence[str] | None = None):
        super().__init__(size)
        self.deadline = deadline
        own = (sys.executable, "-P", "-m", "lite_selfplay.extras.gym.scoring", str(deadline), str(MEMORY_MB))
        self._command = list(command or own)

    def _start(self) -> Scorer:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                self._command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
        return Scorer(process, ours, ready=False, clock=Clock([process.pid], START_SECONDS))

    def _give(self, worker: Scorer, job: Question) -> float:
        if select.select([worker.control], [], [], 0)[0]:
            raise BrokenPipeError("it has ended, or wrote without a question")
        worker.control.sendall(json.dumps(job).encode() + b"\n")
        return self.deadline

    def _answered(self, worker: Scorer) -> bool:
        with contextlib.suppress(ConnectionResetError):
            part = worker.control.recv(1 << 16)
            worker.heard += part
            return not part or part.endswith(b"\n")
        return True

    def _take(self, worker: Scorer, job: Question) -> str | None:
        return worker.message().get("outcome")

    def _greet(self, worker: Scorer, late: bool) -> None:
        message = {"failed": f"it was not ready after {START_SECONDS:.0f} s"} if late else worker.message()
        if "ready" in message:
            worker.ready = True
            return
        self._drop(worker)
        raise WorkerStartError(
            f"the answer checker's process did not start: {message.get('failed', 'it ended at once')}. To see why, "
            f"run: {' '.join(self._command)}"
        )


def _environment() -> dict[str, str]:
    """The environment variables of a scoring process: of the user's only those that find Python and its packages, since
    others hold secrets. Numerical libraries use one thread. PYTHONPATH makes it import the copy of lite_selfplay that
    runs here. PYTHONPATH is unchanged if that copy is in site-packages, since site-packages must not come before the
    standard library."""
    environment = {
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        # A numerical library's threads would reserve address space for every core.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    root = str(Path(__file__).resolve().parents[3])
    if root not in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    return environment
