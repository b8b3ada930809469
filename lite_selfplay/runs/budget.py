"""The minutes that a run may take (`run.minutes`): how much is measured, how many steps fit, and where that is written.

How many problems are evaluated is chosen before the first evaluation, by how fast the machine samples. A cold start
that would take too long is cut short after its first batch. The number of steps is chosen once, when the first ones
have shown what a step takes; schedules and evaluations go by it from then on. A run that falls behind all the same ends
early. `budget.json` holds what was chosen, and a resume keeps it.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lite_selfplay.data import Sampling
from lite_selfplay.errors import RunFolderError, SaveFailed
from lite_selfplay.models.backends.base import Backend
from lite_selfplay.models.generation.sampling import GenerationRequest
from lite_selfplay.tasks.base import derived_seed
from lite_selfplay.tasks.files import read_json, write_whole
from lite_selfplay.training.ranks import ALONE, Ranks

FIRST_STEPS = 2
"""Steps that show what the others take."""
SPARE = 0.05
"""The share of the time left that is not planned for: later completions may be longer than the first ones."""
MEASURED = 1 / 4
"""The share of all minutes that evaluations may take before fewer problems are evaluated."""
COLD_START = 1 / 2
"""The share of the minutes left that a cold start may take before its seats learn fewer batches."""
LEAST_PROBLEMS = 20
STEP_OVER_SAMPLING = 2.5
"""A step's time over that of its sampling, before one was seen: on a CPU updates take longer than rollouts."""
_PROBE = {"rows": 32, "tokens": 12}


def sampling_speed(backend: Backend, seat: str, prompt: Sequence[int], completions: int) -> float:
    """Tokens a second that a seat samples, from a few tokens of a batch of rows. Takes a second or a few."""
    rows = min(_PROBE["rows"], completions)
    seeds = [[derived_seed(0, "speed", k) for k in range(rows)]]
    spent = tokens = 0.0
    for length in (2, _PROBE["tokens"]):  # the first call prepares what later ones find ready
        started = time.perf_counter()
        (group,) = backend.generate(GenerationRequest(seat, [prompt], rows, Sampling(max_tokens=length), seeds))
        spent, tokens = time.perf_counter() - started, sum(len(row.token_ids) for row in group)
    return tokens / spent


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


class Budget:
    """What is left of a run's minutes, and what was chosen by it; with no minutes given, every wish is granted.

    `chosen` is what `budget.json` holds: `problems` to evaluate, `steps` to play of `asked_steps`, and the figures that
    decided. `began` is when the minutes began, by the clock. Raises RunFolderError for a damaged file.
    """

    def __init__(self, minutes: float, path: Path, clock: Callable[[], float], began: float, ranks: Ranks = ALONE):
        self.minutes, self._path, self._clock, self._began, self._ranks = minutes, path, clock, began, ranks
        self._steps_s: list[float] = []
        self._saving_s = 0.0
        self.chosen: dict[str, Any] = ranks.from_main("the minutes", self._read)
        counts = ("problems", "cold_start", "asked_cold_start", "steps", "asked_steps")
        numbers: dict[str, type] = {**dict.fromkeys(counts, int), "evaluation_s": float}
        if not all(isinstance(self.chosen.get(key, kind()), kind) for key, kind in numbers.items()):
            raise RunFolderError(f"{path} is not what a run writes")
        self._resumed = "steps" in self.chosen

    def _read(self) -> dict[str, Any]:
        return read_json(self._path) if self.minutes and self._path.exists() else {}

    @property
    def nothing_chosen(self) -> bool:
        """Whether nothing was chosen yet, so that the machine is to be measured."""
        return self.minutes > 0 and not self.chosen

    @contextmanager
    def timing_a_step(self) -> Iterator[None]:
        started = self._clock()
        yield
        self._steps_s.append(self._clock() - started)

    @contextmanager
    def timing_a_save(self) -> Iterator[None]:
        started = self._clock()
        yield
        self._saving_s = max(self._saving_s, self._clock() - started)

    @contextmanager
    def timing_an_evaluation(self) -> Iterator[None]:
        started = self._clock()
        yield
        if self.minutes:
            longest = max(self.chosen.get("evaluation_s", 0.0), self._clock() - started)
            self._write(evaluation_s=round(longest, 2))

    def problems(self, most: int) -> int:
        """How many problems to evaluate, of so many."""
        return min(most, self.chosen.get("problems", most))

    def choose_problems(self, tokens_per_s: float, *, most: int, steps: int, answers: int, step_tokens: int) -> str:
        """Choose how many of `most` held-out problems are evaluated. Returns what to expect, as a sentence.

        `answers` are the tokens sampled for a problem in all evaluations together, `step_tokens` those of a step.
        """
        whole, problem_s = 60 * self.minutes, answers / tokens_per_s
        fits = int(MEASURED * whole / problem_s) // 10 * 10
        problems = min(most, max(LEAST_PROBLEMS, fits))
        step_s = STEP_OVER_SAMPLING * step_tokens / tokens_per_s
        left = whole - problems * problem_s
        expected = steps_that_fit(left, step_s, 0.0, 0.0, done=0, asked=steps, every=None)
        self._write(minutes=self.minutes, tokens_per_s=round(tokens_per_s, 1), problems=problems)
        minutes = min(self.minutes, math.ceil((problems * problem_s + expected * step_s) / 60))
        return (
            f"this machine: {tokens_per_s:,.0f} tokens/s; about {expected} of {steps} steps"
            + (f", evaluation on {problems} of {most} problems" if most else "")
            + f"; about {minutes:g} min"
        )

    def cold_start(self, asked: int) -> Callable[[int], int]:
        """Begin a cold start of `asked` batches a seat.

        What is returned says how many fit, after the first batch and given the number of seats that learn. A cold start
        that was stopped is repeated with as many.
        """
        began = self._clock()

        def fit(seats: int) -> int:
            batch_s = self._clock() - began
            if self.minutes and "cold_start" not in self.chosen:
                fits = int(COLD_START * (self._left_s() + batch_s) / max(batch_s * seats, 1e-9))
                self._write(cold_start=min(asked, max(1, fits)), asked_cold_start=asked)
            return min(asked, self.chosen.get("cold_start", asked))

        return fit

    def steps(self, done: int, asked: int, every: int | None) -> int | None:
        """How many steps to play, where that is to be changed after `done` of `asked`; else None.

        It is chosen once after the first steps, or as soon as another one might not end in time; and again where time
        is nearly over all the same. A resume goes by what was chosen, however long it takes.
        """
        if not self.minutes or done >= asked or self._resumed:
            return None
        left, closing, step_s = self._left_s(), self._closing_s(), max(self._steps_s[-FIRST_STEPS:])
        if "steps" in self.chosen:
            return done if left < step_s + closing else None
        if done < FIRST_STEPS and left > 2 * step_s + closing:
            return None
        evaluation_s, step_s = self.chosen.get("evaluation_s", 0.0), self._steps_s[-1]  # the first of all is slower
        return steps_that_fit(left, step_s, evaluation_s, closing, done=done, asked=asked, every=every)

    def choose_steps(self, steps: int, asked: int) -> str:
        """Write down how many steps are played. Returns that as a sentence."""
        before, step_s, closing = self.chosen.get("steps"), self._steps_s[-1], self._closing_s()
        asked = self.chosen.get("asked_steps", asked)
        self._write(steps=steps, asked_steps=asked, step_s=round(step_s, 2), closing_s=round(closing, 2))
        if before is not None:
            return f"the {self.minutes:g} min are nearly over: training ends after {steps} of {before} steps"
        end = f" and the closing evaluation {closing:.0f} s" if closing >= 1 else ""
        return f"a step takes {step_s:.1f} s{end}: {steps} of {asked} steps fit into {self.minutes:g} min"

    def outcome(self) -> list[str]:
        """What the closing report says of it: nothing where all that was asked for was done."""
        done = []
        for key, what in (("cold_start", "batches of the cold start"), ("steps", "steps asked for")):
            did, asked = self.chosen.get(key), self.chosen.get(f"asked_{key}")
            if did != asked:
                done.append(f"{did} of the {asked} {what}")
        return [f"{' and '.join(done)} fitted into {self.minutes:g} min"] if done else []

    def _left_s(self) -> float:
        return 60 * self.minutes - (self._clock() - self._began)

    def _closing_s(self) -> float:
        """Seconds kept for the last evaluation and the last save: those of the longest ones so far."""
        longest: float = self.chosen.get("evaluation_s", 0.0)
        return longest + self._saving_s

    def _write(self, **values: Any) -> None:
        self.chosen |= values
        if not self._ranks.main:
            return
        try:
            write_whole(self._path, json.dumps(self.chosen, indent=1) + "\n")
        except OSError as error:
            raise SaveFailed(f"cannot write {self._path}: {error.strerror or error}") from None
