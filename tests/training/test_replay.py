"""Offline replay: stored log-probabilities, clipped ratios, examples mixed in, and the KL inside the advantage."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Episode, Group, Sample, Stream
from lite_selfplay.training.sampler_check import SamplerCheck

from .harness import (
    Harness,
    changed,
    completion,
    expected_gradients,
    plain_logprobs,
    relative_error,
    respoken,
    stream,
)


def stored(played: Stream, backend: Any, shift: float = 0.0) -> Stream:
    """The stream as a collection brings it back: advantages worked out, log-probabilities read by the trainer."""

    advantages = itertools.chain.from_iterable(stream_advantages(played))

    def kept(sample: Sample) -> Sample:
        said = sample.completion
        (scores,) = backend.score("A", [(said.prompt_ids, said.token_ids)], said.sampling.temperature)
        old = tuple(value + shift for value in scores.logprobs)
        # Another seat's name, an age long past: a replay does not mind.
        noted = respoken(sample, logprobs=old, seat="A@round-0", weights_version=-1)
        return dataclasses.replace(noted, advantage=next(advantages))

    return changed(played, kept, replay=True)


@pytest.mark.parametrize("shift", [0.5, 0.1, -0.5])
def test_a_clipped_ratio_by_hand(harness: Callable[..., Harness], shift: float):
    """Log-probabilities stored `shift` above make every ratio exp(-shift). A row of A > 0 has no gradient at a ratio
    above 1.2, one of A < 0 none below 0.8; elsewhere the gradient is that of the plain objective times the ratio."""
    run = harness()
    played = stored(stream("drafter", "A", [[1, -1, -1]], credit="reinforce"), run.backend, shift)
    model = run.alone()
    ratio = float(torch.tensor(-shift).exp())
    terms = []
    for sample in played.groups[0].samples:
        assert sample.advantage is not None
        cut = ratio > 1.2 if sample.advantage > 0 else ratio < 0.8
        terms.append(0.0 if cut else -ratio * sample.advantage * plain_logprobs(model, sample.completion)[0].mean())
    wanted = expected_gradients(model, sum(terms) / 3, "A")  # type: ignore[arg-type]
    got = run.step(Episode([played]))
    assert relative_error(got.gradients["A"], wanted) < 1e-4
    lengths = [len(sample.completion.token_ids) for sample in played.groups[0].samples]
    cut_off = {0.5: sum(lengths[1:]), -0.5: lengths[0]}.get(shift, 0) / sum(lengths)
    assert got.reports[0].streams[0].clipped == pytest.approx(cut_off, abs=1e-6)


@pytest.mark.parametrize(("shift", "minibatches"), [(0.5, 1), (-0.1, 1), (-0.5, 2)])
def test_the_ratio_is_to_what_another_program_noted(
    harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch, shift: float, minibatches: int
):
    """The seat's own fresh completions, sampled elsewhere with log-probabilities that are `shift` above the trainer's,
    are learned from as a replay with those is, whose ratio is worked out by hand above: in each update of a step."""
    monkeypatch.setattr(SamplerCheck, "judge", lambda *_: None)  # such a shift is no rounding
    monkeypatch.setattr("tests.training.harness.as_sampled", lambda played, _: played)
    offline, run = harness(minibatches=minibatches), harness(minibatches=minibatches)
    played = stream("drafter", "A", [[1, -1, -1], [1, -1, 1, 1]], credit="reinforce")
    replay = stored(played, run.backend, shift)

    def fresh(sample: Sample) -> Sample:
        return dataclasses.replace(respoken(sample, seat="A", weights_version=0), advantage=None)

    run.backend.samples_elsewhere = True
    run.step(Episode([changed(replay, fresh, replay=False)]))
    offline.step(Episode([replay]))
    assert len(run.starts) == len(offline.starts) == minibatches
    assert relative_error(run.gradients["A"], offline.gradients["A"]) < 1e-5
    (own,), (theirs,) = run.reports[0].streams, offline.reports[0].streams
    assert own.clipped == pytest.approx(theirs.clipped, abs=1e-6)
    assert (own.clipped == 0.0) == (abs(shift) < 0.2 and minibatches == 1)
    assert own.sampler_gap == pytest.approx(abs(shift), abs=1e-4)


def example(index: int, weight: float) -> Sample:
    said = dataclasses.replace(completion("B", index), logprobs=(), seat="", weights_version=-1)
    return Sample(said, None, advantage=weight)


@pytest.mark.parametrize(("role", "budget"), [({}, 8192), ({"beta": 0.2, "reference": "base", "entropy": 0.05}, 40)])
def test_examples_among_the_rows_add_a_mean_of_their_own(harness: Callable[..., Harness], role: Any, budget: int):
    """loss = mean over the paid rows + 0.15 * mean over the examples of -log p, however many of each there are."""
    run = harness(role, microbatch_tokens=budget)
    model, base = run.alone(), run.base()
    paid = stored(stream("drafter", "A", [[1, -1, -1]], credit="reinforce"), run.backend)
    taught = [example(i, 0.15) for i in range(7, 12)]
    mixed = [taught[0], *paid.groups[0].samples[:2], *taught[1:], *paid.groups[0].samples[2:]]
    terms, entropies = [], []
    for sample in paid.groups[0].samples:
        assert sample.advantage is not None
        lp, entropy = plain_logprobs(model, sample.completion)
        reference = plain_logprobs(base, sample.completion)[0].detach()
        kl = (reference - lp).exp() - (reference - lp) - 1
        terms.append((-sample.advantage * (lp - lp.detach()).exp() + role.get("beta", 0.0) * kl).mean())
        entropies.append(entropy)
    rl = torch.stack(terms).mean() - role.get("entropy", 0.0) * torch.cat(entropies).mean()
    sft = torch.stack([-plain_logprobs(model, sample.completion)[0].mean() for sample in taught]).mean()
    wanted = expected_gradients(model, rl + 0.15 * sft, "A")
    got = run.step(Episode([dataclasses.replace(paid, groups=[Group(mixed)])]))
    assert relative_error(got.gradients["A"], wanted) < 1e-4
    found = got.reports[0].streams[0]
    assert (found.rows, found.tokens) == (8, sum(len(s.completion.token_ids) for s in mixed))
    assert [row is None for row in got.reports[0].advantages[0][0]] == [False] * 8


def test_a_batch_of_examples_alone_is_learned_from(harness: Callable[..., Harness]):
    run = harness({"beta": 0.3, "reference": "base"})
    model = run.alone()
    taught = [example(i, 0.5) for i in range(3)]
    sft = torch.stack([-plain_logprobs(model, sample.completion)[0].mean() for sample in taught]).mean()
    wanted = expected_gradients(model, 0.5 * sft, "A")
    got = run.step(Episode([Stream("drafter", [Group(taught)], replay=True)]))
    assert relative_error(got.gradients["A"], wanted) < 1e-4
    assert got.reports[0].streams[0].kl is None


@pytest.mark.parametrize(("loss", "budget"), [("grpo", 40), ("dr_grpo", 8192), ("dapo", 40), ("sequence", 40)])
def test_a_kl_inside_the_advantage_is_taken_off_it(harness: Callable[..., Harness], loss: str, budget: int):
    """A' = A - beta * mean_t(log p - log p_reference), without a gradient of its own."""
    role = {"beta": 0.4, "reference": "base", "kl": "advantage", "loss": loss}
    run = harness(role, microbatch_tokens=budget)
    model, base = run.alone(), run.base()
    played = stored(stream("drafter", "A", [[1, -1, 0.5, -0.5]], credit="reinforce"), run.backend)
    likelihoods, values, differences = [], [], []
    for sample in played.groups[0].samples:
        assert sample.advantage is not None
        lp = plain_logprobs(model, sample.completion)[0]
        difference = (lp - plain_logprobs(base, sample.completion)[0]).detach()
        values.append(sample.advantage - 0.4 * difference.mean().item())
        likelihoods.append(lp)
        differences.append(difference)
    sums = torch.stack([-a * lp.sum() for a, lp in zip(values, likelihoods, strict=True)])
    lengths = torch.tensor([len(lp) for lp in likelihoods])
    wanted = {
        "grpo": (sums / lengths).mean(),
        "dr_grpo": sums.sum() / (len(lengths) * run.config.run.max_completion_tokens),  # type: ignore[operator]
        "dapo": sums.sum() / lengths.sum(),
        "sequence": sums.mean(),
    }[loss]
    got = run.step(Episode([played]))
    assert relative_error(got.gradients["A"], expected_gradients(model, wanted, "A")) < 1e-4
    assert got.reports[0].streams[0].kl == pytest.approx(torch.cat(differences).mean().item(), rel=1e-3)


def test_rows_without_an_advantage_move_by_the_kl_inside_it(harness: Callable[..., Harness]):
    role = {"beta": 0.4, "reference": "base", "kl": "advantage"}
    still = stream("drafter", "A", [[1, 1, 1]], credit="batch")
    assert harness(role).step(Episode([still])).reports[0].trained
    assert not harness().step(Episode([still])).reports[0].trained


def test_a_batch_is_read_several_times(harness: Callable[..., Harness]):
    """The second time round the ratio is to what was stored, not to the weights as they are by then."""
    run = harness()
    played = stored(stream("drafter", "A", [[1, -1, -1]], credit="reinforce"), run.backend)
    first, second = run.step(Episode([played]), Episode([played]), Episode([played])).reports[::2]
    assert (first.trained, second.trained) == (True, True)
    assert first.streams[0].clipped == 0.0
    assert (second.streams[0].clipped or 0.0) > 0.0  # a step of 1e-2 goes far
