"""The least time of a step's sampling, by numbers worked out by hand."""

import pytest

from lite_selfplay.config import RunConfig
from lite_selfplay.models.memory import CARDS, Load
from lite_selfplay.models.sampling_time import KERNELS_BESIDE, KERNELS_OF_A_LAYER, SamplingTime, sampling_time
from lite_selfplay.models.shapes import Shape

SHAPE = Shape(hidden=8, layers=3, intermediate=16, heads=2, key_heads=1, head_size=4, vocabulary=10)


def config(**run: int) -> RunConfig:
    return RunConfig.of({"game": "agon", "model": {"name": "tiny", "precision": "bf16"}, "run": run})


def test_what_a_token_reads_and_launches():
    found = sampling_time(config(), SHAPE, Load(rows=4, prompt_tokens=6, completion_tokens=20), completions=8)
    # A layer: 8x8 queries, twice 8x4 keys and values, 8x8 output, three times 8x16; 8x10 of the head. Two bytes each.
    weights = 2 * (3 * (64 + 2 * 32 + 64 + 3 * 128) + 80)
    held = 4 * (6 + 10)  # tokens, at half of the completions
    assert found == SamplingTime(
        together=4,
        tokens=2 * 20,
        bytes=weights + held * 3 * 2 * 4 * 2,
        kernels=3 * KERNELS_OF_A_LAYER + KERNELS_BESIDE,
    )


def test_seconds_follow_from_bandwidth_and_launches():
    time = SamplingTime(together=4, tokens=1000, bytes=2e9, kernels=800)
    assert time.reading(CARDS["h100"].bandwidth) == pytest.approx(1000 * 2 / 3350)
    assert time.launching(5) == pytest.approx(4)


@pytest.mark.parametrize(
    ("cache", "together", "tokens"),
    [(60000, 3, 3 * 15000), (15512, 1, 8 * 15000), (10, 1, 8 * 15000), (10**6, 8, 15000)],
)
def test_long_answers_wait_for_each_other_where_the_cache_is_small(cache: int, together: int, tokens: int):
    load = Load(rows=8, prompt_tokens=512, completion_tokens=15000)
    found = sampling_time(config(generation_tokens=cache), SHAPE, load, completions=8)
    assert (found.together, found.tokens) == (together, tokens)
