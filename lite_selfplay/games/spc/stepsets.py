"""Sets of labelled steps that measure a critic: published layouts, and steps of worked solutions.

Layouts, by their columns:

- ProcessBench (https://huggingface.co/datasets/Qwen/ProcessBench): `problem`, `steps`, and `label`, the index of the
  first wrong step from 0, or -1; a JSON list (`.json`) or JSONL; the subset is the `id` without its number.
- PRM800K (https://github.com/openai/prm800k): `question.problem` and `label.steps`, each with its `completions`, rated
  -1, 0 or 1, and the chosen one.
- DeltaBench (https://github.com/OpenStellarTeam/DeltaBench): `question`, `sections` with their `content`, and
  `reason_error_section_numbers` and `reason_unuseful_section_numbers`, from 1; the subset is `task_l1`.
- SPC's release (https://github.com/chen-judge/SPC, `data/eval`): `problem` and `partial_solution`, and either a
  `next_step` with a `..._human_label` of 1 or -1 and its subset in `source` or `data_type`, or a pair of
  `correct_last_step` and `incorrect_last_step`.

As in SPC's paper (section 4.1), equally many correct and wrong steps are taken, each with the steps before it. Ours: a
wrong step is the first of its solution, so that the steps before it are right; a correct one is drawn from those before
it; steps rated neutral, or useless, are neither.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lite_selfplay.data import Problem
from lite_selfplay.errors import TaskError
from lite_selfplay.games.spc.corruptor import NUMBER, corruptions, holds
from lite_selfplay.games.spc.steps import StepPair, labelled_step
from lite_selfplay.tasks.files import read_rows
from lite_selfplay.tasks.task import derived_rng


def read_step_set(path: Path) -> list[Problem]:
    """Equally many correct and wrong steps of each subset of a file in one of the layouts.

    Raises TaskError, with file and line, for a row in no layout, or for a file without both kinds of step.
    """
    rng = derived_rng(0, "step set", path.stem)
    steps = list[Problem]()
    for where, row in read_rows(path, TaskError):
        read = next((read for columns, read in LAYOUTS if columns <= row.keys()), None)
        if read is None:
            columns = ", ".join(row) or "none"
            raise TaskError(
                f"{where}: these are the columns of neither ProcessBench, PRM800K nor DeltaBench: {columns}"
            )
        steps += read(row, where, rng)
    chosen = one_to_one(steps, rng)
    if not chosen:
        raise TaskError(f"{path} holds no correct and wrong steps of the same subset to measure a critic on")
    return chosen


def is_step_set(path: Path) -> bool:
    """Whether a file's first row is in one of the layouts."""
    _, row = next(read_rows(path, TaskError), ("", {}))
    return any(columns <= row.keys() for columns, _ in LAYOUTS)


def read_pairs(path: Path) -> list[StepPair]:
    """The pairs of a correct and a wrong step in a file of PRM800K's layout, or of the release's.

    Raises TaskError, with file and line, for a row of another layout.
    """
    rows = read_rows(path, TaskError)
    return [pair for where, row in rows for pair in (_pair if row.keys() >= _PAIR else _prm800k)(row, where)]


def steps_of_solutions(problems: Sequence[Problem], *, each: int = 500) -> list[Problem]:
    """At most `each` correct and as many wrong steps of worked solutions, one per solution, in random order.

    A correct step writes out a calculation that holds; a wrong one has another result, so that it does not hold.
    """
    rng = derived_rng(0, "gsm8k step set")
    steps: list[Problem] = []
    for index in rng.sample(range(len(problems)), len(problems)):
        pairs = [p for p in corruptions(problems[index], rng, [NUMBER]) if holds(p.right) and holds(p.wrong) is False]
        if pairs:
            steps.append(rng.choice(pairs).labelled()[len(steps) % 2])
        if len(steps) == 2 * each:
            break
    return steps[: len(steps) // 2 * 2]


def one_to_one(steps: Sequence[Problem], rng: random.Random) -> list[Problem]:
    """Equally many correct and wrong steps of each subset, drawn at random, in their order."""
    chosen: set[int] = set()
    labels = [(step.extra["subset"], step.answer) for step in steps]
    for subset in dict.fromkeys(subset for subset, _ in labels):
        sides = [[i for i, label in enumerate(labels) if label == (subset, side)] for side in ("Correct", "Incorrect")]
        chosen.update(i for side in sides for i in rng.sample(side, min(map(len, sides))))
    return [steps[i] for i in sorted(chosen)]


def _processbench(row: Mapping[str, Any], where: str, rng: random.Random) -> list[Problem]:
    name, steps, label = str(row.get("id", where)), row["steps"], row["label"]
    problem = _text(row["problem"], "problem", where)
    if not isinstance(steps, list) or not steps or not all(isinstance(step, str) for step in steps):
        raise TaskError(f"{where}: 'steps' must be a list of texts")
    if type(label) is not int or not -1 <= label < len(steps):
        raise TaskError(f"{where}: 'label' must be the index of a step, from 0, or -1")
    right = range(label if label >= 0 else len(steps))
    return _both(name, problem, steps, right, None if label < 0 else label, name.rpartition("-")[0], rng)


def _deltabench(row: Mapping[str, Any], where: str, rng: random.Random) -> list[Problem]:
    problem = _text(row["question"], "question", where)
    sections = row["sections"]
    if not isinstance(sections, list) or not all(
        isinstance(s, dict) and isinstance(s.get("content"), str) for s in sections
    ):
        raise TaskError(f"{where}: 'sections' must be a list of objects with a 'content'")
    wrong = _numbers(row, "reason_error_section_numbers", len(sections), where)
    useless = _numbers(row, "reason_unuseful_section_numbers", len(sections), where)
    first = min(wrong) - 1 if wrong else None
    right = [i for i in range(len(sections) if first is None else first) if i + 1 not in useless]
    steps = [section["content"] for section in sections]
    return _both(str(row.get("id", where)), problem, steps, right, first, str(row.get("task_l1", "")), rng)


def _both(
    name: str,
    problem: str,
    steps: Sequence[str],
    right: Sequence[int],
    wrong: int | None,
    subset: str,
    rng: random.Random,
) -> list[Problem]:
    """A solution's labelled steps: one at a random index of `right`, if any, and the one at `wrong`, if given."""
    indices = [(rng.choice(right), True)] if right else []
    indices += [] if wrong is None else [(wrong, False)]
    return [
        labelled_step(f"{name}-{index + 1}", problem, _before(steps[:index]), steps[index], correct, subset)
        for index, correct in indices
        if steps[index].strip()
    ]


def _pair(row: Mapping[str, Any], where: str) -> Iterator[StepPair]:
    texts = [_text(row[key], key, where) for key in ("problem", "correct_last_step", "incorrect_last_step")]
    yield StepPair(str(row.get("id", where)), texts[0], str(row["partial_solution"]), *texts[1:])


def _next_step(row: Mapping[str, Any], where: str, rng: random.Random) -> list[Problem]:
    label = next((value for key, value in row.items() if key.endswith("human_label")), None)
    if label not in (1, -1):
        raise TaskError(f"{where}: a step needs a '..._human_label' of 1 or -1")
    texts = [_text(row[key], key, where) for key in ("problem", "next_step")]
    subset, name = str(row.get("source", row.get("data_type", ""))), str(row.get("file_name", where))
    return [labelled_step(name, texts[0], str(row["partial_solution"]), texts[1], label == 1, subset)]


def _prm800k(row: Mapping[str, Any], where: str) -> Iterator[StepPair]:
    """The pairs of a labelled solution, along the chosen steps; none if the solution served to check labellers, or if
    its problem was reported as broken."""
    try:
        problem, label = _text(row["question"]["problem"], "question.problem", where), row["label"]
        checks = row.get("is_quality_control_question") or row.get("is_initial_screening_question")
        if checks or label.get("finish_reason") == "bad_problem":
            return
        before: list[str] = []
        for index, step in enumerate(label["steps"], 1):
            rated = {r: [c["text"] for c in step["completions"] or () if c["rating"] == r] for r in (1, -1)}
            for number, (right, wrong) in enumerate(zip(rated[1], rated[-1], strict=False), 1):
                yield StepPair(f"{where}-{index}-{number}", problem, _before(before), right, wrong)
            chosen, human = step.get("chosen_completion"), step.get("human_completion")
            if chosen is None and human is None:
                return
            # The documentation shows a text here; some files have an object around it.
            own = human["text"] if isinstance(human, Mapping) else human
            before.append(own if chosen is None else step["completions"][chosen]["text"])
    except (LookupError, TypeError, AttributeError) as error:
        raise TaskError(f"{where}: not as in PRM800K ({type(error).__name__}: {error})") from None


def _numbers(row: Mapping[str, Any], name: str, most: int, where: str) -> list[int]:
    numbers = row.get(name)
    if not isinstance(numbers, list) or not all(type(n) is int and 1 <= n <= most for n in numbers):
        raise TaskError(f"{where}: {name!r} must be a list of the numbers of sections, 1 to {most}")
    return numbers


def _before(steps: Sequence[str]) -> str:
    return "\n\n".join(step.strip() for step in steps)


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TaskError(f"{where}: {name!r} must be a text that is not empty")
    return value


_PAIR = {"problem", "partial_solution", "correct_last_step", "incorrect_last_step"}
# The columns that identify the layouts of ProcessBench, DeltaBench, PRM800K and SPC's release, and their readers.
LAYOUTS: Sequence[tuple[set[str], Callable[[Mapping[str, Any], str, random.Random], Iterable[Problem]]]] = (
    ({"problem", "steps", "label"}, _processbench),
    ({"question", "sections"}, _deltabench),
    ({"question", "label"}, lambda row, where, _: (step for pair in _prm800k(row, where) for step in pair.labelled())),
    ({"problem", "partial_solution", "next_step"}, _next_step),
    (_PAIR, lambda row, where, _: (step for pair in _pair(row, where) for step in pair.labelled())),
)
