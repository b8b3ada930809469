import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

from lite_selfplay.data import Sampling
from lite_selfplay.models.adapters import BASE
from lite_selfplay.models.generation import rows
from lite_selfplay.models.generation.generate import generate
from lite_selfplay.models.generation.sampling import Decoding, GenerationRequest
from tests.near import near

PROMPTS = [[10, 11, 12, 13], [20], [30, 31, 32, 33, 34, 35, 36], [40, 41]]


def seeds(prompts: int, n: int) -> list[list[int]]:
    return [[1000 * p + k for k in range(n)] for p in range(prompts)]


def test_a_row_says_the_same_alone_in_any_batch_and_in_any_chunk(make_backend: Callable[..., Any]):
    backend = make_backend(eos_ids=[2, *range(100, 120)])  # many ends, so that rows leave the batch
    sampling = Sampling(max_tokens=20)
    together = backend.generate(GenerationRequest("A", PROMPTS, 4, sampling, seeds(4, 4)))
    assert len({len(out.token_ids) for group in together for out in group}) > 3
    for p, prompt in enumerate(PROMPTS):
        for k in range(4):
            alone = backend.generate(GenerationRequest("A", [prompt], 1, sampling, [[1000 * p + k]]))[0][0]
            assert alone.token_ids == together[p][k].token_ids
            assert near(alone.logprobs, together[p][k].logprobs, 2e-5)
    small = make_backend(eos_ids=[2, *range(100, 120)], cache_tokens=60)
    chunked = small.generate(GenerationRequest("A", PROMPTS, 4, sampling, seeds(4, 4)))
    assert [[o.token_ids for o in g] for g in chunked] == [[o.token_ids for o in g] for g in together]


def test_prompts_that_begin_alike_are_read_once_and_say_the_same(
    make_backend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    backend = make_backend(eos_ids=[2, *range(100, 120)])
    head = list(range(60, 90))
    prompts = [[*head, 1, 5], [*head, 1, 5], [*head, 7], [30, 31, 32, 33], [*head[:20], 9, 9, 9, 9]]
    read: list[int] = []

    def count(module: Any, args: Any, kwargs: Any) -> None:
        read.append(kwargs["input_ids"].numel())

    backend.adapters.model.get_base_model().base_model.register_forward_pre_hook(count, with_kwargs=True)
    sampling = Sampling(max_tokens=16)
    shared = backend.generate(GenerationRequest("A", prompts, 2, sampling, seeds(5, 2)))
    # Three prompts share 30 tokens, the others have a prefix of their own; then at most 2 tokens of each are left.
    assert read[:2] == [3 * 30, 5 * 2]
    monkeypatch.setattr(rows, "shares_prefixes", lambda model: False)
    read.clear()
    plain = backend.generate(GenerationRequest("A", prompts, 2, sampling, seeds(5, 2)))
    assert read[0] == 5 * 32
    for one, other in zip(itertools.chain(*shared), itertools.chain(*plain), strict=True):
        assert one.token_ids == other.token_ids
        assert near(one.logprobs, other.logprobs, 2e-5)


def test_rows_that_join_later_say_what_they_say_alone(
    make_backend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    joined: list[int] = []
    join = rows.RowBatch.join

    def count(self: Any, other: Any) -> None:
        joined.append(len(other.rows))
        join(self, other)

    monkeypatch.setattr(rows.RowBatch, "join", count)
    ends, sampling = [2, *range(100, 130)], Sampling(max_tokens=20, repetition_penalty=1.1)
    prompts = [[*range(p, p + 1 + p % 7)] for p in range(3, 30)]

    def said(**options: Any) -> Any:
        backend = make_backend(eos_ids=ends, **options)
        backend._decoding = dataclasses.replace(backend._decoding, loop="plain")  # a card has its own
        return backend.generate(GenerationRequest("B", prompts, 2, sampling, seeds(27, 2)))

    whole = said()
    assert not joined
    small = said(cache_tokens=220)
    assert len(joined) > 2
    assert sum(joined) > 20
    for one, other in zip(itertools.chain(*whole), itertools.chain(*small), strict=True):
        assert one.token_ids == other.token_ids
        assert near(one.logprobs, other.logprobs, 2e-5)
        assert one.stop == other.stop


def test_prompts_are_read_a_piece_at_a_time(make_backend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    ends, sampling = [2, *range(100, 130)], Sampling(max_tokens=12)
    prompts = [[*range(p, p + 1 + p % 7)] for p in range(3, 20)]
    polled: list[None] = []
    backend = make_backend(eos_ids=ends, poll=lambda: polled.append(None))
    whole = backend.generate(GenerationRequest("A", prompts, 2, sampling, seeds(17, 2)))
    once = len(polled)
    monkeypatch.setattr(rows, "READ_TOKENS", 16)
    pieces = backend.generate(GenerationRequest("A", prompts, 2, sampling, seeds(17, 2)))
    assert len(polled) - once > once + 3
    for one, other in zip(itertools.chain(*whole), itertools.chain(*pieces), strict=True):
        assert one.token_ids == other.token_ids
        assert near(one.logprobs, other.logprobs, 2e-5)


def test_a_sliding_window_waits_for_a_batch_of_its_own():
    model, sampling = sliding_window().eval(), Sampling(max_tokens=12)
    prompts = [[*range(p, p + 1 + p % 5)] for p in range(3, 15)]
    request = GenerationRequest("", prompts, 2, sampling, seeds(12, 2))
    said = [
        generate(model, request, Decoding([*range(60, 90)], torch.device("cpu"), cache_tokens))
        for cache_tokens in (10**6, 100)
    ]
    assert [[out.token_ids for out in group] for group in said[0]] == [[o.token_ids for o in g] for g in said[1]]


def test_what_is_said_follows_the_exact_probabilities(make_backend: Callable[..., Any]):
    backend = make_backend("fp32")
    prompt, n, temperature = PROMPTS[0], 4000, 0.5
    said = backend.generate(
        GenerationRequest("A", [prompt], n, Sampling(temperature=temperature, max_tokens=2), seeds(1, n))
    )[0]
    first = torch.bincount(torch.tensor([out.token_ids[0] for out in said]), minlength=260)
    with torch.inference_mode(), backend.adapters.speaking("A"):
        model, place = backend.adapters.model, backend.device
        exact = (model(torch.tensor([prompt], device=place)).logits[0, -1].double() / temperature).softmax(-1).cpu()
        assert agrees(first, exact)
        # The second token, after the first that was said most often.
        likely = int(first.argmax())
        longer = torch.tensor([[*prompt, likely]], device=place)
        after = (model(longer).logits[0, -1].double() / temperature).softmax(-1).cpu()
    seconds = [out.token_ids[1] for out in said if out.token_ids[0] == likely and len(out.token_ids) > 1]
    assert len(seconds) > 50
    assert agrees(torch.bincount(torch.tensor(seconds), minlength=260), after)
    assert not agrees(first, after)


def agrees(counts: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether counts pass a chi-square test against probabilities, rare tokens taken together."""
    wanted = exact * counts.sum()
    keep = wanted >= 5
    observed = torch.cat([counts[: len(exact)][keep], counts[: len(exact)][~keep].sum()[None]]).double()
    expected = torch.cat([wanted[keep], wanted[~keep].sum()[None]])
    return bool(chisquare(observed.numpy(), expected.numpy() * float(observed.sum() / expected.sum())).pvalue > 1e-3)


def test_a_stop_string_ends_a_completion_with_the_token_that_completes_it(make_backend: Callable[..., Any]):
    def decode(ids: Any) -> str:
        return "".join(chr(65 + i % 26) for i in ids)

    free = make_backend(eos_ids=[]).generate(GenerationRequest("A", PROMPTS, 4, Sampling(max_tokens=60), seeds(4, 4)))
    texts = [decode(out.token_ids) for group in free for out in group]
    stop = texts[5][20:22]
    backend = make_backend(eos_ids=[], decode=decode)
    said = backend.generate(
        GenerationRequest("A", PROMPTS, 4, Sampling(max_tokens=60, stop=(stop, "never said")), seeds(4, 4))
    )
    flat = [out for group in said for out in group]
    assert sum(out.stop == "string" for out in flat) >= 1
    for text, out in zip(texts, flat, strict=True):
        end = text.find(stop)
        assert decode(out.token_ids) == (text if end < 0 else text[: end + len(stop)])
        assert out.stop == ("length" if end < 0 else "string")
        assert len(out.logprobs) == len(out.token_ids)
    with pytest.raises(ValueError, match="decodes"):
        make_backend().generate(GenerationRequest("A", PROMPTS, 1, Sampling(stop=("x",)), seeds(4, 1)))


def test_only_the_asked_seat_speaks(make_backend: Callable[..., Any]):
    backend = make_backend()
    greedy = Sampling(temperature=0.0, max_tokens=16)

    def line(seat: str) -> list[int]:
        return backend.generate(GenerationRequest(seat, [PROMPTS[0]], 1, greedy, [[0]]))[0][0].token_ids

    backend.adapters.activate("A")
    first = {seat: line(seat) for seat in ("A", "B", BASE)}
    backend.adapters.activate("B")
    assert {seat: line(seat) for seat in (BASE, "B", "A")} == first
    assert len({tuple(ids) for ids in first.values()}) == 3


def test_it_ends_where_it_should(make_backend: Callable[..., Any]):
    sampling = Sampling(max_tokens=6)
    at_once = make_backend(eos_ids=list(range(259))).generate(GenerationRequest("A", PROMPTS, 2, sampling, seeds(4, 2)))
    assert all(out.stop == "eos" and len(out.token_ids) == len(out.logprobs) == 1 for g in at_once for out in g)
    never = make_backend(eos_ids=[]).generate(GenerationRequest("A", PROMPTS, 2, sampling, seeds(4, 2)))
    assert all(out.stop == "length" and len(out.token_ids) == 6 for g in never for out in g)
    assert make_backend().generate(GenerationRequest("A", [], 2, sampling, [])) == []
    with pytest.raises(ValueError, match="at least one token"):
        make_backend().generate(GenerationRequest("A", [[]], 1, sampling, [[0]]))


def test_asking_to_stop_stops_between_tokens(make_backend: Callable[..., Any]):
    polled = []

    def poll() -> None:
        polled.append(None)
        if len(polled) == 3:
            raise KeyboardInterrupt

    backend = make_backend(poll=poll)
    with pytest.raises(KeyboardInterrupt):
        backend.generate(GenerationRequest("A", PROMPTS, 2, Sampling(max_tokens=50), seeds(4, 2)))
    assert {n.split(".")[-2] for n, p in backend.adapters.model.named_parameters() if p.requires_grad} == {"A"}


def grouped_attention() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=120,
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=128,
        )
    )


def sliding_window() -> Any:
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=120,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        sliding_window=4,
        max_position_embeddings=128,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )
    return Gemma3ForCausalLM(config)


@pytest.mark.parametrize("make", [grouped_attention, sliding_window, AutoModelForCausalLM.from_pretrained])
def test_greedy_equals_transformers_generate(make: Callable[..., Any], tiny_path: Path):
    if make in (grouped_attention, sliding_window):
        model = make().eval()
        with torch.no_grad():
            model.get_output_embeddings().weight.normal_(0, 0.3)
    else:
        model = make(tiny_path, dtype=torch.float32).eval()
    # The first two begin alike and the third begins the fourth, so that they are read from shared prefixes.
    head = list(range(40, 60))
    prompts = [[*head, 5, 6, 7], [*head, 8], [12, 13, 14], [12, 13, 14, 15, 16], [15]]
    request = GenerationRequest("", prompts, 2, Sampling(temperature=0.0, max_tokens=20), seeds(5, 2))
    ours = generate(model, request, Decoding([3], torch.device("cpu")))
    for prompt, group in zip(prompts, ours, strict=True):
        with torch.no_grad():
            theirs = model.generate(
                input_ids=torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=20,
                do_sample=False,
                eos_token_id=3,
                pad_token_id=0,
            )[0, len(prompt) :].tolist()
        assert [out.token_ids for out in group] == [theirs, theirs]
        assert len(theirs) > 1


def test_tokens_are_told_as_they_are_drawn_and_a_row_ends_where_nobody_wants_more(make_backend: Callable[..., Any]):
    backend = make_backend(eos_ids=[2, *range(100, 120)])
    sampling = Sampling(max_tokens=20)
    whole = backend.generate(GenerationRequest("A", PROMPTS, 2, sampling, seeds(4, 2)))
    told: dict[tuple[int, int], list[int]] = {}

    def hear(p: int, k: int, number: int, token: int) -> bool:
        row = told.setdefault((p, k), [])
        if number == len(row) + 1:
            row.append(token)
        return (p, k) != (2, 1) or number < 3

    heard = backend.generate(GenerationRequest("A", PROMPTS, 2, sampling, seeds(4, 2), hear))
    for p, k in told:
        expected = whole[p][k].token_ids[:3] if (p, k) == (2, 1) else whole[p][k].token_ids
        assert told[p, k] == heard[p][k].token_ids == expected
    assert len(told) == 8
    assert len(whole[2][1].token_ids) > 3
    assert heard[2][1].stop == "length"
