"""A model's own `generate` says what the loop of this library says, to the token and the log-probability."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from lite_selfplay.data import Sampling
from lite_selfplay.models.adapters import BASE
from lite_selfplay.models.generation.own_generate import generate_through
from lite_selfplay.models.generation.sampling import Decoding, GenerationRequest
from tests.near import near

PROMPTS = [[10, 11, 12, 13], [20], [30, 31, 32, 33, 34, 35, 36], [40, 41]]
SEEDS = [[1000 * p + k for k in range(3)] for p in range(4)]
ENDS = [2, *range(100, 130)]


def through(backend: Any, sampling: Sampling, seat: str = "A", seeds: Any = SEEDS, **options: Any) -> Any:
    backend.adapters.model.get_base_model().generation_config = GenerationConfig()
    request = GenerationRequest(seat, PROMPTS, len(seeds[0]), sampling, seeds)
    decoding = Decoding(ENDS, backend.device, **options)
    with backend.adapters.speaking(seat), torch.no_grad():
        return generate_through(backend.adapters.model.generate, request, decoding)


def words(said: Any) -> list[list[list[int]]]:
    return [[out.token_ids for out in group] for group in said]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=20),
        Sampling(max_tokens=20, temperature=0.7, top_p=0.9),
        Sampling(max_tokens=12, temperature=1.3, top_k=20, min_p=0.01),
        Sampling(max_tokens=12, repetition_penalty=1.5),
        Sampling(max_tokens=12, temperature=0.0),
    ],
    ids=["plain", "nucleus", "top-k and min-p", "penalty", "greedy"],
)
def test_the_same_tokens_log_probabilities_and_ends(make_backend: Callable[..., Any], sampling: Sampling):
    backend = make_backend(eos_ids=ENDS)
    expected = backend.generate(GenerationRequest("A", PROMPTS, 3, sampling, SEEDS))
    said = through(backend, sampling)
    assert words(said) == words(expected)
    for one, other in zip(chain(*said), chain(*expected), strict=True):
        assert near(one.logprobs, other.logprobs, 2e-5)
        assert one.stop == other.stop
    assert len({out.stop for group in said for out in group}) == 2 or sampling.temperature == 0.0


def test_rows_differ_by_seed_and_seats_by_adapter(make_backend: Callable[..., Any]):
    backend, sampling = make_backend(eos_ids=ENDS), Sampling(max_tokens=12)
    said = words(through(backend, sampling))
    assert len({tuple(row) for row in said[0]}) == 3
    assert words(through(backend, sampling, seeds=[[s + 1 for s in row] for row in SEEDS])) != said
    for seat in ("B", BASE):
        assert words(through(backend, sampling, seat)) == words(
            backend.generate(GenerationRequest(seat, PROMPTS, 3, sampling, SEEDS))
        )
        assert words(through(backend, sampling, seat)) != said


def test_small_calls_say_the_same_and_none_holds_more_than_it_may(
    make_backend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    backend, sampling = make_backend(eos_ids=ENDS), Sampling(max_tokens=12)
    whole = words(through(backend, sampling))
    sizes: list[int] = []
    own = backend.adapters.model.generate

    def count(**options: Any) -> Any:
        rows, width = options["input_ids"].shape
        sizes.append(rows * (width + 12))
        return own(**options)

    monkeypatch.setattr(backend.adapters.model, "generate", count)
    assert words(through(backend, sampling, cache_tokens=60)) == whole
    assert len(sizes) > 2
    assert max(sizes) <= 60


def test_a_stop_string_ends_a_row_with_it(make_backend: Callable[..., Any]):
    def decode(ids: Any) -> str:
        return " ".join(map(str, ids))

    backend = make_backend(eos_ids=ENDS, decode=decode)
    free = words(through(backend, Sampling(max_tokens=20)))[0][0]
    sampling = Sampling(max_tokens=20, stop=(f"{free[3]} ",))  # ends with the token after it
    said = through(backend, sampling, decode=decode)
    assert words(said) == words(backend.generate(GenerationRequest("A", PROMPTS, 3, sampling, SEEDS)))
    assert said[0][0].stop == "string"
    with pytest.raises(ValueError, match="stop strings need"):
        through(backend, sampling)


def test_polling_stops_it(make_backend: Callable[..., Any]):
    calls: list[int] = []

    def poll() -> None:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        through(make_backend(eos_ids=ENDS), Sampling(max_tokens=20), poll=poll)
    assert len(calls) == 5


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="at least one token"):
        generate_through(
            print, GenerationRequest("A", [[]], 1, Sampling(), [[0]]), Decoding([2], torch.device("cpu"))
        )


def test_tokens_are_told_and_a_call_ends_once_nobody_wants_more(make_backend: Callable[..., Any]):
    backend, sampling = make_backend(eos_ids=ENDS), Sampling(max_tokens=12)
    expected = words(through(backend, sampling))
    told: dict[tuple[int, int], list[int]] = {}

    def hear(p: int, k: int, number: int, token: int) -> bool:
        row = told.setdefault((p, k), [])
        if number == len(row) + 1:
            row.append(token)
        return number < 4

    request = GenerationRequest("A", PROMPTS, 3, sampling, SEEDS, hear)
    calls = 0

    def generate(**options: Any) -> Any:
        nonlocal calls
        calls += 1
        out = backend.adapters.model.generate(**options)
        assert out.shape[1] - options["input_ids"].shape[1] == 4
        return out

    with backend.adapters.speaking("A"), torch.no_grad():
        said = generate_through(generate, request, Decoding(ENDS, backend.device))
    assert calls == 1
    assert words(said) == [[row[:4] for row in group] for group in expected]
    assert {place: said[place[0]][place[1]].token_ids for place in told} == told
