"""Why a run does what it does: each cause from a run written by hand that has it, and none where all is well."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lite_selfplay.config import RunConfig
from lite_selfplay.data import Stream
from lite_selfplay.errors import ConfigError, RunFolderError, UnknownNameError
from lite_selfplay.games import find_game, game_names
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.runs.report.diagnosis import Stalled, diagnose, foreseen, moved_most, stalled, too_fast
from lite_selfplay.runs.report.figures import MEANINGS, find_meaning, values_of
from lite_selfplay.runs.report.step_rows import stream_metrics
from lite_selfplay.training.trainer import StreamUpdate

from .conftest import evaluation, metrics, stream

WELL = stream(completions=8, zero_variance_groups=0, rows_trained=8, loss=0.2, kl=0.01)
SMALL: dict[str, Any] = {"game": "agon", "model": "tiny", "tasks": "letters"}


@pytest.fixture
def write(write_run: Callable[..., Path]) -> Callable[..., Path]:
    """A run of eight steps; the last four differ by these values of the drafter, of the game's log and of the step."""

    def written(stream: dict[str, Any] | None = None, log: dict[str, Any] | None = None, **of_step: Any) -> Path:
        usual, rows, said = {"pairs": 4, "conversions": 1, "regressions": 1, "empty_summaries": 0.0}, [], []
        for step in range(1, 9):
            own, logged, more = (stream or {}, log or {}, of_step) if step > 4 else ({}, {}, {})
            streams = {"drafter": {**WELL, **own}, "challenger": WELL}
            rows.append(metrics(step, streams, **{"game": {**usual, **logged}, "warnings": [], **more}))
            about = {"step": step, "role": "drafter", "seat": "A", "group": 0, "sample": 0, "problem_id": f"p{step}"}
            said.append({**about, "prompt": "?", "text": "!", "reward": 1, "advantage": float(-step), "correct": False})
        return write_run("run", rows, said, max_completion_tokens=30, seats={"A": {}})

    return written


def causes(path: Path, step: int | None = None) -> dict[str, str]:
    return {cause.name: cause.sentence for cause in diagnose(path, step).causes}


def test_a_run_in_which_all_is_well(write):
    (cause,) = diagnose(write()).causes
    assert (cause.name, cause.level) == ("nothing", "normal")
    assert "drafter: reward 1.00, 50% right" in cause.evidence


@pytest.mark.parametrize(
    ("name", "stream", "says", "next_"),
    [
        ("truncation", {"truncated": 0.97, "accuracy": 0.1}, "97% of the drafter's completions hit", "-tokens 60"),
        ("truncation", {"truncated": 0.97, "loops": 0.3, "accuracy": 0.3}, "67% of the drafter's", "-tokens 60"),
        ("loops", {"truncated": 0.6, "loops": 0.3}, "30% of the drafter's completions repeat", "seats.A.lr="),
        (
            "format",
            {"well_formed": 0.0, "accuracy": 0.05},
            "None of the drafter's completions are well",
            "--cold-start",
        ),
        ("no variance", {"zero_variance_groups": 2}, "All groups of the drafter", "--group-size 16"),
        ("no variance", {"zero_variance_groups": 2, "accuracy": 0.0}, "answers are wrong", "--cold-start"),
        ("no variance", {"zero_variance_groups": 2, "accuracy": 1.0}, "answers are right", "--tasks"),
        ("kl", {"kl": 7.5}, "KL explodes: 7.5 nats per token, 0.01 in the run's first quarter", "--set seats.A.lr="),
    ],
)
def test_a_cause_in_a_stream(write, name: str, stream: dict[str, float], says: str, next_: str):
    path = write(stream)
    (cause,) = [cause for cause in diagnose(path, 6).causes if cause.name == name]
    assert (says in cause.sentence, next_ in cause.next, cause.level) == (True, True, "wrong")
    assert cause.evidence
    assert list(causes(path, 1)) == ["nothing"]  # an early step has it not


@pytest.mark.parametrize(
    ("early", "late", "found"),
    [
        ((0.02, 0.4), (0.02, 0.4), ["the drafter moves by 0.02 nats"]),
        ((0.02, 0.4), (0.02, 0.41), []),  # it gets better
        ((0.02, 0.95), (0.02, 0.92), []),  # little is left to get better at
        ((0.02, 0.4), (0.009, 0.4), []),  # it moves no further than others that do well
        ((None, 0.4), (None, 0.4), []),  # it moved nothing
    ],
)
def test_a_seat_that_moves_far_and_gets_no_better(early: Any, late: Any, found: list[str]):
    def row(gap: float | None, right: float) -> dict[str, Any]:
        return {"streams": {"drafter": {**WELL, "step_gap": gap, "accuracy": right}, "challenger": WELL}}

    rows = [*[row(*early)] * 10, *[row(*late)] * 10]
    assert [said.partition(" per token")[0] for said in too_fast(rows)] == found
    assert too_fast(rows[1:]) == []  # nine steps are no part to compare with
    # A part in the middle was the best.
    assert len(too_fast([*[row(0.02, 0.1)] * 10, *[row(0.02, 0.6)] * 10, *[row(0.02, 0.5)] * 10])) == 1


def test_a_rate_too_high_is_a_cause_with_a_lower_one(write_run: Callable[..., Path]):
    rows = [metrics(step, {"drafter": {**WELL, "step_gap": 0.02}}) for step in range(1, 21)]
    path = write_run("run", rows, seats={"A": {"lr": 3e-3}})
    (cause,) = [cause for cause in diagnose(path).causes if cause.name == "rate"]
    assert cause.sentence.startswith("The drafter moves by 0.02 nats per token at every step")
    assert cause.next.endswith("--set seats.A.lr=0.001")
    assert "rate" not in causes(path, 19)


REAL = json.loads((Path(__file__).parent / "real_runs.json").read_text())
"""Tokens, accuracy, form and reward of each step of three runs of GRPO on SVAMP with Qwen2.5-Coder-0.5B-Instruct, by
limit and learning rate. The reward was 2 for a right answer and 0.5 for the format, in the last run nothing for it."""


def steps_of(name: str) -> list[dict[str, Any]]:
    keys = ("tokens_mean", "accuracy", "well_formed", "reward_mean")
    streams = [{**WELL, "seat": "solver", "completions": 64, **dict(zip(keys, row, strict=True))} for row in REAL[name]]
    return [metrics(step, {"solver": stream}) for step, stream in enumerate(streams, 1)]


@pytest.mark.parametrize(
    ("name", "first", "says"),
    [
        (
            "cap160-rate2e-4",
            6,
            "the solver's completions shrank from 142 to 53 tokens, and no more of them are right (19% -> 5%); its "
            "reward rose from 0.44 to 0.45 by the form alone (14% -> 69% in form)",
        ),
        (
            "cap320-rate5e-5",
            16,
            "the solver's completions shrank from 185 to 72 tokens, and no more of them are right (25% -> 19%); its "
            "reward rose from 0.66 to 0.76 by the form alone (29% -> 74% in form)",
        ),
        ("cap320-rate5e-5-no-form", None, ""),
    ],
)
def test_reasoning_that_is_lost_is_seen_while_it_goes(write_run, name: str, first: int | None, says: str):
    rows = steps_of(name)
    warned = {n: found for n in range(1, len(rows) + 1) for found in stalled(rows[:n]) if found.shrank}
    assert next(iter(warned), None) == first
    options = {"name": "grpo", "format_weight": 0.0 if first is None else 0.5}
    path = write_run("run", rows, game=options, seats={"solver": {}})
    if first is None:
        assert not {"reasoning", "form alone"} & set(causes(path))
        return
    assert warned[first].said == says
    cause = diagnose(path, first).causes[0]  # before the rate, whatever else is found
    assert (cause.name, cause.level, cause.sentence) == ("reasoning", "wrong", f"T{says[1:]}.")
    assert cause.next.endswith("/config.yaml --set game.format_weight=0")


def test_a_reward_that_rises_by_form_alone(write_run):
    rows = steps_of("cap320-rate5e-5")[:15]
    path = write_run("run", rows, game={"name": "grpo", "format_weight": 0.5}, seats={"solver": {}})
    (cause,) = [cause for cause in diagnose(path).causes if cause.name == "form alone"]
    assert cause.level == "watch"
    assert cause.sentence == (
        "The solver's reward rose from 0.66 to 0.78 by the form alone (29% -> 64% in form); no more of its completions "
        "are right (25% -> 23%)."
    )
    # With as many more right as chance does not explain, it is none: 49 of 192, then 67.
    risen = [
        *rows[:-3],
        *({**row, "streams": {"solver": {**row["streams"]["solver"], "accuracy": 67 / 192}}} for row in rows[-3:]),
    ]
    assert [found.by_form for found in stalled(rows)] == [True]
    assert list(stalled(risen)) == []
    assert Stalled(True, True, "").remedy(SimpleNamespace(format_weight=0.5), "a rate") == "--set game.format_weight=0"
    assert Stalled(True, False, "").remedy(SimpleNamespace(format_weight=0.5), "a rate") == "a rate"
    unpaid = write_run("unpaid", rows, game={"name": "grpo"}, seats={"solver": {"lr": 3e-5}})
    (cause,) = [cause for cause in diagnose(unpaid).causes if cause.name == "form alone"]
    assert cause.next.endswith("--set seats.solver.lr=1e-05")


def test_evaluations_that_fell(write):
    """Of twenty problems A loses ten and wins none, p = 2 / 2**10; B loses three and wins none, which may be chance."""
    path = write()
    for moment, step, right in (("after cold start", 0, (15, 9)), ("after 8 steps", 8, (5, 6))):
        rates = {seat: count / 20 for seat, count in zip("AB", right, strict=True)}
        outcomes = {f"p{i}": {"A": i < right[0], "B": i < right[1]} for i in range(20)}
        about = {**evaluation(moment, step, **rates), "n": 20, "per_problem": outcomes}
        RunFolder(path).write_evaluation(f"step-{step:06d}", about)
    (cause,) = diagnose(path).causes
    assert (cause.name, cause.level) == ("worse", "wrong")
    assert cause.evidence == "A: 75% -> 25%, down 50 points (p = 0.002)"
    assert cause.next.endswith("--set seats.A.lr=1.7e-05")
    assert list(causes(path, 4)) == ["nothing"]  # nobody knows of an earlier step


def test_loops_from_the_start_are_taught_away_and_no_limit_is_named(tmp_path: Path):
    row = metrics(0, {"drafter": {**WELL, "truncated": 1.0, "loops": 0.9, "accuracy": 0.0}})
    (cause,) = foreseen(tmp_path, RunConfig(**SMALL), find_game("agon"), row)
    assert (cause.name, cause.evidence) == ("loops", "loops 0.90, 0.90 at first")
    assert cause.next.endswith("--cold-start")


def test_what_is_right_without_an_end_and_a_format_lacks_neither(write):
    """A task that asks for letters is solved by whatever holds one: all is cut off, nothing well-formed, and fine."""
    assert list(causes(write({"truncated": 1.0, "well_formed": 0.0, "accuracy": 0.9}))) == ["nothing"]


@pytest.mark.parametrize(
    ("warnings", "name", "says"),
    [
        ([], "empty summaries", "Empty summaries: 90%; healthy is at most 20%."),  # as the game declares
        (["90% of the drafts left nothing."], "warning", "90% of the drafts left nothing."),  # said once
    ],
)
def test_what_the_game_finds_unhealthy_or_warns_of(write, warnings: list[str], name: str, says: str):
    (cause,) = diagnose(write(log={"empty_summaries": 0.9}, warnings=warnings), 5).causes
    assert cause.name == name
    assert cause.sentence.startswith(says)


@pytest.mark.parametrize("key", ["sampler_what", "nonfinite_what"])
def test_steps_that_moved_nothing(write, key: str):
    (cause,) = diagnose(write(**{key: "seat A is off"})).causes
    assert (cause.evidence, "updated nothing" in cause.sentence) == ("seat A is off", True)


def test_votes_that_split(write_run: Callable[..., Path]):
    row = metrics(1, game={"proposals": 8, "usable": 4, "vote_share": 0.3})
    path = write_run("asked", [row], game="sqlm", seats={"shared": {}})
    assert "Vote share: 30%" in causes(path)["vote share"]


def test_the_completions_that_moved_most(write):
    found = diagnose(write())
    assert found.steps == (4, 8)
    assert [row["advantage"] for row in found.moved_most] == [-8.0, -7.0, -6.0, -5.0, -4.0]
    assert moved_most([{"advantage": None}, {"advantage": 0.0}, {}]) == []


def test_no_step_and_a_step_that_is_not_there(write, write_run):
    with pytest.raises(ConfigError, match="its steps are 1 to 8"):
        diagnose(write(), 9)
    with pytest.raises(RunFolderError, match="no steps yet"):
        diagnose(write_run("new", [], seats={"A": {}}))


def test_every_key_of_a_stream_is_explained():
    keys = set(stream_metrics(Stream("solver", []), StreamUpdate("solver", "A"))) - {"seat"}
    assert keys == {key for key, meaning in MEANINGS.items() if meaning.part == "streams"}


def test_every_declared_figure_is_explained():
    for game in map(find_game, game_names()):
        for figure in game.figures:
            assert figure.about.endswith("."), figure.key
            assert all(find_meaning(asked, game).meaning for asked in (figure.key, figure.name.upper()))


def test_a_figure_by_any_of_its_names_and_its_values(write):
    assert find_meaning("streams.drafter.kl").key == find_meaning("KL").key == "kl"
    assert find_meaning("length in tokens").key == "tokens_mean"
    rows = list(RunFolder(write()).steps())
    assert values_of(find_meaning("accuracy"), rows) == {"drafter": [0.5] * 8, "challenger": [0.5] * 8}
    assert values_of(find_meaning("grad_norm"), rows) == {"A": [0.5] * 8}
    assert values_of(find_meaning("empty summaries"), rows) == {"": [0.0] * 8}
    for unknown, said in (("truncatd", "did you mean truncated"), ("", "unknown metric ''")):
        with pytest.raises(UnknownNameError, match=said):
            find_meaning(unknown)
