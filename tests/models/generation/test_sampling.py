import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest
from transformers.generation import logits_process as process

from lite_selfplay.data import Sampling
from lite_selfplay.models.generation.sampling import filtered_logits, sample_tokens, uniforms
from tests.near import near


def test_uniforms_follow_splitmix64():
    # First outputs of SplitMix64 from seed 1234567, as published with the algorithm's test vectors.
    first, second = 6457827717110365317, 3203168211198807973
    assert uniforms([1234567], 2)[0].tolist() == [(first >> 11) * 2.0**-53, (second >> 11) * 2.0**-53]


def test_uniforms_of_a_row_do_not_depend_on_its_neighbours_and_go_on_where_it_is():
    whole = uniforms([3, 7, 2**64 - 1], 30)
    assert np.array_equal(uniforms([7], 50)[0][:30], whole[1])
    assert np.array_equal(uniforms([3, 7], 10, [4, 20]), [whole[0][4:14], whole[1][20:30]])
    # Uniform over consecutive seeds, and within one.
    assert kstest(uniforms(range(4000), 1)[:, 0], "uniform").pvalue > 1e-3
    assert kstest(uniforms([5], 4000)[0], "uniform").pvalue > 1e-3


def test_choose_follows_the_exact_probabilities():
    torch.manual_seed(0)
    logits = torch.randn(1, 12) * 2
    n = 40_000
    uniform = torch.from_numpy(uniforms(range(n), 1)[:, 0])
    tokens, logprobs = sample_tokens(logits.expand(n, -1), uniform, Sampling(temperature=0.7))
    expected = (logits[0] / 0.7).double().softmax(-1)
    counts = torch.bincount(tokens, minlength=12).double()
    keep = expected * n >= 5
    observed = torch.cat([counts[keep], counts[~keep].sum()[None]])
    wanted = torch.cat([expected[keep], expected[~keep].sum()[None]]) * n
    assert chisquare(observed.numpy(), wanted.numpy()).pvalue > 1e-3
    assert near(logprobs, expected.log()[tokens])


def test_choose_inverts_the_cumulative_sum_by_hand():
    # Probabilities 0.2, 0.3, 0.5: u < 0.2 is token 0, u < 0.5 token 1, else token 2.
    logits = torch.tensor([[0.2, 0.3, 0.5]]).log().expand(6, -1)
    uniform = torch.tensor([0.0, 0.19, 0.21, 0.49, 0.51, 1 - 2.0**-53], dtype=torch.float64)
    tokens, logprobs = sample_tokens(logits, uniform, Sampling())
    assert tokens.tolist() == [0, 0, 1, 1, 2, 2]
    assert logprobs[2].item() == pytest.approx(math.log(0.3), abs=1e-6)
    tokens, logprobs = sample_tokens(logits[:1], torch.tensor([0.0]), Sampling(temperature=0.0))  # the most likely one
    assert (tokens.item(), logprobs.item()) == (2, pytest.approx(math.log(0.5), abs=1e-6))


@given(st.integers(0, 2**63), st.floats(0, 1, exclude_max=True))
@settings(max_examples=50, deadline=None)
def test_an_impossible_token_is_never_chosen(seed, u):
    generator = torch.Generator().manual_seed(seed % 2**31)
    logits = torch.randn(1, 30, generator=generator)
    logits[0, 1::2] = -torch.inf
    token, logprob = sample_tokens(logits, torch.tensor([u], dtype=torch.float64), Sampling())
    assert token.item() % 2 == 0
    assert math.isfinite(logprob.item())


@pytest.mark.parametrize(
    "sampling",
    [
        *(Sampling(temperature=0.6), Sampling(top_k=5), Sampling(top_p=0.7), Sampling(min_p=0.1)),
        Sampling(repetition_penalty=1.3),
        Sampling(temperature=0.6, top_k=8, top_p=0.9, min_p=0.05, repetition_penalty=1.05),
    ],
    ids=lambda s: ",".join(f"{k}={v}" for k, v in vars(s).items() if v != vars(Sampling())[k]),
)
def test_filters_are_those_of_transformers(sampling):
    torch.manual_seed(1)
    logits = torch.randn(4, 40) * 3
    history = torch.randint(0, 40, (4, 6))
    seen = torch.zeros(4, 40, dtype=torch.bool).scatter(1, history, True)
    expected = logits.clone()
    for kind, value in (
        (process.RepetitionPenaltyLogitsProcessor, sampling.repetition_penalty),
        (process.TemperatureLogitsWarper, sampling.temperature),
        (process.TopKLogitsWarper, sampling.top_k or 40),
        (process.TopPLogitsWarper, sampling.top_p),
        (process.MinPLogitsWarper, sampling.min_p),
    ):
        expected = kind(value)(history, expected)
    expected = expected.softmax(-1)
    assert torch.allclose(filtered_logits(logits, sampling, seen).softmax(-1), expected, atol=1e-6)
