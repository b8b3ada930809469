"""The update against an independent computation of its objective, and what it refuses and leaves alone."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import set_peft_model_state_dict
from torch import Tensor

from lite_selfplay.config import SeatConfig
from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Episode, Group, Restore, Sample, Sampling, Stream
from lite_selfplay.errors import GameError, Interrupted, TrainingError
from lite_selfplay.models.backends.transformers import load_base
from lite_selfplay.models.generation.sampling import GenerationRequest
from lite_selfplay.training.losses import Loss
from lite_selfplay.training.optimizer import optimizer_state
from lite_selfplay.training.progress import Poll, Progress
from lite_selfplay.training.trainer import StreamUpdate, reference_name

from .harness import (
    CHALLENGES,
    DRAFTS,
    FREE,
    Harness,
    alone,
    changed,
    completion,
    episode,
    expected_gradients,
    expected_loss,
    plain_logprobs,
    relative_error,
    respoken,
    samples_of,
    states,
    stream,
)

LOSSES = ("grpo", "dr_grpo", "dapo", "sequence")
SHORT = [("grpo", 8192, False, 0.0), *((loss, 40, True, 0.3) for loss in LOSSES)]
LONG = [each for each in itertools.product(LOSSES, (8192, 40), (False, True), (0.0, 0.3)) if each not in SHORT]


@pytest.mark.parametrize(
    ("loss", "budget", "checkpointing", "beta"),
    [*SHORT, *(pytest.param(*each, marks=pytest.mark.long) for each in LONG)],
)
def test_each_seats_gradient_is_that_of_the_plain_objective(
    harness: Any, make_backend: Any, loss: str, beta: float, budget: int, checkpointing: bool
):
    seats, role = {seat: SeatConfig(**FREE) for seat in ("A", "B")}, {"loss": loss, "beta": beta}
    backend = make_backend(seats=seats, gradient_checkpointing=checkpointing)
    run, adapters = harness(role, backend=backend, microbatch_tokens=budget), backend.adapters
    models = {seat: run.alone(seat) for seat in seats}
    before = adapters.state("A")
    other = {name: tensor * 0.5 for name, tensor in adapters.state("B").items()}
    for seat in seats:
        adapters.put_snapshot(reference_name(seat), seat, other)
    adapters.load_state("A", other)
    reference = run.alone()
    adapters.load_state("A", before)
    played = episode(drop_zero_variance=True)
    got = run.step(played)
    for spoken, seat in zip(played.streams, ("A", "B"), strict=True):
        wanted_loss = expected_loss(models[seat], spoken, role, reference)
        wanted = expected_gradients(models[seat], wanted_loss, seat)
        assert relative_error(got.gradients[seat], wanted) < 1e-4
        (update,) = [u for u in got.reports[0].streams if u.role == spoken.role]
        assert update.loss == pytest.approx(wanted_loss.item(), abs=1e-5)


@pytest.mark.parametrize("loss", ["grpo", "dapo"])
def test_a_kl_term_holds_for_the_rows_of_dropped_groups_and_none_for_truncated_ones(harness: Any, loss: str):
    """By hand: the KL of all rows and the policy's of those kept, in three losses that are added up."""
    role = {"loss": loss, "beta": 0.3, "reference": "base"}
    played = stream("drafter", "A", [[1, 1, 1], [0, 2, 2, 0], [2, 2]], drop_zero_variance=True)
    run = harness(role)
    model, base = run.alone(), run.base()
    kept = dataclasses.replace(played, groups=played.groups[1:2])
    unpaid = [Group([dataclasses.replace(s, reward=1.0) for s in samples_of(played)])]
    policy = expected_loss(model, kept, {"loss": loss})
    penalty = expected_loss(model, dataclasses.replace(played, groups=unpaid, drop_zero_variance=False), role, base)
    wanted = expected_gradients(model, policy + penalty, "A")
    assert relative_error(run.step(Episode([played])).gradients["A"], wanted) < 1e-4


@pytest.mark.parametrize(("loss", "budget"), [("grpo", 8192), ("dapo", 40), ("sequence", 40)])
def test_entropy_term_temperature_and_reference_to_the_base(harness: Callable[..., Harness], loss: str, budget: int):
    role = {"loss": loss, "beta": 0.2, "entropy": 0.05, "reference": "base"}
    run = harness(role, microbatch_tokens=budget)
    model = run.alone()
    played = stream("drafter", "A", DRAFTS, temperature=0.7)
    wanted = expected_gradients(model, expected_loss(model, played, role, run.base()), "A")
    assert relative_error(run.step(Episode([played])).gradients["A"], wanted) < 1e-4


def clipped_share(model: Any, played: Stream, role: Mapping[str, Any]) -> float:
    """The share of ratios beyond the clip, on the side that the clip cuts off: of tokens, or one a completion."""
    cut = tokens = 0
    for group, advantages in zip(played.groups, stream_advantages(played), strict=True):
        for sample, advantage in zip(group.samples, advantages, strict=True):
            log_ratio = plain_logprobs(model, sample.completion)[0].detach() - torch.tensor(sample.completion.logprobs)
            if role.get("loss") == "sequence":
                log_ratio = log_ratio.sum()[None]
            elif role.get("ratio") == "sequence":
                log_ratio = log_ratio.mean()[None]
            ratio = log_ratio.exp()
            cut += int(((ratio > 1.2) & (advantage > 0) | (ratio < 0.8) & (advantage < 0)).sum())
            tokens += len(ratio)
    return cut / tokens


KINDS = [
    ({}, 8192),
    ({"ratio": "sequence"}, 40),
    ({"loss": "dr_grpo", "ratio": "sequence"}, 8192),
    ({"loss": "dapo"}, 40),
    ({"loss": "dapo", "ratio": "sequence"}, 40),
    ({"loss": "sequence"}, 40),
]


@pytest.mark.parametrize(("role", "budget"), KINDS, ids=str)
def test_replayed_samples_use_the_clipped_ratio_to_their_stored_log_probabilities(
    harness: Callable[..., Harness], role: dict[str, Any], budget: int
):
    role = {**role, "beta": 0.2, "reference": "base"}
    run = harness(role, microbatch_tokens=budget)
    model, base = run.alone(), run.base()
    # Stored near what the seat gives now, so that some ratios are inside the clip and some outside.
    shifts = torch.Generator().manual_seed(1)

    def near(sample: Sample) -> Sample:
        lp = plain_logprobs(model, sample.completion)[0].detach()
        shift = 0.5 * torch.randn(1, generator=shifts) / (len(lp) if role.get("loss") == "sequence" else 1)
        stored = (lp + shift + 0.01 * torch.randn(len(lp), generator=shifts)).tolist()
        return respoken(sample, logprobs=stored)

    played = changed(stream("drafter", "A", DRAFTS, replay=True), near)
    wanted = expected_gradients(model, expected_loss(model, played, role, base), "A")
    assert relative_error(run.step(Episode([played])).gradients["A"], wanted) < 1e-4
    assert run.reports[0].streams[0].clipped == pytest.approx(clipped_share(model, played, role), abs=1e-6)
    assert 0 < run.reports[0].streams[0].clipped < 1
    assert run.reports[0].streams[0].sampler_gap is None  # it was noted by other weights


def test_in_four_bits_before_and_after_a_generate(
    harness: Callable[..., Harness], make_backend: Callable[..., Any], tiny_path: Path, tmp_path: Path
):
    seats = {seat: SeatConfig(**FREE) for seat in ("A", "B")}
    backend = make_backend("4bit", seats=seats, compute_dtype="fp32")
    base = load_base(tiny_path, "4bit", torch.float32, torch.device("cpu"))
    model = alone(base, backend.adapters, "A", tmp_path)
    played = stream("drafter", "A", DRAFTS)
    wanted = expected_gradients(model, expected_loss(model, played, {}), "A")
    state = backend.adapters.state("A")
    before = harness({}, backend=backend).step(Episode([played])).gradients["A"]
    assert relative_error(before, wanted) < 1e-4
    backend.adapters.load_state("A", state)
    backend.generate(GenerationRequest("B", [[5, 6, 7]], 4, Sampling(max_tokens=8), [[1, 2, 3, 4]]))
    backend.adapters.versions["A"] = 0
    after = harness({}, backend=backend).step(Episode([played])).gradients["A"]
    assert relative_error(after, wanted) < 1e-4


def test_roles_that_share_a_seat_add_their_gradients(harness: Callable[..., Harness]):
    run = harness({})
    model = run.alone()
    drafts, challenges = stream("drafter", "A", DRAFTS), stream("challenger", "A", CHALLENGES)
    both = expected_loss(model, drafts, {}) + expected_loss(model, challenges, {})
    wanted = expected_gradients(model, both, "A")
    run.step(Episode([drafts, challenges]), seats={"drafter": "A", "challenger": "A"})
    assert relative_error(run.gradients["A"], wanted) < 1e-4
    assert not run.gradients["B"]


def moved(before: Mapping[str, Any], after: Mapping[str, Any], seat: str) -> bool:
    return any(not torch.equal(before[seat][name], after[seat][name]) for name in before[seat])


def later(played: Stream, version: int) -> Stream:
    """The same stream, spoken after that many updates."""
    return changed(played, lambda sample: respoken(sample, weights_version=version))


def test_only_a_seat_with_data_moves_and_momentum_moves_no_other(harness: Callable[..., Harness]):
    run = harness({})
    start, both = states(run.backend), episode()
    run.step(both, Episode([later(both.streams[1], 1)]), Episode())
    steps = itertools.pairwise([start, *run.ends])
    assert [[moved(before, after, seat) for seat in "AB"] for before, after in steps] == [
        [True, True],
        [False, True],
        [False, False],
    ]
    assert run.backend.adapters.versions == {"A": 1, "B": 2}
    assert run.reports[1].seats["A"]["grad_norm"] is None


def test_without_any_advantage_a_kl_term_still_moves_and_no_term_does_not(harness: Callable[..., Harness]):
    flat = Episode([stream("drafter", "A", [[1, 1], [0, 0]])])
    silent = harness({})
    start = states(silent.backend)
    (update,) = silent.step(flat).reports[0].streams
    assert (update.rows, update.loss) == (0, None)
    assert not moved(start, states(silent.backend), "A")
    pulled = harness({"beta": 0.1, "reference": "base"})
    start = states(pulled.backend)
    assert pulled.step(flat).reports[0].streams[0].kl > 0
    assert moved(start, states(pulled.backend), "A")


def test_each_seat_is_clipped_by_its_own_bound(harness: Callable[..., Harness]):
    run = harness({})
    run.set_seats({"A": {"clip": 1e-3}})
    run.step(episode())
    adapters = run.backend.adapters
    raw = {
        seat: torch.cat([g.flatten() for g in run.gradients[seat].values()]).norm().item() for seat in adapters.seats
    }
    assert run.reports[0].seats["A"]["grad_norm"] == pytest.approx(raw["A"], rel=1e-5)
    assert raw["A"] > 1e-3
    assert run.applied["A"] == pytest.approx(1e-3, rel=1e-3)
    assert run.applied["B"] == pytest.approx(raw["B"], rel=1e-5)


def test_stale_or_foreign_completions_are_refused(harness: Callable[..., Harness]):
    foreign = Episode([stream("drafter", "B", DRAFTS)])
    with pytest.raises(GameError, match="trains seat 'A' at update 0, but holds a completion by 'B'"):
        harness({}).step(foreign)
    with pytest.raises(GameError, match="at update 1, but holds a completion by 'A' at update 0"):
        harness({}).step(episode(), episode())
    own = Sample(completion("B", 0), 0.0, advantage=1.0)  # an advantage of its own changes nothing
    with pytest.raises(GameError, match="but holds a completion by 'B'"):
        harness({}).step(Episode([Stream("drafter", [Group([own])])]))


# Numbers that are not finite


def test_a_weight_that_is_not_finite_moves_nothing_and_is_named(harness: Callable[..., Harness]):
    run = harness({})
    with torch.no_grad():
        next(iter(run.backend.adapters.parameters("B").values())).view(-1)[3] = float("nan")
    before = states(run.backend)
    assert run.step(episode()).reports[0].nonfinite == "a weight of seat B is not finite"
    assert not moved(before, states(run.backend), "A")
    assert run.backend.adapters.versions == {"A": 0, "B": 0}
    assert run.reports[0].seats["A"]["grad_norm"] is None


def with_first(played: Stream, **changes: Any) -> Stream:
    """The stream with its very first sample changed."""
    (first, *samples), *groups = [list(group.samples) for group in played.groups]
    first = respoken(first, **changes) if "logprobs" in changes else dataclasses.replace(first, **changes)
    rows = [[first, *samples], *groups]
    return dataclasses.replace(played, groups=[Group(row) for row in rows])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"reward": float("inf")}, "a reward of challenger (seat B) is inf"),
        ({"reward": 1e300}, "an advantage of challenger (seat B) is too large a number"),
        ({"advantage": float("nan")}, "an advantage of challenger (seat B) is nan"),
        ({"advantage": 1e300}, "the loss of challenger (seat B) is "),
        ({"logprobs": (float("nan"),)}, "a log-probability of challenger (seat B) is nan"),
    ],
)
def test_a_step_with_such_a_number_is_skipped_whole_and_the_next_one_counts(
    harness: Callable[..., Harness], changes: dict[str, Any], sentence: str
):
    run, good = harness({}), episode()
    start = states(run.backend)
    # The drafter's gradients, which are finite, are there already when the challenger's turn comes.
    run.step(Episode([good.streams[0], with_first(good.streams[1], **changes)]), good)
    bad, whole = run.reports
    assert (bad.nonfinite or "").startswith(sentence)
    assert [(update.role, update.rows, update.tokens) for update in bad.streams] == [
        ("drafter", 0, 0),
        ("challenger", 0, 0),
    ]
    assert not any(moved(start, run.ends[0], seat) for seat in "AB")
    assert bad.seats["A"] == {"lr": whole.seats["A"]["lr"], "grad_norm": None, "updates": 0}
    assert whole.nonfinite is None
    assert all(moved(*run.ends, seat) for seat in "AB")
    assert run.backend.adapters.versions == {"A": 1, "B": 1}
    # And the skipped step left nothing behind: the good one alone gives the same gradient.
    assert relative_error(run.gradients["A"], harness({}).step(good).gradients["A"]) < 1e-6


def test_a_masked_sample_may_hold_anything(harness: Callable[..., Harness]):
    good = episode()
    masked = with_first(good.streams[1], reward=float("nan"), masked=True)
    assert harness({}).step(Episode([good.streams[0], masked])).reports[0].nonfinite is None


@pytest.mark.parametrize("norm", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_moves_no_seat(
    harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch, norm: float
):
    run = harness({})
    before = states(run.backend)
    norms = iter(torch.tensor([1.0, norm], device=run.backend.device))
    monkeypatch.setattr("lite_selfplay.training.trainer.get_total_norm", lambda gradients: next(norms))
    (report,) = run.step(episode()).reports
    assert report.nonfinite == f"the gradient of challenger (seat B) has the norm {norm}"
    assert run.applied == {}
    assert run.backend.adapters.versions == {"A": 0, "B": 0}
    assert not any(moved(before, states(run.backend), seat) for seat in "AB")


def test_an_update_that_leaves_weights_not_finite_ends_the_run(
    harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
):
    run = harness({})
    monkeypatch.setattr("lite_selfplay.training.atomic_update.find_nonfinite", lambda adapters: "a weight of seat A")
    with pytest.raises(TrainingError, match=r"the update of step 1 left a weight of seat A that is not finite"):
        run.step(episode())
    assert not run.reports


# Several updates a step


FOUR = [[1, 0, 0], [0, 2, 0, 1], [3, 0], [1, 0, 1]]


def halves(played: Stream) -> tuple[Stream, Stream]:
    first, second = played.groups[:2], played.groups[2:]
    return dataclasses.replace(played, groups=first), dataclasses.replace(played, groups=second)


def other_weights(model: Any, state: Mapping[str, Tensor]) -> Any:
    """The plain model, speaking by other weights of the seat."""
    set_peft_model_state_dict(model, dict(state))
    return model


@pytest.mark.parametrize("lr", [1e-4, 3e-2], ids=["hardly moves", "moves far"])
@pytest.mark.parametrize("loss", ["grpo", "sequence"])
def test_in_the_second_update_of_a_step_the_clip_acts(harness: Callable[..., Harness], lr: float, loss: str):
    role = {"loss": loss, "beta": 0.1, "reference": "base"}
    run = harness(role, minibatches=2, microbatch_tokens=40)
    run.set_seats({"A": {"lr": lr, "warmup": 0.0}})
    model, base = run.alone(), run.base()
    played = stream("drafter", "A", FOUR)
    first, second = halves(played)

    def store(sample: Sample) -> Sample:
        return respoken(sample, logprobs=plain_logprobs(model, sample.completion)[0].tolist())

    # What the second update sees: the ratio to the policy before the first one.
    later_on = changed(second, store, replay=True)
    gradients: list[Any] = []
    run.on_update = lambda: gradients.append(run.gradients["A"])
    run.step(Episode([played]))
    before, between = (start["A"] for start in run.starts)
    wanted = expected_gradients(model, expected_loss(model, first, role, base), "A")
    assert relative_error(gradients[0], wanted) < 1e-4
    model.zero_grad(set_to_none=True)
    moved_model = other_weights(model, between)
    wanted = expected_gradients(moved_model, expected_loss(moved_model, later_on, role, base), "A")
    assert relative_error(gradients[1], wanted) < 1e-3
    (update,) = run.reports[0].streams
    second_part, whole = (
        sum(1 if loss == "sequence" else len(s.completion.token_ids) for g in x.groups for s in g.samples)
        for x in (second, played)
    )
    share = clipped_share(moved_model, later_on, role) * second_part / whole
    assert update.clipped == pytest.approx(share, abs=1e-6)
    assert (update.clipped > 0) == (lr > 1e-3)
    assert update.sampler_gap < 1e-5  # all rows, and before anything moved
    assert run.reports[0].seats["A"]["updates"] == run.backend.adapters.version("A") == 2
    assert any(not torch.equal(before[name], between[name]) for name in before)
    assert update.rows == 12


def test_a_schedule_counts_updates_and_a_seat_with_less_data_takes_part_in_fewer(harness: Callable[..., Harness]):
    run = harness({}, minibatches=3)
    run.set_seats({"A": {"warmup": 0.0}, "B": {"warmup": 0.0}})
    # Three groups for A, and a single row with an advantage for B's three parts.
    one = Stream("challenger", [Group([Sample(completion("B", 0), 0.0, advantage=1.0)])])
    played = Episode([stream("drafter", "A", [[1, 0], [0, 1], [1, 0]]), one])
    run.step(played)
    seats = run.reports[0].seats
    assert (seats["A"]["updates"], seats["B"]["updates"]) == (3, 1)
    # Linear over 1 step of 3 updates: whole, two thirds, one third; B has had its first.
    assert seats["A"]["lr"] == pytest.approx(1e-2 / 3)
    assert seats["B"]["lr"] == pytest.approx(1e-2)
    assert seats["B"]["grad_norm"] is not None
    assert run.reports[0].streams[1].rows == 1


def test_a_silent_part_is_no_update(harness: Callable[..., Harness]):
    run = harness({}, minibatches=2)
    run.step(Episode([stream("drafter", "A", [[1, 1], [1, 1], [1, 0], [0, 1]])]))
    assert run.reports[0].seats["A"]["updates"] == 1
    assert run.reports[0].streams[0].clipped is None  # the one part that moves is on-policy
    silent = harness({}, minibatches=2).step(Episode([stream("drafter", "A", [[1, 1], [0, 0]])]))
    assert silent.reports[0].seats["A"] == {"lr": pytest.approx(1e-2), "grad_norm": None, "updates": 0}


@pytest.mark.parametrize("why", ["a number", "a signal"])
def test_a_step_that_breaks_off_after_its_first_update_moves_nothing(harness: Callable[..., Harness], why: str):
    run = harness({}, minibatches=2)
    run.step(episode())  # so that there is momentum to put back
    start, version = states(run.backend), dict(run.backend.adapters.versions)
    good = [later(s, 2) for s in episode().streams]
    broken = harness({}, backend=run.backend, minibatches=2)

    def spoil() -> None:
        def spoiled(*arguments: Any, **options: Any) -> Loss:
            if why == "a signal":
                raise KeyboardInterrupt
            loss = honest(*arguments, **options)
            return dataclasses.replace(loss, value=loss.value * float("nan"))

        honest, broken.trainer.loss.of = broken.trainer.loss.of, spoiled  # type: ignore[method-assign]
        broken.moments = optimizer_state(broken.trainer.optimizer, run.backend.adapters)

    broken.on_update = spoil  # the first update is about to be applied
    if why == "a signal":
        with pytest.raises(KeyboardInterrupt):
            broken.step(Episode(good))
    else:
        broken.step(Episode(good))
        assert (broken.reports[0].nonfinite or "").startswith("the loss of drafter (seat A) is nan")
        assert broken.reports[0].seats["A"]["grad_norm"] is None
    assert len(broken.starts) >= 1
    assert not any(moved(start, states(run.backend), seat) for seat in "AB")
    assert run.backend.adapters.versions == version
    assert optimizer_state(broken.trainer.optimizer, run.backend.adapters).keys() == broken.moments.keys()


@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_stop_finds_a_step_that_is_whole_or_has_moved_nothing(
    harness: Callable[..., Harness], make_backend: Callable[..., Any], minibatches: int
):
    """Asked for while the seats are being moved: after the only update of a step nothing may stop any more."""
    asked = []

    def stop() -> None:
        if asked:
            raise Interrupted("stopped by a test")

    poll = Poll(Progress(), stop)
    backend = make_backend(seats={seat: SeatConfig(**FREE) for seat in ("A", "B")}, poll=poll)
    run = harness({}, backend=backend, minibatches=minibatches)
    run.poll, run.on_update, start = poll, lambda: asked.append(True), states(backend)
    if minibatches == 1:
        (report,) = run.step(episode()).reports
        assert all(moved(start, states(backend), seat) for seat in "AB")
        assert [update.step_gap is None for update in report.streams].count(False) == 1
    else:
        with pytest.raises(Interrupted):
            run.step(episode())
        assert not any(moved(start, states(backend), seat) for seat in "AB")
    with pytest.raises(Interrupted):
        poll()  # who asked is still heard


# What may train


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ({"top_p": 0.9, "top_k": 5, "min_p": 0.1}, "top_p=0.9, top_k=5, min_p=0.1"),
        ({"temperature": 0.0}, "temperature=0"),
    ],
)
def test_samples_that_do_not_follow_the_policy_are_refused(
    harness: Callable[..., Harness], sampling: dict[str, Any], said: str
):
    def step_of(replay: bool = False, **values: Any) -> StreamUpdate:
        """A step of samples that were asked like that, with these values."""

        def asked(sample: Sample) -> Sample:
            manner = dataclasses.replace(sample.completion.sampling, **sampling)
            return dataclasses.replace(respoken(sample, sampling=manner), **values)

        played = changed(stream("drafter", "A", DRAFTS, replay=replay), asked)
        return harness({}).step(Episode([played])).reports[0].streams[0]

    with pytest.raises(GameError, match=rf"^the drafter's stream trains seat 'A' on .* sampled with {said}, .*mask"):
        step_of()
    with pytest.raises(GameError, match="make it an example"):  # a reward with an advantage of its own is no example
        step_of(advantage=1.0)
    # Masked ones are left out, and those with an advantage and no reward are examples with a weight.
    assert step_of(masked=True).rows == 0
    weighted = step_of(reward=None, advantage=1.0)
    assert (weighted.rows, weighted.sampler_gap) == (10, None)  # it was not the policy that was sampled
    assert weighted.base_gap > 0
    # A replay divides by what was noted, which greedy decoding has not.
    if "temperature" in sampling:
        with pytest.raises(GameError, match="temperature=0"):
            step_of(replay=True)
    else:
        assert step_of(replay=True).rows > 0


def test_what_was_said_before_a_snapshot_was_put_back_is_stale(harness: Callable[..., Harness]):
    run = harness({})
    run.backend.adapters.snapshot("A", "kept")
    drafts = episode().streams[0]
    restoring = Episode(actions=[Restore("A", "kept")])
    with pytest.raises(GameError, match="at update 1, but holds a completion by 'A' at update 0"):
        run.step(restoring, Episode([drafts]))
    assert run.backend.adapters.updates["A"] == 0  # it is no update: the schedule does not tick
