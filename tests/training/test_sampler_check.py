"""The sampler's check: arithmetic by hand, steps sampled by other weights, and sound runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay import RunConfig, train
from lite_selfplay.config import ModelSection
from lite_selfplay.data import BASE, Completion, Sampling
from lite_selfplay.errors import TrainingError
from lite_selfplay.models.backends.transformers import TransformersBackend, compute_dtype
from lite_selfplay.models.generation.sampling import GenerationRequest
from lite_selfplay.training.losses import LossRow
from lite_selfplay.training.sampler_check import (
    BOUNDS,
    LONGEST,
    ONE_IN,
    Agreement,
    OffPolicyError,
    SamplerCheck,
    Tolerance,
    explained_better,
    gap_turn,
    mean_gap,
    spread,
)
from tests.made import same_weights
from tests.made_runs import read_lines, saved_steps


def test_gaps_by_hand():
    # |-1 + 1.5| + |-2 + 1| + |-3 + 3| over three tokens.
    assert mean_gap([((-1.0, -2.0), (-1.5, -1.0)), ((-3.0,), (-3.0,))]) == pytest.approx(0.5)
    assert mean_gap([]) is None
    with pytest.raises(ValueError, match="zip"):
        mean_gap([((-1.0,), (-1.0, -2.0))])
    # One token in twenty may differ by anything.
    noted, own = [-1.0] * 40, [-1.0] * 38 + [-12.0, -13.0]
    assert mean_gap([(noted, own)]) == pytest.approx(23 / 40)
    assert mean_gap([(noted, own)], usual=True) == 0.0
    assert mean_gap([(noted, [*own[:37], -2.0, -12.0, -13.0])], usual=True) == pytest.approx(1 / 38)
    assert mean_gap([([-1.0], [-4.0])], usual=True) == 3.0  # too few to skip one
    assert mean_gap([], usual=True) is None
    # Only rows that are compared count.
    rows = [(LossRow(Completion("", "", (5,), (7, 7), (-1.0, -2.0), "eos", "A", 0, Sampling()), 1.0), [-1.5, -2.0])]
    assert Agreement("solver", "A", rows=rows).gap == pytest.approx(0.25)
    assert Agreement("solver", "A", compared=False, rows=rows).gap is Agreement("solver", "A").gap is None


def test_evenly_spaced():
    assert spread(list("abcdefgh"), 2) == ["c", "g"]
    assert spread(list("abc"), 1) == ["b"]
    assert spread(list("abc"), 9) == ["a", "b", "c"]
    assert spread([], 3) == []


def test_a_sign_test_by_hand():
    # 0.5^20 is 0.95e-6, 0.5^19 twice that: it takes 20 tokens to be as sure as one in a million.
    assert explained_better([0.0] * 20, [1.0] * 20, [0.5] * 20)
    assert not explained_better([0.0] * 19, [1.0] * 19, [0.5] * 19)
    # One of 24 the other way: 25 / 2^24 is 1.5e-6; one of 25: 26 / 2^25 is 0.8e-6.
    assert not explained_better([0.0] * 24, [1.0] * 23 + [0.5], [0.5] * 23 + [1.0])
    assert explained_better([0.0] * 25, [1.0] * 24 + [0.5], [0.5] * 24 + [1.0])
    # Of many tokens: 54% of 2,048 are 3.6 standard deviations from half, 56% are 5.4.
    assert not explained_better([0.0] * 2048, [1.0] * 1106 + [0.5] * 942, [0.5] * 1106 + [1.0] * 942)
    assert explained_better([0.0] * 2048, [1.0] * 1147 + [0.5] * 901, [0.5] * 1147 + [1.0] * 901)
    # If both agree there is no evidence, and weights that are further away never win.
    assert not explained_better([0.0] * 100, [1.0] * 100, [1.0] * 100)
    assert not explained_better([0.0] * 100, [0.5] * 100, [1.0] * 100)


# Against a backend


def sampled_by(backend: Any, name: str, count: int, tokens: int, temperature: float = 1.0) -> list[LossRow]:
    """Rows sampled by `name`, labelled as seat A's."""
    sampling = Sampling(temperature=temperature, max_tokens=tokens)
    seeds = [[10 * p + k for k in range(2)] for p in range(count // 2)]
    prompts = [[10 + p, 11, 12] for p in range(count // 2)]
    found = backend.generate(GenerationRequest(name, prompts, 2, sampling, seeds))
    return [
        LossRow(Completion("", "", p, g.token_ids, g.logprobs, g.stop, "A", 0, sampling), 1.0)
        for p, row in zip(prompts, found, strict=True)
        for g in row
    ]


def agreement_of(backend: Any, rows: list[LossRow], seat: str = "A") -> Agreement:
    agreement = Agreement("drafter", seat)
    for row in rows:
        completion = row.completion
        ids = (completion.prompt_ids, completion.token_ids)
        (score,) = backend.score(seat, [ids], completion.sampling.temperature)
        agreement.rows.append((row, score.logprobs))
    return agreement


def test_the_base_is_asked_about_a_few_rows_and_their_first_tokens(make_backend: Callable[..., Any]):
    backend = make_backend(eos_ids=[300])
    rows = sampled_by(backend, "A", 2 * ONE_IN, LONGEST + 8)
    agreement = agreement_of(backend, rows)
    asked: list[Any] = []
    score = backend.score
    backend.score = lambda name, rows, temperature: asked.append((name, rows)) or score(name, rows, temperature)
    check = SamplerCheck(backend)
    check.measure_base([agreement])
    ((name, read),) = asked
    assert name == BASE
    assert [len(ids) for _, ids in read] == [LONGEST, LONGEST]
    # By hand, from whole rows one by one.
    chosen = [rows[ONE_IN // 2], rows[ONE_IN + ONE_IN // 2]]
    gaps = []
    for row in chosen:
        ids = (row.completion.prompt_ids, row.completion.token_ids)
        own, base = (score(who, [ids], 1.0)[0].logprobs[:LONGEST] for who in ("A", BASE))
        gaps += [abs(a - b) for a, b in zip(own, base, strict=True)]
    assert agreement.base_gap == pytest.approx(sum(gaps) / len(gaps), rel=1e-4)
    assert agreement.base_gap > 0.01
    # The same rows measure how far the seat has moved since.
    assert check.step_gap(agreement) == pytest.approx(0.0, abs=1e-6)
    zero = {name: torch.zeros_like(tensor) for name, tensor in backend.adapters.state("A").items()}
    backend.adapters.load_state("A", zero)  # it samples like the base
    assert check.step_gap(agreement) == pytest.approx(agreement.base_gap, rel=1e-4)


@pytest.mark.parametrize("swaps", [False, True])
def test_gaps_are_measured_at_first_and_then_in_one_step_of_four_of_every_role_and_seat(swaps: bool):
    turns = {step: turn for step in range(40) if (turn := gap_turn(step)) is not None}
    steps = list(turns)
    assert steps == [*range(8), 8, 9, 16, 17, 24, 25, 32, 33]
    for first in (0, 8, 16):
        some = [step for step in steps if first <= step < first + 16]
        roles = [turns[step] % 2 for step in some]
        seats = {(role, (role + step * swaps) % 2) for role, step in zip(roles, some, strict=True)}
        assert seats == {(role, seat) for role in (0, 1) for seat in ((0, 1) if swaps else (role,))}
        assert first == 0 or {turns[first] % 2, turns[first + 1] % 2} == {0, 1}  # each role in each eight


@pytest.mark.parametrize(("precision", "temperature"), [("fp32", 1.0), ("bf16", 0.6), ("4bit", 1.0)])
def test_whose_weights_sampled_is_found_out(make_backend: Callable[..., Any], precision: str, temperature: float):
    backend = make_backend(precision, eos_ids=[300])
    adapters, check = backend.adapters, SamplerCheck(backend)

    def check_of(name: str) -> Agreement:
        return agreement_of(backend, sampled_by(backend, name, 8, 24, temperature))

    own = check_of("A")
    assert own.gap < check.bounds.most / 5
    check.judge([own])
    for name, called in ((BASE, "the base"), ("B", "seat B")):
        says = rf"^the completions of drafter \(seat A\) come from .* those of {called}$"
        with pytest.raises(OffPolicyError, match=says):
            check.judge([check_of(name)])

    adapters.snapshot("A", "yesterday")
    check.before["A"] = adapters.state("A")
    adapters.load_state("A", {key: value * 1.1 for key, value in adapters.state("A").items()})
    today = adapters.state("A")
    with pytest.raises(OffPolicyError, match="those of seat A before its last update"):
        check.judge([check_of("yesterday")])
    assert same_weights(adapters.state("A"), today)  # restored
    check.judge([check_of("A")])


def test_rounding_is_measured_on_the_base(make_backend: Callable[..., Any]):
    backend = make_backend("bf16", eos_ids=[300])
    check = SamplerCheck(backend)
    floor = check.calibrate([10, 11, 12])
    least = 1e-4 if backend.device.type == "cpu" else 0.0  # on a pretend GPU both round alike
    assert least < floor < BOUNDS["bfloat16"].rounding
    assert check.bounds.rounding == pytest.approx(max(1.5 * floor, 0.01))
    assert check.bounds.most == 0.1  # five times that is less
    # Larger models round more: the bounds follow, up to what no rounding makes.
    score, shift = backend.score, 0.08

    def shifted(*arguments: Any) -> Any:
        return [replace(found, logprobs=[p + shift for p in found.logprobs]) for found in score(*arguments)]

    backend.score = shifted
    found = check.calibrate([10, 11, 12])
    assert found == pytest.approx(0.08, abs=max(floor, 1e-3))
    assert check.bounds == Tolerance(pytest.approx(1.5 * found), pytest.approx(5 * found))
    shift = 0.6
    with pytest.raises(TrainingError, match=r"do not agree on the base's own completions: they differ by 0\.6"):
        SamplerCheck(backend).calibrate([10, 11, 12])


def test_where_memory_runs_out_fewer_rows_are_read_and_at_last_none(make_backend: Callable[..., Any]):
    backend = make_backend(eos_ids=[300])
    score, rows_at_once = backend.score, 3

    def limited(name: str, rows: Any, temperature: float) -> Any:
        if len(rows) > rows_at_once:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return score(name, rows, temperature)

    whole, check = SamplerCheck(backend).calibrate([10, 11, 12]), SamplerCheck(backend)
    backend.score = limited
    assert check.calibrate([10, 11, 12]) == pytest.approx(whole, rel=0.5)
    agreement = agreement_of(backend, sampled_by(backend, "A", 8, 24))
    rows_at_once = 0
    assert check.calibrate([10, 11, 12]) == 0.0
    check.measure_base([agreement])
    assert agreement.base_gap is None
    assert agreement.gap is not None


def test_what_no_weights_explain_is_refused_beyond_the_bound_alone(make_backend: Callable[..., Any]):
    backend = make_backend(eos_ids=[300])
    check, rows, bounds = SamplerCheck(backend), sampled_by(backend, "A", 8, 24), BOUNDS["float32"]

    def off_by(shift: float, **other: Any) -> Agreement:
        noted = [{**other, "logprobs": [p + shift for p in row.completion.logprobs]} for row in rows]
        moved = [replace(row, completion=replace(row.completion, **n)) for row, n in zip(rows, noted, strict=True)]
        return agreement_of(backend, moved)

    check.judge([off_by(bounds.rounding * 2)])
    check.judge([off_by(bounds.most * 0.9)])
    with pytest.raises(OffPolicyError, match="no other known weights explain them"):
        check.judge([off_by(bounds.most * 1.1)])
    with pytest.raises(OffPolicyError):  # a sampler of another temperature
        check.judge([off_by(0.0, sampling=Sampling(temperature=0.7, max_tokens=24))])


# Runs

VARIED = Path(__file__).parents[1] / "varied_reward.py"
"""A reward that differs within almost every group, so that every step updates both seats."""


def config(folder: Path, precision: str, steps: int, save_every: int = 100) -> RunConfig:
    sizes = {"steps": steps, "save_every": save_every, "group_size": 4, "problems_per_step": 2}
    return RunConfig(
        game="agon",
        model={"name": "tiny", "precision": precision},
        tasks="letters",
        seats={"*": {"schedule": "constant", "warmup": 0.0}},
        run={**sizes, "dir": str(folder), "max_completion_tokens": 12, "seed": 1},
        reward=f"{VARIED}:varied",
        preflight=False,
    )


def mislead(monkeypatch: pytest.MonkeyPatch, how: str, first: int) -> None:
    """From A's update number `first` on, other weights secretly sample for seat A."""
    honest = TransformersBackend._generate
    seen: list[Any] = []  # A's weights at each of its updates

    def generate(self: Any, request: GenerationRequest) -> Any:
        adapters = self.adapters
        if len(seen) == adapters.updates["A"]:
            seen.append(adapters.state("A"))
        if request.seat != "A" or adapters.updates["A"] < first:
            return honest(self, request)
        if how != "yesterday's":
            return honest(self, replace(request, seat=how))
        now = adapters.state("A")
        adapters.load_state("A", seen[-2])
        try:
            return honest(self, request)
        finally:
            adapters.load_state("A", now)

    monkeypatch.setattr(TransformersBackend, "_generate", generate)


@pytest.mark.parametrize(
    ("how", "called", "precision"),
    [
        pytest.param(BASE, "the base", "fp32", marks=pytest.mark.long),
        pytest.param("B", "seat B", "bf16", marks=pytest.mark.long),
        ("yesterday's", "seat A before its last update", "4bit"),
    ],
)
def test_rollouts_of_other_weights_stop_a_run(monkeypatch: Any, tmp_path: Path, how: str, called: str, precision: str):
    """Whole steps are skipped without an update, and the run is saved in the state before them."""
    mislead(monkeypatch, how, first=3)
    with pytest.raises(TrainingError, match="3 steps in a row could not be trained on") as stopped:
        train(config(tmp_path / "run", precision, 8, save_every=1))
    assert called in str(stopped.value)
    assert "model.backend" in str(stopped.value)
    rows = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["sampler_what"] is not None for row in rows] == [False] * 3 + [True] * 3
    assert all(row["seats"][seat]["updates"] == 3 for row in rows[2:] for seat in "AB")  # whole steps are skipped
    assert (rows[-1]["skipped_steps"], rows[-1]["nonfinite"]) == (3, 0)
    (stream,) = [stream for stream in rows[3]["streams"].values() if stream["seat"] == "A"]
    assert stream["sampler_gap"] > 2 * max(s["sampler_gap"] for row in rows[:3] for s in row["streams"].values())
    assert stream["rows_trained"] == 0
    assert saved_steps(tmp_path / "run")[-1] == 3


LONG = [pytest.param(name, 300, marks=pytest.mark.long) for name in ("fp32", "bf16", "4bit")]


@pytest.mark.parametrize(("precision", "steps"), [("4bit", 8), *LONG])
def test_a_sound_run_is_let_alone(tmp_path: Path, precision: str, steps: int):
    train(config(tmp_path / "run", precision, steps))
    rows = read_lines(tmp_path / "run" / "metrics.jsonl")
    seen = [s for row in rows for s in row["streams"].values() if s["sampler_gap"] is not None]
    gaps = sorted(stream["sampler_gap"] for stream in seen)[: len(seen) - len(seen) // 100]  # a rare token apart
    assert len(gaps) > steps  # of two streams a step; those without variance never reach the model
    assert all(row["sampler_what"] is None for row in rows)
    stepped = {(s["seat"], role) for row in rows for role, s in row["streams"].items() if s["step_gap"] is not None}
    assert stepped == {(seat, role) for seat in "AB" for role in ("drafter", "challenger")}
    section = ModelSection(name="tiny", precision=precision)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bounds = BOUNDS[str(compute_dtype(section, device)).removeprefix("torch.")]
    assert max(gaps) < bounds.most / 5
    apart = [stream["base_gap"] for stream in seen if stream["base_gap"] is not None]
    assert min(apart[-2:]) > 20 * max(gaps)  # so it would have been noticed
