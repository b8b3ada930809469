"""The evaluation mode `critic`: how well seats judge labelled steps (section 4.1), each in one critique.

It is measured on a file in the layout of ProcessBench, PRM800K or DeltaBench, or on worked solutions, of a file such as
GSM8K's or of a task, whose steps are then taken as they are or gone wrong by rule (500 of each; of GSM8K's test set
that is the built-in set). The paper's critics judge greedily, in at most 2,048 tokens: `--temperature 0`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lite_selfplay.data import Completion, Problem, Verdict
from lite_selfplay.errors import GameError, TaskError
from lite_selfplay.games.modes import Examiner, Found, Measured, Mode, Rows, Score, score_of
from lite_selfplay.games.spc.replies import judging_prompt, read_critique
from lite_selfplay.games.spc.scores import Interval, critic_scores, mean_of_subsets, scores_by_subset
from lite_selfplay.games.spc.steps import LabelledStep
from lite_selfplay.games.spc.stepsets import is_step_set, read_step_set, steps_of_solutions
from lite_selfplay.tasks import Task, load_task
from lite_selfplay.verify import register_checker
from lite_selfplay.verify.extract import AnswerFormat
from lite_selfplay.verify.workers import WorkerPool

KIND = "step"
"""The kind of a problem that asks whether a step is correct; its answer is `Correct` or `Incorrect`."""


@dataclass(frozen=True)
class CriticScore(Score):
    """How a seat judged steps. `pass_at_1` is the share judged rightly, a reply without a judgement counted as wrong.

    `correct` and `error` are the recalls on correct and on wrong steps among the replies with a judgement, `mean` and
    `harmonic_mean` are of the two, each with a 95% interval; `invalid` is the share of replies without a judgement.
    `mean_of_subsets` is the plain mean of the subsets' means, as ProcessBench is reported, where there are several.
    """

    correct: float | None
    error: float | None
    mean: float | None
    harmonic_mean: float | None
    invalid: float
    correct_ci95: Interval
    error_ci95: Interval
    harmonic_mean_ci95: Interval | None
    mean_of_subsets: float | None
    subsets: Mapping[str, Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "subsets": {name: dict(found) for name, found in self.subsets.items()}}


def step_task(spec: str) -> Task:
    """Labelled steps as problems.

    Raises TaskError, with file and line, where there are none, and what `load_task` raises.
    """
    path, is_file = Path(spec), os.path.isfile(spec)
    if is_file and is_step_set(path):
        steps, name = read_step_set(path), path.stem
    else:
        task = load_task(spec, held_out=True)
        steps, name = steps_of_solutions(task.problems), f"steps of {path.stem if is_file else spec}"
    if not steps:
        raise TaskError(
            f"{spec} holds no labelled steps (of ProcessBench, PRM800K or DeltaBench), and no worked solutions with "
            "calculations that steps could be made of"
        )
    return Task(name, [_as_problem(step) for step in steps])


def _as_problem(step: LabelledStep) -> Problem:
    extra = {
        "content": f"{step.problem}\n{step.before}\n{step.step}",
        "about": step.problem,
        "before": step.before,
        "step": step.step,
        "subset": step.subset,
    }
    return Problem(step.id, step.problem, "Correct" if step.correct else "Incorrect", KIND, extra)


def step_of(problem: Problem) -> LabelledStep:
    """The labelled step that a problem asks about. Raises GameError for a problem that is none."""
    if problem.kind != KIND:
        raise GameError(f"the mode critic measures on labelled steps, and {problem.id} is a problem to solve")
    found = problem.extra
    correct = problem.answer == "Correct"
    return LabelledStep(problem.id, problem.text, found["before"], found["step"], correct, found["subset"])


def check(pairs: Sequence[tuple[Completion, Problem]], expected: AnswerFormat, workers: WorkerPool) -> list[Verdict]:
    """Whether critiques judge their steps as they are."""
    return [_judged(completion, step_of(problem)) for completion, problem in pairs]


def _judged(completion: Completion, step: LabelledStep) -> Verdict:
    critique = read_critique(completion)
    right = critique.agrees(step.correct)
    reason = "" if right else critique.reason or "wrong"
    return Verdict(right, float(right), critique.judgement, critique.judgement is not None, reason)


def measure_critics(examiner: Examiner, seats: Sequence[str]) -> Found:
    """Each seat's critiques of every step."""
    steps = [step_of(problem) for problem in examiner.problems]
    prompts = [[judging_prompt(step)] for step in steps]
    answers = {seat: examiner.ask(seat, prompts, "critique", f"{seat} judges") for seat in seats}
    return Found({seat: Measured(rows, _score(steps, rows)) for seat, rows in answers.items()})


def _score(steps: Sequence[LabelledStep], rows: Rows) -> CriticScore:
    results = [
        (step, read_critique(one.completion).judgement) for step, row in zip(steps, rows, strict=True) for one in row
    ]
    whole = critic_scores([(step.correct, judgement) for step, judgement in results])
    subsets = scores_by_subset(results)
    several = len(subsets) > 1
    shown = ("correct", "error", "mean", "harmonic_mean", "invalid", "correct_ci95", "error_ci95", "harmonic_mean_ci95")
    found: CriticScore = score_of(
        rows,
        kind=CriticScore,
        **{name: getattr(whole, name) for name in shown},
        mean_of_subsets=mean_of_subsets(subsets) if several else None,
        subsets={name: asdict(score) for name, score in subsets.items()} if several else {},
    )
    return found


register_checker(KIND, check)
CRITIC_MODE = Mode(measure_critics, columns=("correct", "error", "mean", "harmonic_mean", "invalid"), tasks=step_task)
