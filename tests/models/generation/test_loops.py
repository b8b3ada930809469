"""Completions that repeat themselves: where they end, and that no others do."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from lite_selfplay.data import Sampling
from lite_selfplay.models.generation.loops import LEAST, LONGEST, TIMES, loop_end
from lite_selfplay.models.generation.sampling import Decoding, Generation, SampledRow, Sampler
from tests.models.sampled import asked, completions, own_generate, words


def read_literally(ids: Sequence[int]) -> int | None:
    """The rule, word by word."""
    for count in range(LEAST, len(ids) + 1):
        for period in range(1, LONGEST + 1):
            last = max(LEAST, TIMES * period)
            if count >= last and ids[count - last + period : count] == ids[count - last : count - period]:
                return count
    return None


@pytest.mark.parametrize(
    ("before", "period", "end"),  # 256 equal tokens; four times 64
    [(0, 1, 256), (10, 64, 266), (10, 65, 270), (10, 256, 1034), (10, 257, None), (300, 3, 556)],
)
def test_a_loop_ends_after_256_tokens_and_four_rounds(before, period, end):
    ids = [*range(1000, 1000 + before), *(list(range(period)) * 1300)][:1300]
    assert loop_end(ids) == end
    if end is not None:
        assert loop_end(ids[: end - 1]) is None
        assert loop_end([*ids[: end - 2], 7777, *ids[end - 1 : end]]) is None


def test_the_rule_is_the_one_that_is_written_however_often_one_checks():
    drawn = random.Random(0)
    for _ in range(20):
        period = drawn.choice([1, 2, 3, 7, 40, 63, 64, 65, 100, 200, 256, 257])
        before = [drawn.randrange(50) for _ in range(drawn.randrange(300))]
        ids = (before + [drawn.randrange(50) for _ in range(period)] * 700)[: drawn.choice([200, 256, 700, 1400])]
        if drawn.random() < 0.4:
            ids[drawn.randrange(100, len(ids))] = 99
        right = read_literally(ids)
        assert loop_end(ids) == right
        for step in (1, 13, 16):
            checks = (loop_end(ids[:end], end - step) for end in range(step, len(ids) + step, step))
            assert next((found for found in checks if found), None) == right


def test_a_table_of_zeros_and_a_counted_list_are_no_loops():
    row = [*([0, 11] * 16), 13]  # a program's table of 7 rows of 16 zeros: 231 tokens
    assert loop_end([5, 6, *(row * 7), *range(20, 200)]) is None
    assert loop_end([x for i in range(400) for x in (i + 100, 11, 12, 13)]) is None


def taken(ids: Sequence[int], at_once: int, **options: Any) -> Generation:
    """A completion with these tokens, added in chunks."""
    sampling = Sampling(max_tokens=options.pop("max_tokens", 4096), stop=options.pop("stop", ()))
    decoding = Decoding([2], torch.device("cpu"), decode=lambda some: "".join(map(chr, some)), **options)
    row, sampler = SampledRow(0, [1], Generation(), 0), Sampler(sampling, decoding)
    for first in range(0, len(ids), at_once):
        if not row.over:
            part = list(ids[first : first + at_once])
            sampler.take(row, part, [-float(first + i) for i in range(len(part))])
    return row.out


LOOP = [*range(70, 80), *([65, 66, 67] * 400)]
"""Ends at 266 tokens."""


@pytest.mark.parametrize("at_once", [1, 7, 16])
def test_a_row_ends_at_the_same_token_however_it_is_drawn(at_once):
    for ids, options, stop, length in (
        (LOOP, {}, "loop", 266),
        (LOOP, {"end_loops": False}, "length", len(LOOP)),
        ([*LOOP[:265], 2, *LOOP[266:]], {}, "eos", 266),
        ([*LOOP[:266], 2], {}, "loop", 266),
        (LOOP, {"stop": ("never said",)}, "loop", 266),
        (LOOP, {"stop": ("OABC",)}, "string", 13),
        (LOOP, {"max_tokens": 266}, "loop", 266),
        (LOOP, {"max_tokens": 265}, "length", 265),
    ):
        out = taken(ids, at_once, **options)
        assert (out.stop, out.token_ids) == (stop, ids[:length])
        assert out.logprobs == [-float(i) for i in range(length)]


def test_every_way_of_sampling_ends_a_loop_at_the_same_token(make_backend):
    """A greedy random model repeats itself from some token on."""
    backend = make_backend(eos_ids=[2**20])
    request = asked(prompts=[[5], [20], [43], [49], [123]], n=1, temperature=0.0, max_tokens=420)
    plain = completions(backend, request, loop="plain")
    looped = [out for out in plain if out.stop == "loop"]
    assert len(looped) > 1
    assert all(loop_end(out.token_ids) == len(out.token_ids) < 420 for out in looped)
    assert all(loop_end(out.token_ids) is None for out in plain if out.stop != "loop")
    fixed = completions(backend, request, loop="fixed")
    assert [(out.stop, out.token_ids) for out in fixed] == [(out.stop, out.token_ids) for out in plain]
    assert words(own_generate(backend, request)) == words(plain)
    whole = completions(backend, request, loop="plain", end_loops=False)
    assert {(out.stop, len(out.token_ids)) for out in whole} == {("length", 420)}
    assert [ids[: len(out.token_ids)] for ids, out in zip(words(whole), plain, strict=True)] == words(plain)
