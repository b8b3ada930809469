from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from lite_selfplay.models.generation import fixed, rows
from lite_selfplay.models.generation.generate import generate
from lite_selfplay.models.generation.sampling import Decoding
from tests.models.sampled import ENDS, asked, assert_alike, completions, flat, of_several_lengths, words
from tests.models.small import small
from tests.models.watch import noted


def test_a_row_samples_the_same_alone_in_any_batch_and_in_any_chunk(make_backend):
    backend = make_backend(eos_ids=ENDS)  # many ends, so that rows leave the batch
    request = asked(n=4, max_tokens=20)
    together = completions(backend, request)
    assert len({len(out.token_ids) for out in together}) > 3
    own = [(prompt, seed) for prompt, seeds in zip(request.prompts, request.seeds, strict=True) for seed in seeds]
    alone = [completions(backend, replace(request, prompts=[prompt], n=1, seeds=[[seed]])) for prompt, seed in own]
    assert_alike(flat(alone), together)
    small = make_backend(eos_ids=ENDS, cache_tokens=60)
    assert words(completions(small, request)) == words(together)


def test_prompts_that_begin_alike_are_read_once_and_sample_the_same(make_backend, monkeypatch):
    backend = make_backend(eos_ids=ENDS)
    head = list(range(60, 90))
    prompts = [[*head, 1, 5], [*head, 1, 5], [*head, 7], [30, 31, 32, 33], [*head[:20], 9, 9, 9, 9]]
    inner = backend.adapters.model.get_base_model().base_model
    read = noted(monkeypatch, inner, "forward", lambda **inputs: inputs["input_ids"].numel())
    shared = completions(backend, asked(prompts=prompts, max_tokens=16))
    # Three prompts share 30 tokens, the others have a prefix of their own; then at most 2 tokens of each are left.
    assert read[:2] == [3 * 30, 5 * 2]
    monkeypatch.setattr(rows, "shares_prefixes", lambda model: False)
    read.clear()
    assert_alike(shared, completions(backend, asked(prompts=prompts, max_tokens=16)))
    assert read[0] == 5 * 32


def test_rows_that_join_later_sample_what_they_sample_alone(make_backend, monkeypatch):
    joined = noted(monkeypatch, rows.RowBatch, "join", lambda batch, other: len(other.rows))
    request = asked("B", of_several_lengths(30), max_tokens=20, repetition_penalty=1.1)
    ends = [2, *range(100, 130)]
    whole = completions(make_backend(eos_ids=ends), request, loop="plain")  # a GPU has its own
    assert not joined
    small = completions(make_backend(eos_ids=ends, cache_tokens=220), request, loop="plain")
    assert len(joined) > 2
    assert sum(joined) > 20
    assert_alike(small, whole)


@pytest.mark.parametrize("loop", ["plain", "fixed"])
def test_prompts_are_read_a_piece_at_a_time(make_backend, monkeypatch, loop):
    poll = Mock()
    backend = make_backend(eos_ids=ENDS, poll=poll)
    request = asked(prompts=of_several_lengths(20), max_tokens=12)
    whole = completions(backend, request, loop=loop)
    once = poll.call_count
    monkeypatch.setattr(rows, "PREFILL_TOKENS", 16)
    assert_alike(completions(backend, request), whole, 1e-5)
    assert poll.call_count - once > once + 3


def test_a_sliding_window_waits_for_a_batch_of_its_own_and_goes_by_the_plain_loop(monkeypatch):
    monkeypatch.setattr(fixed, "_Batch", None)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    sizes = {"vocab_size": 120, "hidden_size": 48, "num_hidden_layers": 3, "max_position_embeddings": 128}
    model = small("gemma3_text", **sizes, head_dim=12, sliding_window=4, layer_types=kinds).eval()
    request = asked("", [[*range(p, p + 1 + p % 5)] for p in range(3, 15)], max_tokens=12)
    said = [
        generate(model, request, Decoding([*range(60, 90)], torch.device("cpu"), cache_tokens, loop=loop))
        for cache_tokens, loop in ((10**6, "plain"), (100, "plain"), (10**6, "fixed"))
    ]
    assert words(flat(said[0])) == words(flat(said[1])) == words(flat(said[2]))


def test_it_ends_where_it_should(make_backend):
    at_once = completions(make_backend(eos_ids=list(range(259))), asked(max_tokens=6))
    assert all(out.stop == "eos" and len(out.token_ids) == len(out.logprobs) == 1 for out in at_once)
    never = completions(make_backend(eos_ids=[]), asked(max_tokens=6))
    assert all(out.stop == "length" and len(out.token_ids) == 6 for out in never)
    assert make_backend().generate(asked(prompts=[])) == []
