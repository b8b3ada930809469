"""The minutes of a run: what fits into them, and that what was chosen is kept."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import Run, RunConfig, load_run, resume, train
from lite_selfplay.errors import RunFolderError
from lite_selfplay.runs import loop
from lite_selfplay.runs.budget import Budget, problems_that_fit, steps_that_fit
from lite_selfplay.training.optimizer import learning_rate
from lite_selfplay.training.rollout import LiveTable
from tests.made import same_weights
from tests.made_runs import Ear, seat_weights


class Clock:
    """A clock that stands still but for what is spent."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, budget: Budget, *parts: tuple[str, float]) -> None:
        for what, seconds in parts:
            with budget.timing(what):
                self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def budget(clock: Clock, tmp_path: Path) -> Callable[..., Budget]:
    """What is left of twelve minutes, by the clock and by what `budget.json`, or another file, holds."""
    return lambda name="budget.json", minutes=12.0: Budget(minutes, tmp_path / name, clock, 0.0)


@pytest.mark.parametrize(
    ("left", "step", "evaluation", "closing", "done", "every", "expected"),
    [
        (100, 10, 0, 0, 0, None, 9),  # 95 s are planned for
        (100, 10, 0, 20, 0, None, 7),
        (100, 10, 0, 20, 2, None, 9),  # what is left is left for steps to come
        (100, 10, 15, 20, 0, 2, 4),  # a fifth makes 20 + 5 * 10 + 15 after steps 2 and 4 = 100 > 95
        (100, 200, 0, 0, 0, None, 1),  # one is the least
        (0, 10, 0, 0, 3, None, 3),
        (1e9, 10, 0, 0, 0, None, 40),  # no more than were asked for
    ],
)
def test_steps_that_fit(left, step, evaluation, closing, done, every, expected):
    assert steps_that_fit(left, step, evaluation, closing, done=done, asked=40, every=every) == expected


@pytest.mark.parametrize(
    ("block_s", "expected"),
    [
        # A quarter of 720 s are 180 s. Twenty answers in 36 s: a problem takes 1.8 s, and 9 * 1.8 = 16.2 s in all.
        (36.0, 20),  # 180 / 16.2 = 11, and 20 are the least
        (8.0, 50),  # 180 / (9 * 0.4) = 50
        (0.0, 100),
        (60.0, 10),  # before the first step there are 240 s: 240 / (5 * 3) = 16, and 10 are the least
    ],
)
def test_problems_are_as_many_as_a_quarter_of_the_time_allows(budget, clock, block_s: float, expected: int):
    asked = list[int]()

    def evaluate(number: int) -> tuple[float, float]:
        asked.append(number)
        clock.now += block_s
        return 9.0, 5.0

    for _ in range(2):  # the second one is a resume's
        chosen = budget()
        for _ in range(2):
            chosen.choose_problems(100, evaluate)
            assert chosen.problems(100) == expected
    budget("few.json").choose_problems(20, evaluate)
    assert asked == [20]


@pytest.mark.parametrize(
    ("minutes", "took", "expected"),
    [
        (0.0, [], ""),
        (0.0, [12.86], "32:03 to 2:08:10 left"),  # half of 299 times as long, and twice
        (0.0, [12.86, 33.03], "1:04:05 to 2:44:36 left"),
        (0.0, [12.86, 33.03, 20.0], "2:12:08 left"),  # the mean but for the first, 26.515 s
        (4.5, [37.84], "3:52 left"),  # no longer than the minutes
        (60.0, [12.86, 12.86], "59:34 left"),
    ],
)
def test_the_time_left_is_a_range_until_three_steps_have_shown_it(budget, clock, minutes, took, expected):
    chosen = budget(minutes=minutes)
    clock.spend(chosen, *(("step", seconds) for seconds in took))
    assert (chosen.left(299), chosen.left(0)) == (expected, "")


def test_a_resume_has_time_left_after_its_minutes_are_over(budget, clock, tmp_path: Path):
    (tmp_path / "budget.json").write_text('{"steps": 9, "asked_steps": 40}')
    resumed = budget(minutes=0.1)
    clock.spend(resumed, *[("step", 10.0)] * 3)
    assert resumed.left(2) == "0:20 left"


@pytest.mark.parametrize(
    ("step_s", "closing_s", "times"),
    [
        (15.0, 0.0, 0),  # 12 minutes but two hold 38 steps
        (70.0, 0.0, 1.23),  # after two minutes 600 s are left, of which 570 are planned for: 700 / 570
        (70.0, 170.0, 1.75),  # 700 / 400
        (70.0, 560.0, 2.92),  # a third of the time at least: 700 / 240
    ],
)
def test_a_first_step_says_that_fewer_than_ten_fit(budget, clock, step_s: float, closing_s: float, times: float):
    chosen, found = budget(), list[float]()
    clock.now = 120.0 - closing_s
    clock.spend(chosen, ("evaluation", closing_s), ("step", step_s))
    said = chosen.few(1, 40, lambda n: found.append(round(n, 2)) or "--problems-per-step 2")
    assert found == ([times] if times else [])
    words = f"a step takes {step_s:.1f} s: fewer than 10 will fit, too few to tell much. --problems-per-step 2 would"
    assert said == (f"{words} fit 10 steps" if times else "")
    assert chosen.few(2, 40, str) == ""  # it is said once


def test_parts_of_an_evaluation_count_as_it(budget, clock):
    """What was answered before and is not asked for again is asked for at the end."""
    chosen = budget()
    parts = ("part", 5.0), ("part", 7.0), ("untouched", 100.0), ("evaluation", 20.0), ("step", 60.0)
    clock.spend(chosen, *parts)
    assert chosen.choose_steps(3, 40) == (
        "a step takes 60.0 s and the closing evaluation 32 s: 3 of 40 steps fit into 12 min"
    )


@pytest.mark.parametrize(
    ("left", "problem", "closing", "steps", "expected"),
    [
        (500, 5, 75, 20, 4),  # 475 s are planned for, and 400 hold 20 steps of 20 s
        (500, 6, 75, 20, 3),  # 20 s hold three problems and a third
        (500, 8, 75, 20, 2),  # two and a half: to the even number
        (500, 11, 75, 20, 2),  # 1.8
        (500, 14, 75, 20, 1),  # 1.4
        (500, 50, 75, 20, 1),  # one is the least
        (500, 1, 75, 20, 4),  # no more than were asked for
        (0, 5, 75, 20, 1),
    ],
)
def test_problems_that_fit(left, problem, closing, steps, expected):
    assert problems_that_fit(left, problem, closing, asked=4, steps=steps) == expected


def test_a_step_has_as_many_problems_as_the_fewest_steps_leave_time_for(budget, clock):
    def evaluate(number: int) -> tuple[float, float]:
        clock.now += 10.0  # half a second an answer
        return 9.0, 5.0

    chosen = budget()
    clock.spend(chosen, ("cold start", 80.0))
    chosen.examples(160)  # half a second each
    assert chosen.choose_problems_per_step(4, 20, 16) == ""  # nothing was answered yet
    chosen.choose_problems(75, evaluate)
    clock.spend(chosen, ("evaluation", 80.0))
    assert chosen.choose_problems_per_step(4, None, 16) == ""
    # 170 of 720 s are over. 522.5 s are planned for, less 90 for the last evaluation: 20 steps of 21.625 s. A problem
    # has 16 completions of a second.
    assert chosen.choose_problems_per_step(4, 20, 16) == (
        "an answer takes 0.50 s and learning from it 0.50 s: about 20 steps with 1 of 4 problems each fit into 12 min; "
        "problems to evaluate: 40"
    )
    assert chosen.choose_problems_per_step(4, 1, 16) == ""  # once
    assert budget().chosen["problems_per_step"] == 1


def test_what_did_not_fit_is_said_and_kept(budget, tmp_path: Path):
    chosen = budget()
    assert chosen.outcome(doubtful=True) == []
    chosen.chosen |= {"steps": 9, "asked_steps": 40, "step_s": 41.0}
    (said,) = chosen.outcome(9)
    assert said.endswith("9 of the 40 steps asked for fitted into 12 min")
    # 31 more steps of 41 s are 21.2 minutes, and 30.3 with three tenths for evaluations and to spare.
    needed = f"{said}: too little to tell what training does. --minutes 43 would do"
    assert chosen.outcome(9, doubtful=True, demo=True) == [f"{needed} (make demo MINUTES=43)"]
    assert chosen.outcome(9, doubtful=True) == [needed]
    assert json.loads((tmp_path / "budget.json").read_text())["outcome"] == needed  # for `report`
    assert budget().outcome(20) == []  # resumed for more steps


def test_without_minutes_nothing_is_chosen(budget, clock, tmp_path: Path):
    free = budget(minutes=0.0)
    clock.spend(free, ("evaluation", 0.0), ("step", 1e6))
    free.choose_problems(100, lambda number: 1 / 0)
    assert (free.problems(100), free.choose_problems_per_step(4, 20, 16), free.steps(5, 40, None)) == (100, "", None)
    assert (free.chosen, free.few(1, 40, str), list(tmp_path.iterdir())) == ({}, "", [])


@pytest.mark.parametrize(("step_s", "chosen"), [(10.0, None), (55.0, 1)])
def test_a_slow_first_step_is_enough_to_choose(budget, clock, step_s: float, chosen: int | None):
    run = budget(minutes=1.0)
    clock.spend(run, ("step", step_s))
    assert run.steps(1, 40, None) == chosen


@pytest.mark.parametrize("text", ["[]", '{"steps": "9"}', '{"problems": 1.5}', "{"])
def test_a_damaged_file_is_refused(budget, tmp_path: Path, text: str):
    (tmp_path / "budget.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"budget\.json"):
        budget()


@contextmanager
def by_clock(step_s: Callable[[int], float]) -> Iterator[Clock]:
    """Runs go by a clock of which each step takes what `step_s` says of its number."""
    clock, open_table = Clock(), LiveTable.open

    def open_and_tick(self: LiveTable, step: int, seats: Any) -> None:
        open_table(self, step, seats)
        clock.now += step_s(step) if seats else 0.0  # a new table opens without any

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "Budget", lambda minutes, path, *_: Budget(minutes, path, clock, 0.0))
        patch.setattr(LiveTable, "open", open_and_tick)
        yield clock


def config(folder: Path, **changes: Any) -> RunConfig:
    small = {"game": "agon", "model": "tiny", "tasks": "letters", "group_size": 4, "problems_per_step": 2, "steps": 40}
    small |= {"precision": "fp32", "minutes": 1, "save_every": 3, "seats": {"*": {"lr": 1e-3, "schedule": "linear"}}}
    return RunConfig(**{**small, "run_dir": folder, **changes})


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Ear]:
    """A minute's run of steps of ten seconds, and what it told."""
    ear = Ear()
    with by_clock(lambda step: 10.0):
        return train(config(tmp_path_factory.mktemp("runs") / "run"), progress=ear), ear


def test_as_many_steps_as_fit_are_played_and_schedules_end_with_them(fitted: tuple[Run, Ear]):
    run, ear = fitted
    # Two steps leave 40 s, of which 38 are planned for: three more.
    assert [row["step"] for row in run.metrics_rows()] == [1, 2, 3, 4, 5]
    assert load_run(run.path).config.run.steps == 5
    # Ten steps of 10 s are 1.75 times as long as the 57 s that are planned for.
    sizes = "--problems-per-step 1 would fit 10 steps"
    few = f"a step takes 10.0 s: fewer than 10 will fit, too few to tell much. {sizes}"
    assert ear.said.index(few) < ear.said.index("a step takes 10.0 s: 5 of 40 steps fit into 1 min")
    # 35 more steps of 10 s are 5.8 minutes, and 8.3 with three tenths for evaluations and to spare.
    told = "5 of the 40 steps asked for fitted into 1 min: too little to tell what training does."
    assert ear.said[-1] == f"{told} {sizes}; --minutes 10 would do"
    chosen = json.loads((run.path / "budget.json").read_text())
    assert chosen | {"steps": 5, "asked_steps": 40, "step_s": 10.0} == chosen
    seat = run.config.seats["A"]
    rates = [row["seats"]["A"]["lr"] for row in run.metrics_rows() if row["streams"]["drafter"]["rows_trained"]]
    expected = [learning_rate(seat, number, 40 if number < 2 else 5) for number in range(5)]
    assert rates == pytest.approx(expected[: len(rates)])


def test_a_resume_keeps_the_number_of_steps_and_ends_alike(fitted: tuple[Run, Ear], tmp_path: Path):
    whole, _ = fitted
    broken = shutil.copytree(whole.path, tmp_path / "broken")
    shutil.rmtree(broken / "checkpoints/step-5")
    with by_clock(lambda step: 1e6):  # a resume has no minutes to keep to: what was chosen holds
        again = resume(broken)
    assert again.config.run.steps == 5
    assert all(same_weights(seat_weights(again.path, seat), seat_weights(whole.path, seat)) for seat in "AB")


def test_more_steps_are_played_where_later_ones_are_shorter(budget, clock):
    chosen = budget(minutes=2.0)
    clock.spend(chosen, ("step", 10.0), ("step", 10.0))
    assert chosen.steps(2, 40, None) == 11  # of 100 s left 95 are planned for
    assert chosen.choose_steps(11, 40) == "a step takes 10.0 s: 11 of 40 steps fit into 2 min"
    found = []
    for done in range(3, 7):
        clock.spend(chosen, ("step", 4.0))
        found.append(chosen.steps(done, 11, None))
    # After the fifth 88 s are left, of which 83.6 are planned for; a step took 22 / 4 = 5.5 s: 15 more.
    assert found == [None, None, 20, None]
    assert chosen.choose_steps(20, 11) == "a step takes 5.2 s: 20 of 40 steps fit into 2 min"
    clock.spend(chosen, *[("step", 4.0)] * 12)
    assert chosen.steps(18, 20, None) is None
    clock.spend(chosen, ("step", 4.0))
    # 88 s are over, and 30.4 planned for; a step took 78 / 18 s: seven more than the nineteen.
    assert chosen.steps(19, 20, None) == 26


def test_a_run_that_falls_behind_ends_early(tmp_path: Path):
    ear = Ear()
    with by_clock(lambda step: 10.0 if step < 2 else 15.0):
        run = train(config(tmp_path / "run"), progress=ear)
    # 20 s are spent when five steps are chosen; after the fourth it is 50 s, and 10 are not enough for 15.
    assert len(run.metrics_rows()) == 4
    assert run.config.run.steps == 4
    assert "the 1 min are nearly over: training ends after 4 of 5 steps" in ear.said
    assert (run.path / "checkpoints/step-4/manifest.json").exists()


@pytest.mark.parametrize(
    ("timed_s", "asked"),
    [
        (4.0, {-1: 20, 0: 20, 5: 20}),  # 20 problems: 0.2 s each, and 15 s hold 15 in five stages; 20 are the least
        (20.0, {0: 10, 1: 10}),  # a third of the time is over, and the untouched base is left out
    ],
)
def test_fewer_problems_are_evaluated_and_a_resume_evaluates_as_many(tmp_path, monkeypatch, timed_s, asked):
    answers, timed, ear = loop.RunLoop._answers, list[Any](), Ear()

    def slow(self: Any, spec: Any, problems: Any, name: str, *rest: Any) -> Any:
        if name == "timing the evaluation":
            timed.append((spec.mode, tuple(spec.seats), len(problems)))
            clock.now += timed_s
        return answers(self, spec, problems, name, *rest)

    monkeypatch.setattr(loop.RunLoop, "_answers", slow)
    short = {"tasks": "arithmetic", "eval_tasks": "arithmetic", "eval_limit": 30, "max_completion_tokens": 4}
    with by_clock(lambda step: 10.0) as clock:
        run = train(config(tmp_path / "run", **short), progress=ear)
    assert {step: found["n"] for step, found in run.evaluations().items()} == asked
    left_out = "the untouched base is not evaluated: a third of the minutes is over"
    assert (left_out in ear.said) == (-1 not in asked)
    assert timed == [("single", ("A",), 20)]  # a seat, which answers as the evaluations' seats do
    shutil.rmtree(run.path / f"checkpoints/step-{max(asked)}")
    (run.path / f"eval/step-00000{max(asked)}.json").unlink()
    assert resume(run.path).evaluations()[max(asked)]["n"] == min(asked.values())


def test_a_slow_machine_has_fewer_problems_a_step(tmp_path, monkeypatch):
    answers, ear = loop.RunLoop._answers, Ear()

    def slow(self: Any, spec: Any, problems: Any, name: str, *rest: Any) -> Any:
        clock.now += 4.0 if name == "timing the evaluation" else 0.0
        return answers(self, spec, problems, name, *rest)

    def taught(*_: Any, **__: Any) -> None:
        clock.now += 8.0

    monkeypatch.setattr(loop.RunLoop, "_answers", slow)
    monkeypatch.setattr(loop, "cold_start", taught)
    short = {"tasks": (sums := "arithmetic:terms=2"), "eval_tasks": sums, "eval_limit": 30, "max_completion_tokens": 64}
    short |= {"cold_start": {"enabled": True, "steps": 2, "examples_per_step": 10}, "run": {"least_steps": 8}}
    with by_clock(lambda step: 10.0) as clock:
        run = train(config(tmp_path / "run", problems_per_step=4, group_size=2, **short), progress=ear)
    # An answer takes 4 / 20 s and an example 8 / 40: a problem of two drafts and two challenges 1.6 s. 12 of 60 s are
    # over, and 45.6 are planned for, less 4 for the last evaluation: 8 steps of 5.2 s, of 3 problems each.
    (said,) = (each for each in ear.said if "problems each fit" in each)
    assert said.endswith("about 8 steps with 3 of 4 problems each fit into 1 min; problems to evaluate: 10")
    assert load_run(run.path).config.run.problems_per_step == 3
    assert {stream["completions"] for row in run.metrics_rows() for stream in row["streams"].values()} == {6}
