"""The time limit of a run (`run.minutes`): how many problems are evaluated, and how many steps are played.

At most a third of the minutes may pass before the first step, except for a cold start, which is never cut short. The
first problems are timed to choose how many are evaluated. With `run.least_steps`, these times and those of the cold
start's examples also choose the problems per step. The first steps are timed to choose how many are played; more are
added at half time and at the end if they fit. Schedules and evaluations follow that number. A run that falls behind
ends early. `budget.json` holds the choices, and a resume keeps them.
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
from lite_selfplay.tasks.files import JSON_LIMIT, read_json, write_errors, write_whole
from lite_selfplay.training.progress import clock as as_clock
from lite_selfplay.training.ranks import ALONE, Ranks

# The steps that are timed before the number of steps is chosen.
FIRST_STEPS = 2
# The last times of a kind that are kept, besides the first.
LONG = 1000
# The share of the remaining time that is not planned for: later completions may be longer than the first ones.
SPARE = 0.05
# The share of the minutes that may pass before the first step.
BEFORE = 1 / 3
# The share of the minutes above which fewer problems are evaluated.
MEASURED = 1 / 4
# The checked keys of `budget.json`.
_Chosen = create_model("_Chosen", problems=(int, 0), problems_per_step=(int, 0), steps=(int, 0), asked_steps=(int, 0))
# The fewest problems to evaluate; the fewest if those would take too long before the first step; steps below which a
# run shows little.
LEAST_PROBLEMS, FEWEST_PROBLEMS, FEW = 20, 10, 10


def steps_that_fit(
    left_s: float, step_s: float, evaluation_s: float, closing_s: float, *, done: int, asked: int, every: int | None
) -> int:
    """How many of the `asked` steps fit into the `left_s` seconds left, at least one; `done` are over.

    A step takes `step_s` seconds, an evaluation after every `every` steps `evaluation_s`, and everything after the last
    step `closing_s`.
    """
    steps, needed = done, closing_s
    while steps < asked:
        needed += step_s + (evaluation_s if every and steps and steps % every == 0 else 0.0)
        if needed > left_s * (1 - SPARE):
            break
        steps += 1
    return max(steps, 1)


def problems_that_fit(left_s: float, problem_s: float, closing_s: float, *, asked: int, steps: int) -> int:
    """The problems per step, at least one and at most `asked`, with which about `steps` steps fit.

    A step takes `problem_s` seconds per problem; `left_s` and `closing_s` are as in `steps_that_fit`.
    """
    return max(1, min(asked, round((left_s * (1 - SPARE) - closing_s) / (steps * problem_s))))


class Budget:
    """Keeps a run within its minutes; without minutes it limits nothing.

    `chosen` is the content of `budget.json`: `problems` to evaluate, `steps` to play out of `asked_steps`, and the
    times that determined them. The minutes start at `began` on the clock. Raises RunFolderError for a damaged file.
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
        """Time a `step`, a `save`, an `evaluation`, or a `part` of the next evaluation, whose answers it reuses."""
        started = self._clock()
        yield
        parts = self._took.pop("part", []) if what == "evaluation" else []
        took = self._took.setdefault(what, [])
        took.append(self._clock() - started + sum(parts))
        del took[1:-LONG]

    def before_s(self) -> float:
        """The seconds left before the first step must begin."""
        return self._left_s() - (1 - BEFORE) * 60 * self.minutes if self.minutes else math.inf

    def problems(self, most: int) -> int:
        """How many of `most` problems to evaluate."""
        return min(most, self.chosen.get("problems", most))

    def choose_problems(self, most: int, evaluate: Callable[[int], tuple[float, float]]) -> None:
        """Choose, once, how many of `most` problems are evaluated, by timing the first ones.

        `evaluate(n)` answers the first n problems once each. It returns the number of answers per problem that all
        evaluations together need, and the number needed before the first step; both include those just made.
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
        """Note the number of examples in the cold start that was just timed."""
        self._example_s = self._took["cold start"][-1] / count

    def choose_problems_per_step(self, asked: int, steps: int | None, rows: int) -> str:
        """Choose, once, how many of `asked` problems a step has, so that `steps` steps fit, by the times of answers and
        examples. A problem has `rows` completions. Returns a sentence about it, empty if nothing is chosen."""
        if not (self.minutes and steps and self._answer_s and self._example_s) or "problems_per_step" in self.chosen:
            return ""
        problem_s = rows * (self._answer_s + self._example_s)
        fits = problems_that_fit(self._left_s(), problem_s, self._closing_s(), asked=asked, steps=steps)
        self._write(problems_per_step=fits, answer_s=round(self._answer_s, 3), example_s=round(self._example_s, 3))
        return (
            f"an answer takes {self._answer_s:.2f} s and learning from it {self._example_s:.2f} s: about {steps} steps "
            f"with {fits} of {asked} problems each fit into {self.minutes:g} min; problems to evaluate: "
            f"{self.chosen['problems']}"
        )

    def steps(self, done: int, asked: int, every: int | None) -> int | None:
        """The new number of steps to play, after `done` of `asked`; None to leave it unchanged.

        It is chosen after the first steps, or earlier if another step might not fit; raised after half of them and
        before the last if more fit; lowered if time runs out. A resume keeps the number, however long it takes.
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
        """Save the number of steps to play. Returns a sentence about it."""
        before, step_s, closing = self.chosen.get("steps"), self._step_s(), self._closing_s()
        asked = self.chosen.get("asked_steps", asked)
        self._write(steps=steps, asked_steps=asked, step_s=round(step_s, 2), closing_s=round(closing, 2))
        if before is not None and steps < before:
            return f"the {self.minutes:g} min are nearly over: training ends after {steps} of {before} steps"
        end = f" and the closing evaluation {closing:.0f} s" if closing >= 1 else ""
        return f"a step takes {step_s:.1f} s{end}: {steps} of {asked} steps fit into {self.minutes:g} min"

    def left(self, steps: int) -> str:
        """The time that `steps` more steps take, as text: a range until three were timed, at most the minutes left."""
        took = self._took["step"]
        if not took or not steps:
            return ""
        # The first step may be slow, or have had no long answer.
        few = [took[0] / 2, 2 * took[0]] if len(took) == 1 else [min(took), max(took)]
        each = few if len(took) <= FIRST_STEPS else [fmean(took[1:])]
        most = max(0.0, self._left_s() - self._closing_s()) if self.minutes and not self._resumed else math.inf
        return f"{' to '.join(dict.fromkeys(as_clock(min(step_s * steps, most)) for step_s in each))} left"

    def few(self, done: int, asked: int, shorter: Callable[[float], str]) -> str:
        """A sentence after the first step if fewer than ten will fit, with smaller sizes (kept in `budget.json`).

        `shorter(n)` names sizes that make a step n times faster. Empty if ten fit.
        """
        if not self.minutes or done != 1 or self._resumed:
            return ""
        step_s = self._took["step"][-1]
        # With shorter answers an evaluation is shorter, too.
        room = max((self._left_s() + step_s) * (1 - SPARE) - self._closing_s(), BEFORE * 60 * self.minutes)
        if min(FEW, asked) * step_s <= room:
            return ""
        self._write(sizes=f"{shorter(FEW * step_s / room)} would fit {FEW} steps")
        return f"a step takes {step_s:.1f} s: fewer than {FEW} will fit, too few to tell much. {self.chosen['sizes']}"

    def outcome(self, played: int = 0, *, doubtful: bool = False, demo: bool = False) -> list[str]:
        """The closing report's sentence about steps that did not fit (kept in `budget.json`); empty if all `played`.

        If every change that the run shows is `doubtful`, it also names the minutes that all steps need, with the same
        share for evaluations, and the sizes of `few`. `demo`: name the argument of `make demo`.
        """
        steps, asked = (self.chosen.get(key, 0) for key in ("steps", "asked_steps"))
        if steps == asked or played > steps:
            if self.chosen.pop("outcome", None) is not None:
                self._write()
            return []
        sentence = f"{steps} of the {asked} steps asked for fitted into {self.minutes:g} min"
        if doubtful:
            needed = math.ceil(self.minutes + (asked - steps) * self.chosen["step_s"] / 60 / (1 - MEASURED - SPARE))
            sizes = f"{self.chosen['sizes']}; " if "sizes" in self.chosen else ""
            own = f" (make demo MINUTES={needed})" if demo else ""
            sentence += f": too little to tell what training does. {sizes}--minutes {needed} would do{own}"
        self._write(outcome=sentence)
        return [sentence]

    def _left_s(self) -> float:
        return 60 * self.minutes - (self._clock() - self._began)

    def _step_s(self) -> float:
        """The mean time of a step, without the first, which is slower."""
        return fmean(self._took["step"][1:] or self._took["step"])

    def _closing_s(self) -> float:
        """Seconds reserved for the last evaluation and save: those of the longest so far."""
        return sum(max(self._took[what], default=0.0) for what in ("evaluation", "save"))

    def _write(self, **values: Any) -> None:
        self.chosen |= values
        if self._ranks.main:
            with write_errors(self._path, SaveFailed):
                write_whole(self._path, json.dumps(self.chosen, indent=1) + "\n", JSON_LIMIT)
