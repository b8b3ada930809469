"""Measures seats in a mode of `lite_selfplay.games.modes`: asks about problems in blocks and judges the answers.

A completion's seed depends on the problem, the stage and the sample's number, but on neither seat nor moment, so seats,
and one seat at two moments of a run, are compared under the same randomness.

Answers are kept in memory, so that modes share them, and on disk, so that an evaluation can be resumed. The file's
first line identifies the evaluation; every other line has one problem's answers at one stage. A truncated line is
dropped; a file of another evaluation, or of other weights, is ignored.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.data import NOT_JUDGED, Completion, EvalSpec, Problem, Sampling, Verdict
from lite_selfplay.errors import GameError, RequestError, RunFolderError, WorkerStartError
from lite_selfplay.evaluation.result import Evaluation, at_k
from lite_selfplay.games.collections import completion_from_json
from lite_selfplay.games.modes import Judged, Mode, find_mode
from lite_selfplay.games.prompts import opening
from lite_selfplay.tasks.files import append_lines, read_lines, require_no_link, write_errors
from lite_selfplay.tasks.task import derived_seed
from lite_selfplay.verify.choice import KIND as CHOICE
from lite_selfplay.verify.keys import states_nothing, vote_key
from lite_selfplay.verify.programs import KIND as PROGRAM

SUFFIX = ".partial.jsonl"
_TRIES = 5
_CHECKED_AGAIN = 2  # how often an answer is checked again whose check got no time


# The answers to one problem at one stage, and the seconds they took.
Answered = tuple[Sequence[Judged], float]


def key_of(*parts: Any) -> str:
    """A short hash of a question's parts, the same in every process."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


class Answers:
    """The answers so far, by the key of the question.

    `identity` describes their source (base, weights, checker); a file at `path` with another one is emptied. Without a
    `path` they are only in memory. `lines` are the file's from an earlier call, by key, for all processes. `alike` maps
    a seat to another one with the same weights, whose answers it shares.
    """

    def __init__(self, identity: Mapping[str, Any] | None = None, path: Path | None = None):
        self._identity = json.loads(json.dumps(dict(identity or {})))  # as it is read back from the file
        self.path = path
        self.lines: dict[str, dict[str, Any]] = {}
        self._memory: dict[str, Answered] = {}
        self.alike: Mapping[str, str] = {}
        if path is not None:
            require_no_link(path)
            self._read(path)

    def find(
        self, key: str, problem: int, judge: Callable[[Sequence[tuple[Completion, int]]], list[Judged]]
    ) -> Answered | None:
        """The answers to the question with this key; None if it was not asked yet.

        `judge` judges the answers of an earlier call to the `problem` of this number again: its checker may have been
        another one.
        """
        if key in self._memory or key not in self.lines:
            return self._memory.get(key)
        line = self.lines[key]
        try:
            said = [(completion_from_json(row["completion"]), problem) for row in line["answers"]]
            self._memory[key] = judge(said), float(line["seconds"])
        except (LookupError, TypeError, ValueError):
            raise RunFolderError(f"{self.path} is damaged: remove it to start the evaluation again") from None
        return self._memory[key]

    def keep(self, answered: Mapping[str, Answered]) -> None:
        """Keep answers by their keys, and append them to the file. Raises RunFolderError if that fails."""
        self._memory.update(answered)
        if self.path is None:
            return
        rows = [
            {"key": key, "seconds": seconds, "answers": [*map(_line, answers)]}
            for key, (answers, seconds) in answered.items()
        ]
        with write_errors(f"to {self.path}"):
            for _ in range(_TRIES):
                with contextlib.suppress(FileNotFoundError):  # another evaluation has just removed its empty folder
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    begun = self.path.exists() and self.path.stat().st_size
                    append_lines(self.path, rows if begun else [self._identity, *rows])
                    return
        raise RunFolderError(f"cannot write to {self.path}: its folder is being removed")

    def remove(self) -> None:
        """Remove the file, and its folder if that is empty."""
        if self.path is None:
            return
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it is not empty
            self.path.parent.rmdir()

    def _read(self, path: Path) -> None:
        """Read an earlier call's lines; a file with another identity is emptied."""
        if not path.is_file():
            return
        whole = 0
        with contextlib.suppress(RunFolderError):  # a damaged line: only those before it are used
            for number, line, row in read_lines(path):
                if number == 1 and row != self._identity:
                    break
                whole += len(line)
                if isinstance(row.get("key"), str):
                    self.lines[row["key"]] = row
        with write_errors(f"to {path}"):
            os.truncate(path, whole)


def _line(answer: Judged) -> dict[str, Any]:
    """An answer as JSON, without its prompt and log-probabilities."""
    return asdict(replace(answer, completion=replace(answer.completion, prompt="", prompt_ids=(), logprobs=())))


if TYPE_CHECKING:
    from lite_selfplay.training.progress import Progress
    from lite_selfplay.training.rollout import LiveTable


@dataclass(frozen=True)
class Exam:
    """The problems of an evaluation, and how to sample their answers.

    Each is answered `samples` times, after `shots` worked examples; `ks` are those of pass@k, mean@k and maj@k.
    `tasks` is the problems' name in the result, `about` more of its JSON.
    """

    problems: Sequence[Problem]
    sampling: Sampling
    samples: int = 1
    ks: Sequence[int] = ()
    shots: int = 0
    seed: int = 0
    tasks: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)


def measure(
    table: "LiveTable",
    spec: EvalSpec,
    exam: Exam,
    *,
    answers: Answers | None = None,
    rows_at_once: int | None = None,
    progress: "Progress | None" = None,
    name: str = "evaluation",
    begun: int | None = None,
) -> Evaluation:
    """Let the seats of `spec` answer the problems in its mode, and judge the answers.

    Answers already in `answers` are reused. At most `rows_at_once` completions are sampled at a time, but always all
    samples of a problem. A prompt over the table's limit counts as wrong. `name` is the phase that `progress` shows; if
    `begun` is given, the phase is under way, `begun` is its progress so far and `name` describes this part of it.
    Raises UnknownNameError for an unknown mode, and RequestError without a problem, seat or sample, or with fewer seats
    or samples than the mode or a k needs.
    """
    mode = find_mode(spec.mode)
    if not exam.problems or not spec.seats or exam.samples < 1:
        raise RequestError("an evaluation needs at least one problem, one seat and one sample")
    require_enough(spec, mode, exam.samples, exam.ks)
    if progress is not None and begun is None:
        progress.phase(name, len(exam.problems) * mode.stages(spec.seats))
    at_once = max(1, (rows_at_once or len(exam.problems) * exam.samples) // exam.samples)
    part = "" if begun is None else f" of {name}"
    examiner = LiveExaminer(
        exam.problems, exam.sampling, table, exam, answers or Answers(), at_once, progress, part, begun or 0
    )
    found = mode.measure(examiner, spec.seats)
    every, keys = {**found.seats, **found.directions}, examiner.keys
    return Evaluation(
        mode=spec.mode,
        tasks=exam.tasks,
        sampling=exam.sampling,
        seed=exam.seed,
        shots=exam.shots,
        seats={seat: measured.score for seat, measured in found.seats.items()},
        directions={direction: measured.score for direction, measured in found.directions.items()},
        per_problem={key: {who: m.shares_right[i] for who, m in every.items()} for i, key in enumerate(keys)},
        at_k={who: at_k(measured.answers, exam.ks) for who, measured in every.items()} if exam.ks else {},
        answers={
            key: {who: [answer.answer for answer in m.answers[i]] for who, m in every.items()}
            for i, key in enumerate(keys)
        },
        about=exam.about,
        seconds=examiner.seconds,
        rows={who: measured.answers for who, measured in every.items()},
        problems=dict(zip(keys, exam.problems, strict=True)),
    )


def require_enough(spec: EvalSpec, mode: Mode, samples: int, ks: Sequence[int]) -> None:
    """Raise RequestError if the mode needs more seats or samples, or a k exceeds the number of samples."""
    if len(spec.seats) < mode.seats:
        raise RequestError(
            f"the mode {spec.mode} needs {mode.seats} seats, and there is only {' and '.join(spec.seats)}"
        )
    if samples < mode.least:
        raise RequestError(f"the mode {spec.mode} needs at least {mode.least} samples per problem, got {samples}")
    if ks and not 1 <= min(ks) <= max(ks) <= samples:
        raise RequestError(f"each k must be from 1 to the number of samples, {samples}, got {', '.join(map(str, ks))}")


def problem_keys(problems: Sequence[Problem]) -> list[str]:
    """Each problem's id; if several problems of a file share one, the later ones get a number."""
    keys: dict[str, None] = {}
    for problem in problems:
        names = chain([problem.id], (f"{problem.id} ({number})" for number in count(2)))
        keys[next(name for name in names if name not in keys)] = None
    return list(keys)


@dataclass
class LiveExaminer:
    """An evaluation's problems and seats as `lite_selfplay.games.modes.Examiner` has them, `at_once` problems at a
    time."""

    problems: Sequence[Problem]
    sampling: Sampling
    table: "LiveTable"
    exam: Exam
    answers: Answers
    at_once: int
    shown: "Progress | None"
    part: str
    done: int
    seconds: float = field(default=0.0, init=False)

    @cached_property
    def keys(self) -> list[str]:
        """Each problem's name in this evaluation."""
        return problem_keys(self.problems)

    def opening(self, problem: Problem) -> str:
        return opening(problem, self.exam.shots)

    def ask(self, seat: str, prompts: Sequence[Sequence[str]], stage: str, doing: str) -> list[list[Judged]]:
        if len(prompts) != len(self.problems) or {len(row) for row in prompts} not in ({1}, {self.exam.samples}):
            raise GameError(f"a mode needs one prompt per problem, or {self.exam.samples}, one for each sample")
        sampling, exam = asdict(self.sampling), self.exam
        # A key for each problem, of everything that determines its answers, except the weights.
        who = self.answers.alike.get(seat, seat)
        names = [key_of(exam.tasks, key, who, stage, list(prompts[i]), sampling, exam.seed, exam.samples)
                 for i, key in enumerate(self.keys)]  # fmt: skip
        found = {i: answered for i, name in enumerate(names) if (answered := self.answers.find(name, i, self.judge))}
        left = [i for i in range(len(names)) if i not in found]
        self._advance(len(found))
        for start in range(0, len(left), self.at_once):
            block = left[start : start + self.at_once]
            if self.shown is not None:
                many = f"s {block[0] + 1} to {block[-1] + 1}" if len(block) > 1 else f" {block[0] + 1}"
                self.shown.activity(f"{doing} problem{many}{self.part}")
            began = time.monotonic()
            rows = self._asked(seat, [prompts[i] for i in block], block, stage)
            each = (time.monotonic() - began) / len(block)
            found |= {i: (row, each) for i, row in zip(block, rows, strict=True)}
            self.answers.keep({names[i]: found[i] for i in block})
            self._advance(len(block))
        self.seconds += sum(seconds for _, seconds in found.values())
        return [list(found[i][0]) for i in range(len(names))]

    def _asked(
        self, seat: str, prompts: Sequence[Sequence[str]], block: Sequence[int], stage: str
    ) -> list[list[Judged]]:
        asked = [prompt for row in prompts for prompt in row]
        each = self.exam.samples * len(block) // len(asked)  # samples per prompt
        seeds = [self._seed(i, stage, k) for i in block for k in range(self.exam.samples)]
        seeds_of = [seeds[first : first + each] for first in range(0, len(seeds), each)]
        completions = chain(*self.table.sample(seat, asked, each, self.sampling, seeds_of))
        judged = self.judge([(c, i) for i in block for c in islice(completions, self.exam.samples)])
        return [judged[i : i + self.exam.samples] for i in range(0, len(judged), self.exam.samples)]

    def say(
        self,
        seat: str,
        prompts: Sequence[str],
        sampling: Sampling,
        about: Sequence[tuple[int, object]],
        beginnings: Sequence[str] | None = None,
    ) -> list[Completion]:
        seeds = [[self._seed(*each)] for each in about]
        starts = beginnings or [""] * len(prompts)
        size, found = max(1, self.at_once * self.exam.samples), list[Completion]()
        for first in range(0, len(prompts), size):
            part = slice(first, first + size)
            found += chain(*self.table.sample(seat, prompts[part], 1, sampling, seeds[part], starts[part]))
        return found

    def judge(self, answers: Sequence[tuple[Completion, int]]) -> list[Judged]:
        """Judge (completion, index of its problem) pairs. Answers whose check was starved are checked again. Raises
        WorkerStartError if the machine stays too busy: a share of right answers must not depend on its load."""
        asked = [(completion, self.problems[i]) for completion, i in answers]
        verdicts = self.table.verify(asked)
        for _ in range(_CHECKED_AGAIN):
            left = [i for i, verdict in enumerate(verdicts) if verdict.reason == NOT_JUDGED]
            for i, verdict in zip(left, self.table.verify([asked[i] for i in left]) if left else (), strict=True):
                verdicts[i] = verdict
        if unjudged := sum(verdict.reason == NOT_JUDGED for verdict in verdicts):
            raise WorkerStartError(
                f"{unjudged} answers of an evaluation could not be judged, because the machine is too busy to check "
                "them: the same command continues with the answers so far"
            )
        return [_judge(*pair, verdict) for pair, verdict in zip(asked, verdicts, strict=True)]

    def progress(self, done: int, doing: str) -> None:
        if self.shown is not None:
            self.shown.activity(f"{doing}{self.part}")
            self.shown.advance(self.done + done)

    def _seed(self, i: int, *about: object) -> int:
        return derived_seed(self.exam.seed, "evaluation", self.keys[i], *about)

    def _advance(self, by: int) -> None:
        self.done += by
        if self.shown is not None and by:
            self.shown.advance(self.done)


def _judge(completion: Completion, problem: Problem, verdict: Verdict) -> Judged:
    read, answer = completion.stop != "prompt_too_long", verdict.answer
    return Judged(
        completion,
        correct=read and verdict.correct,
        well_formed=read and verdict.well_formed,
        answer=answer if read else None,
        key=_class_of(answer, problem) if read and answer is not None else None,
    )


def _class_of(answer: str, problem: Problem) -> str | None:
    """The class that an answer votes for; None if it does not vote.

    The class is the value of a number or formula, the letter of a choice, the text of a program, and for other checkers
    the words. The reference answer is one of the choices.
    """
    if problem.kind == PROGRAM:
        return answer
    if problem.kind == CHOICE:
        return answer if len(answer) == 1 and answer.isupper() else None
    choices = [problem.answer, *(options if isinstance(options := problem.extra.get("options"), list) else [])]
    if problem.kind == "math":
        return vote_key(answer, map(str, choices))
    return None if states_nothing(answer, map(str, choices)) else " ".join(answer.casefold().split()) or None
