"""Measuring seats in a mode of `lite_selfplay.games.modes`: problems go to the table in blocks, answers are judged.

A completion's seed follows from the problem, the stage and its number, and from neither seat nor moment, so that seats,
and one seat at two moments of a run, are compared under the same randomness.

Answers are kept in memory, so that modes share them, and on the disk, so that an evaluation can go on later. A file
holds a line that says what it belongs to, then a line for each problem's answers at a stage. A line that was cut off is
dropped; a file of another evaluation, or of other weights, is not read.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.data import Completion, EvalSpec, Problem, Sampling, Verdict
from lite_selfplay.errors import GameError, RequestError, RunFolderError
from lite_selfplay.evaluation.result import Evaluation, at_k
from lite_selfplay.games.collections import completion_from_json
from lite_selfplay.games.modes import Judged, Mode, find_mode
from lite_selfplay.games.prompts import opening
from lite_selfplay.tasks.files import require_no_link, write_errors
from lite_selfplay.tasks.task import derived_seed
from lite_selfplay.verify.choice import KIND as CHOICE
from lite_selfplay.verify.keys import states_nothing, vote_key
from lite_selfplay.verify.programs import KIND as PROGRAM

SUFFIX = ".partial.jsonl"
_TRIES = 5


@dataclass(frozen=True)
class Answered:
    """The answers to one problem at one stage, and the seconds that they took."""

    answers: Sequence[Judged]
    seconds: float


def key_of(*parts: Any) -> str:
    """A short name of what was asked: the same for the same parts, in every process."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


class Answers:
    """What was answered so far, by the key of what was asked.

    `identity` says whose answers they are: base, weights, checker. Without a `path` they are kept in memory alone.
    `lines` are what a former call left, by the key of what was asked; another process of this evaluation goes by them.
    `alike` says of seats whose answers are another's as well.
    """

    def __init__(self, identity: Mapping[str, Any] | None = None, path: Path | None = None):
        self._identity = json.loads(json.dumps(dict(identity or {})))  # as it comes back from the file
        self.path = path
        self.lines: dict[str, dict[str, Any]] = {}
        self._memory: dict[str, Answered] = {}
        self.alike: Mapping[str, str] = {}
        if path is not None:
            require_no_link(path)
            self._read(path)

    def find(self, key: str) -> Answered | None:
        """The answers to what has this key; None where it was not asked yet."""
        if key in self._memory or key not in self.lines:
            return self._memory.get(key)
        line = self.lines[key]
        try:
            rows = [{**row, "completion": completion_from_json(row["completion"])} for row in line["answers"]]
            self._memory[key] = Answered([Judged(**row) for row in rows], float(line["seconds"]))
        except (LookupError, TypeError, ValueError):
            raise RunFolderError(f"{self.path} is not what an evaluation wrote: remove it to begin anew") from None
        return self._memory[key]

    def keep(self, answered: Mapping[str, Answered]) -> None:
        """Note answers by their keys, and write them down. Raises RunFolderError where that cannot be."""
        self._memory.update(answered)
        if self.path is None:
            return
        rows = [{"key": key, "seconds": a.seconds, "answers": [*map(_line, a.answers)]} for key, a in answered.items()]
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        with write_errors(f"to {self.path}"):
            for _ in range(_TRIES):
                with contextlib.suppress(FileNotFoundError):  # another evaluation has just removed its empty folder
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    with self.path.open("a", encoding="utf-8") as file:
                        head = [] if file.tell() else [json.dumps(self._identity) + "\n"]
                        file.writelines(head + lines)
                        file.flush()
                        os.fsync(file.fileno())
                    return
        raise RunFolderError(f"cannot write to {self.path}: its folder is being removed")

    def remove(self) -> None:
        """Remove the file, and its folder where nothing else is in it."""
        if self.path is None:
            return
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something else is in there
            self.path.parent.rmdir()

    def _read(self, path: Path) -> None:
        """Take in a former call's lines; a file of another identity is cut to nothing."""
        if not path.is_file():
            return
        whole = 0
        with path.open("rb") as file:
            for number, line in enumerate(file):
                try:
                    row = json.loads(line) if line.endswith(b"\n") else None
                except ValueError:
                    row = None
                if not isinstance(row, dict) or (number == 0 and row != self._identity):
                    break
                whole += len(line)
                if isinstance(row.get("key"), str):
                    self.lines[row["key"]] = row
        with write_errors(f"to {path}"):
            os.truncate(path, whole)


def _line(answer: Judged) -> dict[str, Any]:
    """An answer as it is written down: without its prompt and its log-probabilities."""
    return asdict(replace(answer, completion=replace(answer.completion, prompt="", prompt_ids=(), logprobs=())))


if TYPE_CHECKING:
    from lite_selfplay.training.progress import Progress
    from lite_selfplay.training.rollout import LiveTable


@dataclass(frozen=True)
class Exam:
    """The problems of an evaluation, and how each is asked.

    Each is answered `samples` times, after `shots` worked examples; `ks` are the numbers of samples for which pass@k,
    mean@k and maj@k are given. `tasks` is what the result calls the problems, `about` what else its JSON says.
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
    """Let the seats of `spec` answer the problems in its mode, and judge them.

    `answers` are those already given, which are not asked for again. No more than `rows_at_once` completions are asked
    for at a time, a problem's samples at the least. A prompt over the table's limit counts as wrong. `name` is the
    phase that `progress` shows; `begun` is how far a phase is that has begun already: `name` is then that of this part.
    Raises UnknownNameError for another mode, and RequestError where there is no problem, no seat or no sample, or fewer
    seats or samples than the mode or a k needs.
    """
    mode = find_mode(spec.mode)
    if not exam.problems or not spec.seats or exam.samples < 1:
        raise RequestError("an evaluation needs at least one problem, one seat and one sample")
    require_enough(spec, mode, exam.samples, exam.ks)
    if progress is not None and begun is None:
        progress.phase(name, len(exam.problems) * mode.stages(spec.seats))
    at_once = max(1, (rows_at_once or len(exam.problems) * exam.samples) // exam.samples)
    part = "" if begun is None else f" of {name}"
    examiner = Examiner(exam, table, answers or Answers(), at_once, progress, part, begun or 0)
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
    """Raises RequestError where a mode needs more seats or samples than there are, or a k more samples."""
    if len(spec.seats) < mode.seats:
        raise RequestError(
            f"the mode {spec.mode} needs {mode.seats} seats, and there is {' and '.join(spec.seats)} alone"
        )
    if samples < mode.least:
        raise RequestError(f"the mode {spec.mode} needs {mode.least} samples of a problem at least, got {samples}")
    if ks and not 1 <= min(ks) <= max(ks) <= samples:
        raise RequestError(f"each k must be from 1 to the number of samples, {samples}, got {', '.join(map(str, ks))}")


def problem_keys(problems: Sequence[Problem]) -> list[str]:
    """Each problem's id; where a file gives one id to several problems, the later ones get a number."""
    keys: dict[str, None] = {}
    for problem in problems:
        names = chain([problem.id], (f"{problem.id} ({number})" for number in count(2)))
        keys[next(name for name in names if name not in keys)] = None
    return list(keys)


@dataclass
class Examiner:
    """What a mode measures with: it asks about the same problems at every stage, `at_once` of them together."""

    exam: Exam
    table: "LiveTable"
    answers: Answers
    at_once: int
    shown: "Progress | None"
    part: str
    done: int
    seconds: float = field(default=0.0, init=False)

    @property
    def problems(self) -> Sequence[Problem]:
        return self.exam.problems

    @property
    def sampling(self) -> Sampling:
        return self.exam.sampling

    @cached_property
    def keys(self) -> list[str]:
        """Each problem's name in this evaluation."""
        return problem_keys(self.problems)

    def opening(self, problem: Problem) -> str:
        """What a seat by itself is asked: the solver's prompt, after worked examples where those are asked for."""
        return opening(problem, self.exam.shots)

    def ask(self, seat: str, prompts: Sequence[Sequence[str]], stage: str, doing: str) -> list[list[Judged]]:
        """A seat's answers to each problem, judged. `prompts[i]` asks about problem i.

        With one prompt a problem it is answered as often as the evaluation takes samples; otherwise there are as many
        prompts as samples, each answered once. `stage` is what seeds follow from: the same stage has the same
        randomness for every seat. `doing` is shown, before the numbers of the problems: `A answers`. Raises GameError
        for another number of prompts.
        """
        if len(prompts) != len(self.problems) or {len(row) for row in prompts} not in ({1}, {self.exam.samples}):
            raise GameError(f"a mode asks with one prompt a problem, or with {self.exam.samples}, one for each sample")
        sampling, exam = asdict(self.sampling), self.exam
        # What is asked about each problem, with all that decides the answers but the weights.
        who = self.answers.alike.get(seat, seat)
        names = [key_of(exam.tasks, key, who, stage, list(prompts[i]), sampling, exam.seed, exam.samples)
                 for i, key in enumerate(self.keys)]  # fmt: skip
        found = {i: answered for i, name in enumerate(names) if (answered := self.answers.find(name)) is not None}
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
            found |= {i: Answered(row, each) for i, row in zip(block, rows, strict=True)}
            self.answers.keep({names[i]: found[i] for i in block})
            self._advance(len(block))
        self.seconds += sum(answered.seconds for answered in found.values())
        return [list(found[i].answers) for i in range(len(names))]

    def _asked(
        self, seat: str, prompts: Sequence[Sequence[str]], block: Sequence[int], stage: str
    ) -> list[list[Judged]]:
        asked = [prompt for row in prompts for prompt in row]
        each = self.exam.samples * len(block) // len(asked)  # every sample of one prompt, or one of each
        seeds = [self._seed(i, stage, k) for i in block for k in range(self.exam.samples)]
        seeds_of = [seeds[place : place + each] for place in range(0, len(seeds), each)]
        completions = chain(*self.table.speak(seat, asked, each, self.sampling, seeds_of))
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
        """One completion of each prompt by a seat, for modes that ask step by step; nothing is judged.

        `about[i]` is what prompt i is about, a problem by its place and anything else: the seed follows from it.
        `beginnings`: see `Table.ask`.
        """
        seeds = [[self._seed(*each)] for each in about]
        starts = beginnings or [""] * len(prompts)
        size, found = max(1, self.at_once * self.exam.samples), list[Completion]()
        for first in range(0, len(prompts), size):
            part = slice(first, first + size)
            found += chain(*self.table.speak(seat, prompts[part], 1, sampling, seeds[part], starts[part]))
        return found

    def judge(self, answers: Sequence[tuple[Completion, int]]) -> list[Judged]:
        """Judge completions, each by the problem at its place."""
        verdicts = self.table.verify([(completion, self.problems[i]) for completion, i in answers])
        pairs = zip(answers, verdicts, strict=True)
        return [_judge(completion, self.problems[i], verdict) for (completion, i), verdict in pairs]

    def progress(self, done: int, doing: str) -> None:
        """Show that so many problems' answers are finished, out of the mode's stages, and what is being done."""
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
    """An answer's class in a vote, None for a vote for nothing.

    Its value, the letter of a choice, the text of a program (two that do the same are rarely the same), the words of
    what another checker reads. What the reference says is a choice, too.
    """
    if problem.kind == PROGRAM:
        return answer
    if problem.kind == CHOICE:
        return answer if len(answer) == 1 and answer.isupper() else None
    choices = [problem.answer, *(options if isinstance(options := problem.extra.get("options"), list) else [])]
    if problem.kind == "math":
        return vote_key(answer, map(str, choices))
    return None if states_nothing(answer, map(str, choices)) else " ".join(answer.casefold().split()) or None
