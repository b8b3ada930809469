"""Requests for tests of sampling, and comparisons of their results."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from lite_selfplay.data import Sampling
from lite_selfplay.models.backends.unsloth import generate_through
from lite_selfplay.models.generation.sampling import Generation, GenerationRequest
from tests.near import near

ENDS = [2, *range(100, 120)]
"""So many end-of-sequence tokens that most rows meet one."""
PROMPTS = [[10, 11, 12, 13], [20], [30, 31, 32, 33, 34, 35, 36], [40, 41]]


def of_several_lengths(end: int) -> list[list[int]]:
    """Prompts of one to seven tokens, with first tokens from 3 on."""
    return [[*range(p, p + 1 + p % 7)] for p in range(3, end)]


def asked(
    seat: str = "A",
    prompts: Sequence[Sequence[int]] = PROMPTS,
    n: int = 2,
    hear: Callable[[int, int, int, int], bool] | None = None,
    **sampling: Any,
) -> GenerationRequest:
    """`n` completions of each prompt, each with a seed of its own."""
    seeds = [[1000 * p + k for k in range(n)] for p in range(len(prompts))]
    return GenerationRequest(seat, prompts, n, Sampling(**sampling), seeds, hear)


def completions(backend: Any, request: GenerationRequest, **decoding: Any) -> list[Generation]:
    """Completions in one list; `decoding` changes how the backend samples from now on."""
    if decoding:
        backend._decoding = dataclasses.replace(backend._decoding, **decoding)
    return flat(backend.generate(request))


def own_generate(backend: Any, request: GenerationRequest, generate: Any = None, **decoding: Any) -> list[Generation]:
    """The same by the model's own `generate` or another, as the Unsloth backend samples."""
    model = backend.adapters.model
    model.get_base_model().generation_config = GenerationConfig()
    changed = dataclasses.replace(backend._decoding, **decoding)
    with backend.adapters.inference(request.seat), torch.no_grad():
        return flat(generate_through(generate or model.generate, request, changed))


def flat(said: Iterable[Iterable[Generation]]) -> list[Generation]:
    return list(itertools.chain(*said))


def words(said: Iterable[Generation]) -> list[list[int]]:
    return [out.token_ids for out in said]


def letters(ids: Sequence[int]) -> str:
    """A decoder whose texts soon contain stop strings."""
    return "".join("abcdefgh"[i % 8] for i in ids)


def assert_alike(ours: Sequence[Generation], theirs: Sequence[Generation], share: float = 2e-5) -> None:
    """The same tokens and ends; log-probabilities may differ by a share of the largest."""
    assert words(ours) == words(theirs)
    assert [out.stop for out in ours] == [out.stop for out in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert near(one.logprobs, other.logprobs, share)
