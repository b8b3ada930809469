"""The loop of a card, on a CPU: the same operations for every token give what the plain loop gives."""

import dataclasses
import itertools
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lite_selfplay.data import Sampling
from lite_selfplay.models.adapters import BASE
from lite_selfplay.models.generation import fixed, rows
from lite_selfplay.models.generation.places import rounded_up
from lite_selfplay.models.generation.sampling import Generation, GenerationRequest, filtered_logits
from tests.near import near

ENDS = [2, *range(100, 120)]
PROMPTS = [
    *([*range(p, p + 1 + p % 7)] for p in range(3, 20)),
    *([*range(60, 90), *end] for end in ([1, 5], [1, 5], [7])),
]


def asked(seat: str = "A", n: int = 2, length: int = 40, **sampling: Any) -> GenerationRequest:
    seeds = [[1000 * p + k for k in range(n)] for p in range(len(PROMPTS))]
    return GenerationRequest(seat, PROMPTS, n, Sampling(max_tokens=length, **sampling), seeds)


def by(backend: Any, loop: str, request: GenerationRequest) -> list[Generation]:
    backend._decoding = dataclasses.replace(backend._decoding, loop=loop)
    return list(itertools.chain(*backend.generate(request)))


def assert_alike(ours: list[Generation], theirs: list[Generation]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.token_ids == other.token_ids
        assert near(one.logprobs, other.logprobs)
        assert one.stop == other.stop


SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.8, "top_k": 50, "min_p": 0.01},
    {"repetition_penalty": 1.2},
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=[" ".join(sampling) or "plain" for sampling in SAMPLINGS])
@pytest.mark.parametrize("cache_tokens", [65536, 400], ids=["all at once", "rows wait"])
def test_the_tokens_are_those_of_the_plain_loop(
    make_backend: Callable[..., Any], cache_tokens: int, sampling: dict[str, Any]
):
    backend = make_backend(eos_ids=ENDS, cache_tokens=cache_tokens)
    request = asked(**sampling)
    plain = by(backend, "plain", request)
    assert len({len(out.token_ids) for out in plain}) > 5
    assert {out.stop for out in plain} == {"eos", "length"}
    assert_alike(by(backend, "fixed", request), plain)


@pytest.mark.parametrize("seat", ["B", BASE])
def test_every_seat_has_its_own_tokens(make_backend: Callable[..., Any], seat: str):
    backend = make_backend(eos_ids=ENDS)
    others = by(backend, "fixed", asked())
    found = by(backend, "fixed", asked(seat))
    assert_alike(found, by(backend, "plain", asked(seat)))
    assert [out.token_ids for out in found] != [out.token_ids for out in others]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 33])
def test_a_limit_anywhere_in_a_chunk(make_backend: Callable[..., Any], length: int):
    backend = make_backend(eos_ids=[2**20])
    found = by(backend, "fixed", asked(length=length))
    assert {len(out.token_ids) for out in found} == {length}
    assert_alike(found, by(backend, "plain", asked(length=length)))


def test_stop_strings_end_a_row_where_they_are_met(make_backend: Callable[..., Any]):
    def decode(ids: Any) -> str:
        return "".join("abcdefgh"[i % 8] for i in ids)

    backend = make_backend(eos_ids=[*range(100, 104)], decode=decode)
    request = asked(stop=("cab", "hh", "a long one that is never met"))
    plain = by(backend, "plain", request)
    assert {out.stop for out in plain} == {"string", "eos", "length"}
    assert max(len(out.token_ids) for out in plain if out.stop == "string") > fixed.LOOK_EVERY
    assert_alike(by(backend, "fixed", request), plain)


def test_rows_take_the_places_of_others_and_the_last_ones_move_together(
    make_backend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    seated: list[int] = []
    sizes: list[int] = []
    seat, run = fixed._Places.seat, fixed._Places.run

    def counted(self: Any, new: Any, places: Any) -> None:
        seated.append(len(new))
        seat(self, new, places)

    def watched(self: Any) -> None:
        sizes.append(len(self.rows))
        run(self)

    monkeypatch.setattr(fixed._Places, "seat", counted)
    monkeypatch.setattr(fixed._Places, "run", watched)
    backend = make_backend(eos_ids=ENDS, cache_tokens=1280)
    found = by(backend, "fixed", asked())
    assert sum(seated) == len(found)
    assert len(seated) > 3
    assert min(sizes) < max(sizes) == seated[0]


def test_prompts_are_read_a_piece_at_a_time(make_backend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    backend = make_backend(eos_ids=ENDS)
    whole = by(backend, "fixed", asked())
    monkeypatch.setattr(rows, "READ_TOKENS", 16)
    assert_alike(by(backend, "fixed", asked()), whole)


def test_a_longer_row_copies_nothing_that_was_there(make_backend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    """Growing is a wider view: of 600 tokens, over several sizes of it, the allocation stays the same."""
    seen: set[tuple[int, ...]] = set()
    widths: set[int] = set()
    step = fixed._Places.step

    def watched(self: Any) -> None:
        seen.add(tuple(store.data_ptr() for layer in self.cache.layers for store in layer.stores))
        widths.add(self.cache.layers[0].keys.shape[2])
        step(self)

    monkeypatch.setattr(fixed._Places, "step", watched)
    backend = make_backend(eos_ids=[2**20])
    request = GenerationRequest("A", [[5, 6, 7]], 2, Sampling(max_tokens=600), [[1, 2]])
    found = by(backend, "fixed", request)
    assert len(seen) == 1
    assert widths == {128, 256, 384, 512, 640}
    assert_alike(found, by(backend, "plain", request))


def test_a_model_whose_window_slides_goes_by_the_plain_loop(monkeypatch: pytest.MonkeyPatch):
    from lite_selfplay.models.generation.generate import generate
    from lite_selfplay.models.generation.sampling import Decoding
    from tests.models.generation.test_generate import sliding_window

    monkeypatch.setattr(fixed, "_Places", None)
    request = GenerationRequest("", [[5, 6, 7]], 2, Sampling(max_tokens=9), [[1, 2]])
    ((one, other),) = generate(sliding_window().eval(), request, Decoding([60], torch.device("cpu"), loop="fixed"))
    assert one.token_ids != other.token_ids


def test_sizes_are_few_and_never_much_too_large():
    sizes = sorted({rounded_up(count, 128) for count in range(1, 16001)})
    assert len(sizes) < 40
    assert all(rounded_up(count, 128) - count < max(128, count / 4) for count in range(1, 16001))
    assert [rounded_up(count) for count in range(1, 10)] == [1, 2, 3, 4, 5, 6, 7, 8, 10]
    assert rounded_up(64) == 64


def test_a_nucleus_found_without_waiting_is_the_same():
    logits = torch.randn(50, 3000, generator=torch.Generator().manual_seed(0)) * 3
    for sampling in (Sampling(max_tokens=1, top_p=0.9), Sampling(max_tokens=1, top_p=0.5, top_k=400)):
        waiting, not_waiting = (filtered_logits(logits, sampling, waits=waits) for waits in (True, False))
        assert torch.equal(waiting, not_waiting)
        assert 1 < (waiting > -torch.inf).sum(-1).float().mean() < 2900


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU through g++")
@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
def test_a_compiled_model_says_the_same(make_backend: Callable[..., Any]):
    from torch._dynamo.utils import counters

    backend = make_backend()
    request = GenerationRequest("A", [[5, 6, 7], [8, 9]], 2, Sampling(max_tokens=5), [[1, 2], [3, 4]])
    counters.clear()
    compiled = by(backend, "compiled", request)
    assert counters["frames"]["ok"] == counters["frames"]["total"] > 0
    assert not counters["graph_break"]
    assert_alike(compiled, by(backend, "fixed", request))
