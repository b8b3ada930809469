"""The GPU's loop and a model's own `generate`, on a CPU, sample the same as the plain loop."""

import dataclasses
from functools import partial
from unittest.mock import Mock

import pytest

from lite_selfplay.models.generation import fixed
from lite_selfplay.models.generation.layout import CHECK_EVERY, rounded_up, row_size
from lite_selfplay.models.generation.slots import CachePool
from tests.models.sampled import (
    ENDS,
    asked,
    assert_alike,
    completions,
    letters,
    of_several_lengths,
    own_generate,
    words,
)
from tests.models.test_architectures import DENSE, backend_over, folder
from tests.models.watch import noted, trainable

MANY = [*of_several_lengths(20), *([*range(60, 90), *end] for end in ([1, 5], [1, 5], [7]))]


plain_loop, fixed_loop = (partial(completions, loop=loop) for loop in ("plain", "fixed"))
of_all_loops = pytest.mark.parametrize("loop", [plain_loop, fixed_loop, own_generate])


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.7, "top_p": 0.8, "top_k": 50, "min_p": 0.01},
        {"temperature": 1.3, "top_k": 20},
        {"repetition_penalty": 1.2},
    ],
    ids=lambda sampling: " ".join(sampling) or "plain",
)
def test_the_tokens_are_those_of_the_plain_loop(make_backend, sampling):
    backend = make_backend(eos_ids=ENDS)
    request = asked(prompts=MANY, max_tokens=40, **sampling)
    expected = plain_loop(backend, request)
    assert len({len(out.token_ids) for out in expected}) > 5
    assert {out.stop for out in expected} == {"eos", "length"}
    assert_alike(fixed_loop(backend, request), expected, 1e-5)
    assert_alike(fixed_loop(backend, request, cache_tokens=1600), expected, 1e-5)  # some rows wait
    assert_alike(own_generate(backend, request, cache_tokens=2**16), expected)


@pytest.mark.parametrize("kind", ["qwen3_5_text", "lfm2", "granitemoehybrid"])
@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.8, "repetition_penalty": 1.2}], ids=["plain", "more"])
def test_the_tokens_of_layers_that_carry_a_state_are_those_of_the_plain_loop(tmp_path, kind, sampling):
    """Rows leave and join, reuse slots and move together; alone each samples the same."""
    folder(tmp_path, kind, **{**DENSE[kind], "vocab_size": 259})
    backend = backend_over(tmp_path)
    request = asked(prompts=MANY, max_tokens=40, **sampling)
    expected = plain_loop(backend, request, eos_ids=ENDS)
    assert len({len(out.token_ids) for out in expected}) > 5
    assert_alike(plain_loop(backend, request, cache_tokens=400), expected, 1e-3)
    assert_alike(fixed_loop(backend, request, cache_tokens=2**16), expected, 1e-3)
    assert_alike(fixed_loop(backend, request, cache_tokens=1600), expected, 1e-3)
    for number in (0, 7):
        alone = asked(prompts=MANY[number : number + 1], max_tokens=40, **sampling)
        seeded = dataclasses.replace(alone, seeds=request.seeds[number : number + 1])
        assert_alike(plain_loop(backend, seeded, cache_tokens=2**16), expected[2 * number : 2 * number + 2], 1e-3)


def test_stop_strings_end_a_row_where_they_are_met(make_backend):
    backend = make_backend(eos_ids=[*range(100, 104)], decode=letters)
    request = asked(prompts=MANY, max_tokens=40, stop=("cab", "hh", "a long one that is never met"))
    expected = plain_loop(backend, request)
    assert {out.stop for out in expected} == {"string", "eos", "length"}
    assert max(len(out.token_ids) for out in expected if out.stop == "string") > CHECK_EVERY
    assert_alike(fixed_loop(backend, request), expected, 1e-5)
    assert_alike(own_generate(backend, request), expected)


@of_all_loops
def test_an_empty_prompt_and_stop_strings_without_a_decoder_are_refused(make_backend, loop):
    for request, why in ((asked(prompts=[[]]), "at least one token"), (asked(stop=("x",)), "stop strings need")):
        with pytest.raises(ValueError, match=why):
            loop(make_backend(), request)


@of_all_loops
def test_tokens_are_told_as_they_are_drawn_and_a_row_ends_where_hear_says_stop(make_backend, loop):
    backend = make_backend(eos_ids=ENDS)
    whole = plain_loop(backend, asked(max_tokens=20))
    unwanted = 5
    told = {}

    def hear(p, k, number, token):
        row = told.setdefault(2 * p + k, [])
        if number == len(row) + 1:
            row.append(token)
        return 2 * p + k != unwanted or number < 3

    heard = loop(backend, asked(hear=hear, max_tokens=20))
    assert len(whole[unwanted].token_ids) > 3
    expected = [ids[:3] if row == unwanted else ids for row, ids in enumerate(words(whole))]
    assert words(heard) == [told[row] for row in range(8)] == expected
    assert heard[unwanted].stop == "length"


@of_all_loops
def test_asking_to_stop_stops_between_tokens(make_backend, loop):
    backend, poll = make_backend(), Mock(side_effect=[None, None, KeyboardInterrupt])
    with pytest.raises(KeyboardInterrupt):
        loop(backend, asked(max_tokens=50), poll=poll)
    assert poll.call_count == 3
    assert trainable(backend.adapters) == {"seat-0"}


# The loop of a GPU


@pytest.mark.parametrize("length", [1, 16, 17])
def test_a_limit_anywhere_in_a_chunk(make_backend, length):
    backend = make_backend(eos_ids=[2**20])
    found = fixed_loop(backend, asked(prompts=MANY, max_tokens=length))
    assert {len(out.token_ids) for out in found} == {length}
    assert_alike(found, plain_loop(backend, asked(prompts=MANY, max_tokens=length)), 1e-5)


def test_rows_take_the_slots_of_others_and_the_last_ones_move_together(make_backend, monkeypatch):
    started = noted(monkeypatch, fixed._Batch, "add", lambda batch, new, slots: len(new))
    sizes = noted(monkeypatch, fixed._Batch, "run", lambda batch: len(batch.rows))
    found = fixed_loop(make_backend(eos_ids=ENDS[:6], cache_tokens=8 * 384), asked(prompts=MANY, max_tokens=90))
    assert sum(started) == len(found)
    assert len(started) > 2
    assert min(sizes) < max(sizes) == started[0] == 8


def test_a_longer_row_copies_nothing_that_was_there(make_backend, monkeypatch):
    """Growing is a wider view of the same allocation."""

    def seen(pool, *given):
        pointers = [store.data_ptr() for layer in pool.layers for store in layer.stores]
        return pool.layers[0].keys.shape[2], *pointers

    steps = noted(monkeypatch, CachePool, "step", seen, after=True)
    monkeypatch.setattr(fixed, "FINEST", 16)
    backend = make_backend(eos_ids=[2**20])
    request = asked(prompts=[[5, 6, 7]], max_tokens=75)
    found = fixed_loop(backend, request)
    assert len({tuple(pointers) for _, *pointers in steps}) == 1
    assert len(steps) == 74  # the first token follows from reading the prompt
    assert {width for width, *_ in steps} == {32, 48, 64, 80}
    assert_alike(found, plain_loop(backend, request), 1e-5)


def test_sizes_are_few_and_never_much_too_large():
    sizes = sorted({rounded_up(count, 128) for count in range(1, 16001)})
    assert len(sizes) < 40
    assert all(rounded_up(count, 128) - count < max(128, count / 4) for count in range(1, 16001))
    assert [rounded_up(count) for count in range(1, 10)] == [1, 2, 3, 4, 5, 6, 7, 8, 10]
    assert sorted({row_size(count) for count in range(1, 257)}) == [
        *(2, 4, 8, 16, 32, 64),
        *(80, 96, 112, 128, 160, 192, 224, 256),
    ]


# A model's own `generate`


def test_small_calls_sample_the_same_and_end_once_hear_says_stop(make_backend):
    backend = make_backend(eos_ids=ENDS)
    calls = []

    def generate(**options):
        out = backend.adapters.model.generate(**options)
        calls.append((*options["input_ids"].shape, out.shape[1]))
        return out

    whole = words(own_generate(backend, asked(max_tokens=12)))
    small = own_generate(backend, asked(max_tokens=12), generate, cache_tokens=60)
    assert len(calls) > 2
    assert max(rows * (width + 12) for rows, width, _ in calls) <= 60
    assert words(small) == whole
    calls.clear()
    request = asked(hear=lambda p, k, number, token: number < 4, max_tokens=12)
    assert words(own_generate(backend, request, generate)) == [ids[:4] for ids in whole]
    assert [end - width for _, width, end in calls] == [4]
