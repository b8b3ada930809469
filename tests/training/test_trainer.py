"""The update compared with an independent computation of its objective, and the cases it refuses or skips."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from peft import set_peft_model_state_dict
from torch.nn.utils import get_total_norm

from lite_selfplay.data import Blend, Episode, Group, Restore, Sample, Sampling, Stream
from lite_selfplay.errors import GameError, Interrupted, TrainingError
from lite_selfplay.models.generation.sampling import GenerationRequest
from lite_selfplay.training.losses import Loss
from lite_selfplay.training.optimizer import optimizer_state
from lite_selfplay.training.progress import Monitor, Progress
from lite_selfplay.training.trainer import StreamUpdate, reference_name
from tests.made import same_weights

from .harness import (
    CHALLENGES,
    DRAFTS,
    SEATS,
    changed,
    completion,
    episode,
    expected,
    plain_logprobs,
    samples_of,
    stream,
    with_completion,
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
    role, backend = {"loss": loss, "beta": beta}, make_backend(seats=SEATS, gradient_checkpointing=checkpointing)
    run, adapters = harness(role, backend=backend, microbatch_tokens=budget), backend.adapters
    models = {seat: run.alone(seat) for seat in SEATS}
    before = adapters.state("A")
    other = {name: tensor * 0.5 for name, tensor in adapters.state("B").items()}
    for seat in SEATS:
        adapters.put_snapshot(reference_name(seat), seat, other)
    adapters.load_state("A", other)
    reference = run.alone()
    adapters.load_state("A", before)
    played = episode(drop_zero_variance=True)
    run.step(played)
    for spoken, update, (seat, model) in zip(played.streams, run.reports[0].streams, models.items(), strict=True):
        wanted = expected(model, spoken, role, reference)
        assert run.error(model, wanted.loss, seat) < 1e-4
        assert (update.role, update.loss) == (spoken.role, pytest.approx(wanted.loss.item(), abs=1e-5))


BESIDE = {"beta": 0.2, "reference": "base", "entropy": 0.05}
INSIDE = {"beta": 0.4, "reference": "base", "kl": "advantage"}


@pytest.mark.parametrize(
    ("role", "loss", "budget"),
    [
        *((BESIDE, *each) for each in (("grpo", 8192), ("dapo", 40), ("sequence", 40))),
        *((INSIDE, *each) for each in (("grpo", 40), ("dr_grpo", 8192), ("dapo", 40), ("sequence", 40))),
    ],
)
def test_entropy_temperature_and_a_kl_to_the_base(harness: Any, role: dict[str, Any], loss: str, budget: int):
    run, role = harness({**role, "loss": loss}, microbatch_tokens=budget), {**role, "loss": loss}
    model, played = run.alone(), stream("drafter", "A", DRAFTS, temperature=0.7)
    (update,) = run.step(Episode([played])).reports[0].streams
    wanted = expected(model, played, role, run.base())
    assert run.error(model, wanted.loss) < 1e-4
    assert update.kl == pytest.approx(wanted.kl, rel=1e-3)


def by_token(sample: Sample) -> Sample:
    """Advantages of 0.5, -0.25, -1 and so on for the tokens of a completion of even length; the others keep theirs."""
    length = len(sample.completion.token_ids)
    own = tuple(0.5 - 0.75 * (k % 4) for k in range(length))
    return dataclasses.replace(sample, advantage=own) if length % 2 == 0 else sample


@pytest.mark.parametrize(
    ("role", "budget", "replay"),
    [
        *(({"loss": loss}, budget, False) for loss, budget in (("grpo", 40), ("dr_grpo", 8192), ("dapo", 40))),
        ({**BESIDE, "loss": "dapo"}, 40, True),
        ({**INSIDE, "loss": "grpo"}, 8192, True),
    ],
    ids=str,
)
def test_advantages_by_token_have_the_gradient_of_the_plain_objective(
    harness: Any, role: dict[str, Any], budget: int, replay: bool
):
    run = harness(role, microbatch_tokens=budget)
    model = run.alone()
    shifts = torch.Generator().manual_seed(1)

    def near(sample: Sample) -> Sample:
        lp = plain_logprobs(model, sample.completion)[0].detach()
        return with_completion(sample, logprobs=(lp + 0.3 * torch.randn(len(lp), generator=shifts)).tolist())

    played = changed(stream("drafter", "A", DRAFTS), by_token)
    assert 0 < sum(isinstance(sample.advantage, tuple) for sample in samples_of(played)) < len(samples_of(played))
    played = changed(played, near, replay=True) if replay else played
    (update,) = run.step(Episode([played])).reports[0].streams
    wanted = expected(model, played, role, run.base())
    assert run.error(model, wanted.loss) < 1e-4
    if replay:
        assert update.clipped == pytest.approx(wanted.clipped, abs=1e-6)
        assert 0 < wanted.clipped < 1


@pytest.mark.parametrize("role", [{"loss": "sequence"}, {"ratio": "sequence"}], ids=str)
def test_advantages_by_token_need_a_ratio_by_token(harness: Any, role: dict[str, Any]):
    run = harness(role)
    with pytest.raises(GameError, match="the drafter's advantages by token need a ratio for each token"):
        run.step(Episode([changed(stream("drafter", "A", DRAFTS), by_token)]))
    assert not run.moved()


def test_an_advantage_by_token_that_is_not_finite_skips_the_step(harness: Any):
    bad = changed(
        stream("drafter", "A", DRAFTS),
        lambda s: dataclasses.replace(s, advantage=(math.nan,) * len(s.completion.token_ids)),
    )
    (report,) = harness({}).step(Episode([bad])).reports
    assert report.nonfinite == "an advantage of drafter (seat A) is nan"


KINDS = [
    ({}, 8192),
    ({"ratio": "sequence"}, 40),
    ({"loss": "dr_grpo", "ratio": "sequence"}, 8192),
    ({"loss": "dapo"}, 40),
    ({"loss": "dapo", "ratio": "sequence"}, 40),
    ({"loss": "sequence"}, 40),
]


@pytest.mark.parametrize(("role", "budget"), KINDS, ids=str)
def test_replays_use_the_clipped_ratio_to_what_they_stored(harness: Any, role: dict[str, Any], budget: int):
    role = {**role, "beta": 0.2, "reference": "base"}
    run = harness(role, microbatch_tokens=budget)
    model = run.alone()
    # Stored near the seat's current log-probabilities, so that some ratios are inside the clip and some outside.
    shifts = torch.Generator().manual_seed(1)

    def near(sample: Sample) -> Sample:
        lp = plain_logprobs(model, sample.completion)[0].detach()
        shift = 0.5 * torch.randn(1, generator=shifts) / (len(lp) if role.get("loss") == "sequence" else 1)
        return with_completion(sample, logprobs=(lp + shift + 0.01 * torch.randn(len(lp), generator=shifts)).tolist())

    played = changed(stream("drafter", "A", DRAFTS, replay=True), near)
    (update,) = run.step(Episode([played])).reports[0].streams
    wanted = expected(model, played, role, run.base())
    assert run.error(model, wanted.loss) < 1e-4
    assert update.clipped == pytest.approx(wanted.clipped, abs=1e-6)
    assert 0 < update.clipped < 1
    assert update.sampler_gap is None  # it was noted by other weights


def test_in_four_bits_before_and_after_a_generate(harness: Any, make_backend: Any):
    backend, played = make_backend("4bit", seats=SEATS, compute_dtype="fp32"), stream("drafter", "A", DRAFTS)
    run = harness(backend=backend)
    model, state = run.alone(precision="4bit"), backend.adapters.state("A")
    assert run.step(Episode([played])).error(model, expected(model, played, {}).loss) < 1e-4
    backend.adapters.load_state("A", state)
    backend.generate(GenerationRequest("B", [[5, 6, 7]], 4, Sampling(max_tokens=8), [[1, 2, 3, 4]]))
    backend.adapters.versions["A"] = 0
    assert run.step(Episode([played])).error(model, expected(model, played, {}).loss) < 1e-4


def test_roles_that_share_a_seat_add_their_gradients(harness: Any):
    run = harness()
    model = run.alone()
    both = stream("drafter", "A", DRAFTS), stream("challenger", "A", CHALLENGES)
    run.step(Episode(both), seats={"drafter": "A", "challenger": "A"})
    assert run.error(model, expected(model, both[0], {}).loss + expected(model, both[1], {}).loss) < 1e-4
    assert not run.gradients["B"]


def moved(before: Mapping[str, Any], after: Mapping[str, Any], seat: str) -> bool:
    return not same_weights(before[seat], after[seat])


def later(played: Stream, version: int) -> Stream:
    """The same stream, sampled after that many updates."""
    return changed(played, lambda sample: with_completion(sample, weights_version=version))


def test_only_a_seat_with_data_is_updated_and_momentum_updates_no_other(harness: Any):
    run, both = harness(), episode()
    run.step(both, Episode([later(both.streams[1], 1)]), Episode())
    steps = itertools.pairwise([run.start, *run.ends])
    found = [{seat for seat in "AB" if moved(before, after, seat)} for before, after in steps]
    assert found == [{"A", "B"}, {"B"}, set()]
    assert run.backend.adapters.versions == {"A": 1, "B": 2}
    assert run.reports[1].seats["A"]["grad_norm"] is None


def test_without_any_advantage_only_a_kl_term_updates_a_seat(harness: Any):
    flat, to_base = Episode([stream("drafter", "A", [[1, 1], [0, 0]])]), {"beta": 0.1, "reference": "base"}
    for role in ({}, to_base, {**to_base, "kl": "advantage"}):
        run = harness(role)
        (update,) = run.step(flat).reports[0].streams
        assert (update.rows, (update.kl or 0) > 0) == ((4, True) if role else (0, False))
        assert run.moved() == ({"A"} if role else set())


def test_each_seat_is_clipped_by_its_own_bound(harness: Any):
    run = harness()
    run.set_seats({"A": {"clip": 1e-3}})
    run.step(episode())
    raw = {seat: get_total_norm(gradients.values()).item() for seat, gradients in run.gradients.items()}
    assert run.reports[0].seats["A"]["grad_norm"] == pytest.approx(raw["A"], rel=1e-5)
    assert raw["A"] > 1e-3
    assert run.applied == {"A": pytest.approx(1e-3, rel=1e-3), "B": pytest.approx(raw["B"], rel=1e-5)}


def test_stale_or_foreign_completions_are_refused(harness: Any):
    run, own = harness(), Sample(completion("B", 0), 0.0, advantage=1.0)  # an advantage of its own changes nothing
    for foreign in (stream("drafter", "B", DRAFTS), Stream("drafter", [Group([own])])):
        with pytest.raises(GameError, match="trains seat 'A' at update 0, but holds a completion by 'B'"):
            run.step(Episode([foreign]))
    with pytest.raises(GameError, match="at update 1, but holds a completion by 'A' at update 0"):
        run.step(episode(), episode())


# Numbers that are not finite


def test_with_a_weight_that_is_not_finite_nothing_is_updated_and_it_is_named(harness: Any):
    run = harness()
    with torch.no_grad():
        next(iter(run.backend.adapters.parameters("B").values())).view(-1)[3] = float("nan")
    assert run.step(episode()).reports[0].nonfinite == "a weight of seat B is not finite"
    assert "A" not in run.moved()
    assert run.backend.adapters.versions == {"A": 0, "B": 0}
    assert run.reports[0].seats["A"]["grad_norm"] is None


def with_first(played: Stream, **changes: Any) -> Stream:
    """The stream with its very first sample changed."""
    (first, *samples), *groups = [list(group.samples) for group in played.groups]
    first = with_completion(first, **changes) if "logprobs" in changes else dataclasses.replace(first, **changes)
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
def test_a_step_with_such_a_number_is_skipped_whole_and_the_next_one_counts(harness: Any, changes: Any, sentence: str):
    run, good = harness(), episode()
    model = run.alone()
    # The drafter's gradients, which are finite, are there already when the challenger's turn comes.
    run.step(Episode([good.streams[0], with_first(good.streams[1], **changes)]), good)
    bad, whole = run.reports
    assert (bad.nonfinite or "").startswith(sentence)
    assert [(x.role, x.rows, x.tokens) for x in bad.streams] == [("drafter", 0, 0), ("challenger", 0, 0)]
    assert not any(moved(run.start, run.ends[0], seat) for seat in "AB")
    assert bad.seats["A"] == {"lr": whole.seats["A"]["lr"], "grad_norm": None, "updates": 0}
    assert whole.nonfinite is None
    assert all(moved(*run.ends, seat) for seat in "AB")
    assert run.backend.adapters.versions == {"A": 1, "B": 1}
    # And the skipped step left nothing behind.
    assert run.error(model, expected(model, good.streams[0], {}).loss) < 1e-4


@pytest.mark.parametrize("norm", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_updates_no_seat(harness: Any, monkeypatch: pytest.MonkeyPatch, norm: float):
    run = harness()
    norms = iter(torch.tensor([1.0, norm], device=run.backend.device))
    monkeypatch.setattr("lite_selfplay.training.trainer.get_total_norm", lambda gradients: next(norms))
    (report,) = run.step(episode()).reports
    assert report.nonfinite == f"the gradient of challenger (seat B) has the norm {norm}"
    assert run.applied == {}
    assert run.backend.adapters.versions == {"A": 0, "B": 0}
    assert not run.moved()


def test_an_update_that_leaves_weights_not_finite_ends_the_run(harness: Any, monkeypatch: pytest.MonkeyPatch):
    run = harness()
    monkeypatch.setattr("lite_selfplay.training.atomic_update.find_nonfinite", lambda adapters: "a weight of seat A")
    with pytest.raises(TrainingError, match=r"the update of step 1 left a weight of seat A that is not finite"):
        run.step(episode())
    assert not run.reports


# Several updates a step


@pytest.mark.parametrize("lr", [1e-4, 3e-2], ids=["hardly moves", "moves far"])
@pytest.mark.parametrize("loss", ["grpo", "sequence"])
def test_in_the_second_update_of_a_step_the_clip_acts(harness: Any, lr: float, loss: str):
    role = {"loss": loss, "beta": 0.1, "reference": "base"}
    run = harness(role, minibatches=2, microbatch_tokens=40)
    run.set_seats({"A": {"lr": lr, "warmup": 0.0}})
    model, base, gradients = run.alone(), run.base(), []
    played = stream("drafter", "A", [[1, 0, 0], [0, 2, 0, 1], [3, 0], [1, 0, 1]])
    first, second = (dataclasses.replace(played, groups=groups) for groups in (played.groups[:2], played.groups[2:]))

    def store(sample: Sample) -> Sample:
        return with_completion(sample, logprobs=plain_logprobs(model, sample.completion)[0].tolist())

    # The second update's view: the ratio to the policy before the first one.
    later_on = changed(second, store, replay=True)
    run.on_update = lambda: gradients.append(run.gradients)
    (update,) = run.step(Episode([played])).reports[0].streams
    before, between = (start["A"] for start in run.starts)
    for found, part, tolerance in zip(gradients, (first, later_on), (1e-4, 1e-3), strict=True):
        run.gradients = found
        wanted = expected(model, part, role, base)
        assert run.error(model, wanted.loss) < tolerance
        set_peft_model_state_dict(model, dict(between))

    def ratios(part: Stream) -> int:
        return sum(1 if loss == "sequence" else len(sample.completion.token_ids) for sample in samples_of(part))

    assert update.clipped == pytest.approx(wanted.clipped * ratios(second) / ratios(played), abs=1e-6)
    assert (update.clipped > 0) == (lr > 1e-3)
    assert update.sampler_gap < 1e-5  # all rows, before any update
    assert run.reports[0].seats["A"]["updates"] == run.backend.adapters.version("A") == 2
    assert not same_weights(before, between)
    assert update.rows == 12


def test_a_schedule_counts_updates_and_a_seat_with_less_data_takes_part_in_fewer(harness: Any):
    run = harness(minibatches=3)
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


def test_a_silent_part_is_no_update(harness: Any):
    run = harness(minibatches=2)
    run.step(Episode([stream("drafter", "A", [[1, 1], [1, 1], [1, 0], [0, 1]])]))
    assert run.reports[0].seats["A"]["updates"] == 1
    assert run.reports[0].streams[0].clipped is None  # the only part with a gradient is on-policy
    silent = harness(minibatches=2).step(Episode([stream("drafter", "A", [[1, 1], [0, 0]])]))
    assert silent.reports[0].seats["A"] == {"lr": pytest.approx(1e-2), "grad_norm": None, "updates": 0}


@pytest.mark.parametrize("why", ["a number", "a signal"])
def test_a_step_that_ends_after_its_first_update_is_undone(harness: Any, why: str):
    run = harness(minibatches=2)
    run.step(episode())  # so that there is momentum to restore
    version = dict(run.backend.adapters.versions)
    good = [later(s, 2) for s in episode().streams]
    broken = harness(backend=run.backend, minibatches=2)

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
    assert not broken.moved()
    assert run.backend.adapters.versions == version
    assert optimizer_state(broken.trainer.optimizer, run.backend.adapters).keys() == broken.moments.keys()


@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_stop_leaves_a_whole_step_or_none(harness: Any, make_backend: Any, minibatches: int):
    """Requested during the update: after the only update of a step nothing may stop any more."""
    asked = []

    def stop() -> None:
        if asked:
            raise Interrupted("stopped by a test")

    monitor = Monitor(Progress(), stop=stop)
    backend = make_backend(seats=SEATS, poll=monitor.poll)
    run = harness(backend=backend, minibatches=minibatches)
    run.monitor, run.on_update = monitor, lambda: asked.append(True)
    if minibatches == 1:
        (report,) = run.step(episode()).reports
        assert run.moved() == {"A", "B"}
        assert [update.step_gap is None for update in report.streams].count(False) == 1
    else:
        with pytest.raises(Interrupted):
            run.step(episode())
        assert not run.moved()
    with pytest.raises(Interrupted):
        monitor.poll()  # the request is not lost


@pytest.mark.parametrize("measured", [True, False])
def test_a_step_between_those_that_measure_gaps_reads_no_row_again(
    harness: Any, monkeypatch: pytest.MonkeyPatch, measured: bool
):
    monkeypatch.setattr("lite_selfplay.training.trainer.gap_turn", lambda step: 0 if measured else None)
    run, asked = harness(), []
    score = run.backend.score
    run.backend.score = lambda name, *given: asked.append(name) or score(name, *given)
    (report,) = run.step(episode()).reports
    assert ("base" in asked) == measured
    assert [update.step_gap is not None for update in report.streams].count(True) == measured
    assert [update.base_gap is not None for update in report.streams] == [measured] * 2
    assert all(update.sampler_gap is not None for update in report.streams)


@pytest.mark.parametrize("sampling", [{"top_p": 0.9, "top_k": 5, "min_p": 0.1}, {"temperature": 0.0}])
def test_samples_that_do_not_follow_the_policy_are_refused(harness: Any, sampling: dict[str, Any]):
    run, said = harness(), ", ".join(f"{name}={value:g}" for name, value in sampling.items())

    def step_of(replay: bool = False, **values: Any) -> StreamUpdate:
        """A step of samples with this sampling and these values."""

        def asked(sample: Sample) -> Sample:
            manner = dataclasses.replace(sample.completion.sampling, **sampling)
            return dataclasses.replace(with_completion(sample, sampling=manner), **values)

        played = changed(stream("drafter", "A", DRAFTS, replay=replay), asked)
        return run.step(Episode([played])).reports[-1].streams[0]

    with pytest.raises(GameError, match=rf"^the drafter's stream trains seat 'A' on .* sampled with {said}, .*mask"):
        step_of()
    with pytest.raises(GameError, match="make it an example"):  # a reward with an advantage of its own is no example
        step_of(advantage=1.0)
    # Masked samples are skipped, whatever their values; those with an advantage and no reward are weighted examples.
    assert step_of(masked=True, reward=float("nan")).rows == 0
    assert run.reports[-1].nonfinite is None
    weighted = step_of(reward=None, advantage=1.0)
    assert (weighted.rows, weighted.sampler_gap) == (10, None)  # the policy did not sample them
    assert weighted.base_gap > 0
    assert step_of(replay=True, reward=None, advantage=1.0).rows == 10  # an example in a replay has no ratio either
    # A replay divides by noted probabilities, which greedy decoding does not have.
    if "temperature" in sampling:
        with pytest.raises(GameError, match="temperature=0"):
            step_of(replay=True)
    else:
        assert step_of(replay=True).rows > 0


def test_completions_from_before_a_restored_snapshot_are_stale(harness: Any):
    run = harness()
    run.backend.adapters.snapshot("A", "kept")
    drafts = episode().streams[0]
    restoring = Episode(actions=[Restore("A", "kept")])
    with pytest.raises(GameError, match="at update 1, but holds a completion by 'A' at update 0"):
        run.step(restoring, Episode([drafts]))
    assert run.backend.adapters.updates["A"] == 0  # it is no update: the schedule does not advance


def test_a_blended_seat_is_another_with_an_optimizer_that_starts_anew(harness: Any):
    run, drafts = harness(), episode().streams[0]
    adapters, blend = run.backend.adapters, Blend("A", ("B", "B"), 0.0, 0)
    with pytest.raises(GameError, match="at update 2, but holds a completion by 'A' at update 0"):
        run.step(dataclasses.replace(episode(), actions=[blend]), Episode([drafts]))
    state, blended = run.trainer.optimizer.state, adapters.state("A")
    assert not any(parameter in state for parameter in adapters.parameters("A").values())
    assert all(parameter in state for parameter in adapters.parameters("B").values())
    assert adapters.updates == {"A": 1, "B": 1}
    adapters.blend("A", ("B", "B"), 0.0, 0)
    assert same_weights(adapters.state("A"), blended)
