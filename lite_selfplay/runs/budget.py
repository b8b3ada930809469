"""The minutes that a run may take (`run.minutes`): how much is measured, how many steps fit, and where that is written.

At most a third of the minutes goes to what comes before the first step, unless a cold start, which is never cut short,
takes more. How many problems are evaluated is chosen by how long the first of them take, and how many a step has, where
`run.least_steps` are to fit, by that and by how long the examples of the cold start took. The number of steps is
chosen when the first ones have shown what a step takes, and raised at half time and at the end where more fit;
schedules and evaluations go by it from then on. A run that falls behind ends early. `budget.json` holds what was
chosen, and a resume keeps it.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import create_model

from lite_selfplay.errors import SaveFailed
from lite_selfplay.tasks.files import read_json, write_errors, write_whole
from lite_selfplay.training.progress import clock as as_clock
from lite_selfplay.training.ranks import ALONE, Ranks

FIRST_STEPS = 2
"""Steps that show what the others take."""
SPARE = 0.05
"""The share of the time left that is not planned for: later completions may be longer than the first ones."""
BEFORE = 1 / 3
"""The share of all minutes that goes to what comes before the first step."""
MEASURED = 1 / 4
"""The share of all minutes that evaluations may take before fewer problems are evaluated."""
_COUNTS: dict[str, Any] = dict.fromkeys(("problems", "problems_per_step", "steps", "asked_steps"), (int, 0))
# What is read of `budget.json`.
_Chosen = create_model("_Chosen", **_COUNTS)
LEAST_PROBLEMS, FEWEST_PROBLEMS, FEW = 20, 10, 10
"""Problems that are evaluated at least, and where even these would take more than is left before the first step; steps
of which fewer tell little."""


def steps_that_fit(
    left_s: float, step_s: float, evaluation_s: float, closing_s: float, *, done: int, asked: int, every: int | None
) -> int:
    """The most steps, of those asked for, that end in time; `done` of them are over, and one is the least.

    `left_s` are the seconds left, `step_s` those of a step, `evaluation_s` those of an evaluation, of which one follows
    every `every` steps, and `closing_s` those kept for what follows the last step.
    """
    steps, needed = done, closing_s
    while steps < asked:
        needed += step_s + (evaluation_s if every and steps and steps % every == 0 else 0.0)
        if needed > left_s * (1 - SPARE):
            break
        steps += 1
    return max(steps, 1)


def problems_that_fit(left_s: float, problem_s: float, closing_s: float, *, asked: int, steps: int) -> int:
    """The problems a step, of those asked for, with which about so many steps end in time; one is the least.

    `problem_s` are the seconds that a step takes for each of its problems; the others as in `steps_that_fit`.
    """
    return max(1, min(asked, round((left_s * (1 - SPARE) - closing_s) / (steps * problem_s))))


class Budget:
    """What is left of a run's minutes, and what was chosen by it; with no minutes given, every wish is granted.

    `chosen` is what `budget.json` holds: `problems` to evaluate, `steps` to play of `asked_steps`, and the figures that
    decided. `began` is when the minutes began, by the clock. Raises RunFolderError for a damaged file.
    """

    def __init__(
        self,
        minutes: float,
        path: Path,
        clock: Callable[[], float] = time.monotonic,
        began: float = 0.0,
        ranks: Ranks = ALONE,
    ):
        self.minutes, self._path, self._clock, self._began, self._ranks = minutes, path, clock, began, ranks
        self._took: dict[str, list[float]] = {"step": [], "save": [], "evaluation": []}
        self.chosen: dict[str, Any] = ranks.from_main(
            "the minutes", lambda: read_json(path, _Chosen) if minutes and path.exists() else {}
        )
        self._resumed = "steps" in self.chosen
        self._answer_s = self._example_s = 0.0  # seconds of an answer, and of an example of the cold start

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Note how long a `step`, a `save` or an `evaluation` takes, or a `part` of the next evaluation, which is not
        asked for again."""
        started = self._clock()
        yield
        parts = self._took.pop("part", []) if what == "evaluation" else []
        self._took.setdefault(what, []).append(self._clock() - started + sum(parts))

    def before_s(self) -> float:
        """The seconds left of what may pass before the first step."""
        return self._left_s() - (1 - BEFORE) * 60 * self.minutes if self.minutes else math.inf

    def problems(self, most: int) -> int:
        """How many problems to evaluate, of so many."""
        return min(most, self.chosen.get("problems", most))

    def choose_problems(self, most: int, evaluate: Callable[[int], tuple[float, float]]) -> None:
        """Choose how many of `most` problems are evaluated: once, by what the first of them take.

        `evaluate` answers so many, and returns for how many such answers all evaluations together ask of a problem, and
        those before the first step, with this one.
        """
        if not self.minutes or "problems" in self.chosen or most <= LEAST_PROBLEMS:
            return
        before = self.before_s()
        with self.timing("part"):
            answers, first = evaluate(LEAST_PROBLEMS)
        self._answer_s = problem_s = max(self._took["part"][-1], 1e-9) / LEAST_PROBLEMS
        fits = max(LEAST_PROBLEMS, int(MEASURED * 60 * self.minutes / (problem_s * answers)))
        fits = max(FEWEST_PROBLEMS, min(fits, int(before / (problem_s * first)))) // 10 * 10
        self._write(minutes=self.minutes, problems=min(most, fits))

    def examples(self, count: int) -> None:
        """Note how many examples the seats learned in the cold start that was just timed."""
        self._example_s = self._took["cold start"][-1] / count

    def choose_problems_per_step(self, asked: int, steps: int | None, rows: int) -> str:
        """Choose how many of `asked` problems a step has, once, so that `steps` fit: by how long answers and examples
        took. `rows` are the completions of a problem. Returns that as a sentence; empty where nothing is chosen."""
        if not (self.minutes and steps and self._answer_s and self._example_s) or "problems_per_step" in self.chosen:
            return ""
        problem_s = rows * (self._answer_s + self._example_s)
        fits = problems_that_fit(self._left_s(), problem_s, self._closing_s(), asked=asked, steps=steps)
        self._write(problems_per_step=fits, answer_s=round(self._answer_s, 3), example_s=round(self._example_s, 3))
        return (
            f"an answer takes {self._answer_s:.2f} s, and learning from it {self._example_s:.2f} s: {fits} of {asked} "
            f"problems a step, so that about {steps} steps fit into {self.minutes:g} min, and "
            f"{self.chosen['problems']} to evaluate"
        )

    def steps(self, done: int, asked: int, every: int | None) -> int | None:
        """How many steps to play, where that is to be changed after `done` of `asked`; else None.

        It is chosen after the first steps, or as soon as another one might not end in time; again when half of them, or
        all but one, are over, if more fit by then; and where time is nearly over all the same. A resume goes by what
        was chosen, however long it takes.
        """
        if not self.minutes or done >= asked or self._resumed:
            return None
        left, closing, step_s = self._left_s(), self._closing_s(), max(self._took["step"][-FIRST_STEPS:])
        before, most = self.chosen.get("steps"), self.chosen.get("asked_steps", asked)
        if before is not None and left < step_s + closing:
            return done
        again = done in (asked // 2, asked - 1)
        if not again if before is not None else done < FIRST_STEPS and left > 2 * step_s + closing:
            return None
        evaluation_s = max(self._took["evaluation"], default=0.0)
        fits = steps_that_fit(left, self._step_s(), evaluation_s, closing, done=done, asked=most, every=every)
        return fits if before is None or fits > before else None

    def choose_steps(self, steps: int, asked: int) -> str:
        """Write down how many steps are played. Returns that as a sentence."""
        before, step_s, closing = self.chosen.get("steps"), self._step_s(), self._closing_s()
        asked = self.chosen.get("asked_steps", asked)
        self._write(steps=steps, asked_steps=asked, step_s=round(step_s, 2), closing_s=round(closing, 2))
        if before is not None and steps < before:
            return f"the {self.minutes:g} min are nearly over: training ends after {steps} of {before} steps"
        end = f" and the closing evaluation {closing:.0f} s" if closing >= 1 else ""
        return f"a step takes {step_s:.1f} s{end}: {steps} of {asked} steps fit into {self.minutes:g} min"

    def left(self, steps: int) -> str:
        """How long so many more steps take, in words: a range until three have shown it, no more than the minutes."""
        took = self._took["step"]
        if not took or not steps:
            return ""
        # The first step may be a slow one, or have met no long answer.
        few = [took[0] / 2, 2 * took[0]] if len(took) == 1 else [min(took), max(took)]
        each = few if len(took) <= FIRST_STEPS else [fmean(took[1:])]
        bound = self.minutes and not self._resumed  # a resume goes on however long it takes
        most = max(0.0, self._left_s() - self._closing_s()) if bound else math.inf
        return f"{' to '.join(dict.fromkeys(as_clock(min(step_s * steps, most)) for step_s in each))} left"

    def few(self, done: int, asked: int, shorter: Callable[[float], str]) -> str:
        """What is said after the first step where fewer than ten will fit, which `budget.json` keeps; empty elsewhere.

        `shorter` names the sizes of a step that takes so many times less.
        """
        if not self.minutes or done != 1 or self._resumed:
            return ""
        step_s = self._took["step"][-1]
        # Of shorter answers an evaluation is shorter as well.
        room = max((self._left_s() + step_s) * (1 - SPARE) - self._closing_s(), BEFORE * 60 * self.minutes)
        if min(FEW, asked) * step_s <= room:
            return ""
        self._write(sizes=f"{shorter(FEW * step_s / room)} would fit {FEW} steps")
        return f"a step takes {step_s:.1f} s: fewer than {FEW} will fit, which tells little. {self.chosen['sizes']}"

    def outcome(self, played: int = 0, *, doubtful: bool = False, demo: bool = False) -> list[str]:
        """What the closing report says of it, which `budget.json` keeps: nothing where all that was asked for was done,
        if only by a resume (`played` steps in all).

        `doubtful`: no change that the run shows is one for sure. Then the minutes that all steps take at this speed are
        named, of which evaluations may have as large a share as now, and, where ten did not fit, sizes of which they
        would. `demo`: it is that of `make demo`.
        """
        steps, asked = (self.chosen.get(key, 0) for key in ("steps", "asked_steps"))
        if steps == asked or played > steps:
            if self.chosen.pop("outcome", None) is not None:
                self._write()
            return []
        sentence = f"{steps} of the {asked} steps asked for fitted into {self.minutes:g} min"
        missing = asked - steps
        if doubtful:
            needed = math.ceil(self.minutes + missing * self.chosen["step_s"] / 60 / (1 - MEASURED - SPARE))
            sizes = f"{self.chosen['sizes']}; " if "sizes" in self.chosen else ""
            own = f" (make demo MINUTES={needed})" if demo else ""
            sentence += f": too little to tell what training does. {sizes}--minutes {needed} would do{own}"
        self._write(outcome=sentence)
        return [sentence]

    def _left_s(self) -> float:
        return 60 * self.minutes - (self._clock() - self._began)

    def _step_s(self) -> float:
        """The mean of the steps so far but for the first, which is slower."""
        return fmean(self._took["step"][1:] or self._took["step"])

    def _closing_s(self) -> float:
        """Seconds kept for the last evaluation and the last save: those of the longest ones so far."""
        return sum(max(self._took[what], default=0.0) for what in ("evaluation", "save"))

    def _write(self, **values: Any) -> None:
        self.chosen |= values
        if self._ranks.main:
            with write_errors(self._path, SaveFailed):
                write_whole(self._path, json.dumps(self.chosen, indent=1) + "\n")
