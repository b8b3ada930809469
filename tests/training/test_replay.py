"""Offline replay: stored log-probabilities of any policy, a batch used several times, and examples mixed in."""

import dataclasses
import itertools
from typing import Any

import pytest
import torch

from lite_selfplay.credit import stream_advantages
from lite_selfplay.data import Episode, Group, Sample, Stream
from lite_selfplay.training.sampler_check import SamplerCheck

from .harness import changed, completion, expected, plain_logprobs, relative_error, samples_of, stream, with_completion


def stored(played: Stream, backend: Any, shift: float = 0.0) -> Stream:
    """The stream as from a collection: with advantages, and log-probabilities computed by the trainer."""

    advantages = itertools.chain.from_iterable(stream_advantages(played))

    def kept(sample: Sample) -> Sample:
        said = sample.completion
        (scores,) = backend.score("A", [(said.prompt_ids, said.token_ids)], said.sampling.temperature)
        old = tuple(value + shift for value in scores.logprobs)
        # Another seat and an old version: allowed in a replay.
        noted = with_completion(sample, logprobs=old, seat="A@round-0", weights_version=-1)
        return dataclasses.replace(noted, advantage=next(advantages))

    return changed(played, kept, replay=True)


@pytest.mark.parametrize(("shift", "minibatches"), [(0.5, 1), (-0.1, 1), (-0.5, 2)])
def test_the_ratio_is_to_what_another_program_noted(harness: Any, monkeypatch: Any, shift: float, minibatches: int):
    """A seat's fresh completions, sampled elsewhere with log-probabilities `shift` above the trainer's, have the same
    gradients as a replay with those, in each update of a step."""
    monkeypatch.setattr(SamplerCheck, "judge", lambda *_: None)  # the shift is larger than rounding
    monkeypatch.setattr("tests.training.harness.as_sampled", lambda played, _: played)
    offline, run = harness(minibatches=minibatches), harness(minibatches=minibatches)
    played = stream("drafter", "A", [[1, -1, -1], [1, -1, 1, 1]], credit="reinforce")
    replay = stored(played, run.backend, shift)

    def fresh(sample: Sample) -> Sample:
        return dataclasses.replace(with_completion(sample, seat="A", weights_version=0), advantage=None)

    run.backend.samples_elsewhere = True
    (own,) = run.step(Episode([changed(replay, fresh, replay=False)])).reports[0].streams
    (theirs,) = offline.step(Episode([replay])).reports[0].streams
    assert len(run.starts) == len(offline.starts) == minibatches
    assert relative_error(run.gradients["A"], offline.gradients["A"]) < 1e-5
    assert own.clipped == pytest.approx(theirs.clipped, abs=1e-6)
    assert (own.clipped == 0.0) == (abs(shift) < 0.2)
    if shift == 0.5:  # every ratio is exp(-0.5), which is below 0.8: rows of A < 0 have no gradient
        counts = [(len(sample.completion.token_ids), sample.advantage < 0) for sample in samples_of(replay)]
        assert own.clipped == pytest.approx(sum(n for n, cut in counts if cut) / sum(n for n, _ in counts), abs=1e-6)
    assert own.sampler_gap == pytest.approx(abs(shift), abs=1e-4)


def example(index: int, weight: float) -> Sample:
    said = dataclasses.replace(completion("B", index), logprobs=(), seat="", weights_version=-1)
    return Sample(said, None, advantage=weight)


@pytest.mark.parametrize(
    ("role", "budget", "weight", "rewards"),
    [
        ({}, 8192, 0.15, [1, -1, -1]),
        ({"beta": 0.2, "reference": "base", "entropy": 0.05}, 40, 0.15, [1, -1, -1]),
        ({"beta": 0.2, "reference": "base"}, 8192, 0.5, []),  # examples alone
    ],
)
def test_examples_add_a_mean_of_their_own(harness: Any, role: Any, budget: int, weight: float, rewards: list[float]):
    """loss = mean over rewarded rows + weight * mean over examples of -log p, for any numbers of each."""
    run = harness(role, microbatch_tokens=budget)
    model, taught = run.alone(), [example(i, weight) for i in range(7, 12)]
    paid = stored(stream("drafter", "A", [rewards], credit="reinforce"), run.backend)
    likelihoods = [plain_logprobs(model, sample.completion)[0].mean() for sample in taught]
    loss = -weight * torch.stack(likelihoods).mean()
    if rewards:
        loss = loss + expected(model, paid, role, run.base()).loss
    mixed = [*taught[:1], *samples_of(paid)[:2], *taught[1:], *samples_of(paid)[2:]]
    got = run.step(Episode([dataclasses.replace(paid, groups=[Group(mixed)])]))
    assert run.error(model, loss) < 1e-4
    found = got.reports[0].streams[0]
    assert (found.rows, found.tokens) == (len(mixed), sum(len(s.completion.token_ids) for s in mixed))
    assert got.reports[0].advantages[0][0].count(None) == 0
    assert (found.kl is None) == (not rewards or not role)


def test_a_batch_is_read_several_times(harness: Any):
    """The second time, the ratio is to the stored log-probabilities, not to those of the current weights."""
    run = harness()
    played = stored(stream("drafter", "A", [[1, -1, -1]], credit="reinforce"), run.backend)
    first, second = run.step(Episode([played]), Episode([played]), Episode([played])).reports[::2]
    assert (first.trained, second.trained) == (True, True)
    assert first.streams[0].clipped == 0.0
    assert (second.streams[0].clipped or 0.0) > 0.0  # a step of 1e-2 goes far
