"""A 4-bit base on the card: seats speak, move, say what they are now, and learn."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from lite_selfplay.config import ModelSection
from lite_selfplay.data import BASE
from lite_selfplay.models import attention, fused, packed_on_gpu
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.sources import resolve
from tests.models.sampled import asked, completions, words

pytestmark = pytest.mark.gpu

PROMPTS = [[5, 6, 7, 8], [40, 41], [90, 91, 92, 93, 94, 95, 96]]

NOISE = {torch.bfloat16: 0.02, torch.float16: 0.005, torch.float32: 1e-4}
"""The mean difference of a log-probability of `tiny` that is computed twice, in batches of another shape.

A number in bf16 has 8 significant bits, so a logit of about 4 is off by up to 4 * 2**-9 = 0.008 however it is rounded,
and as much again where sums run in another order; fp16 has 3 bits more, float32 rounds at 1e-7.
"""
REAL = 5
"""How much more that may be of a real model, whose logits are about 20: SmolLM2-135M has 0.05 in bf16 on a CPU."""
WORST = 10
"""How much more than the mean the worst token may be off."""


@pytest.mark.parametrize("heads", [(14, 2, 64), (9, 3, 64), (16, 8, 128)], ids=str)
def test_flash_attention_runs_where_the_card_should_have_it(device: torch.device, heads: tuple[int, int, int]):
    """Of a token and of an update, forwards and backwards, against the formula and against torch's other kernels."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        pytest.skip("no card that should have it")
    for why_no_flash in (attention.why_no_flash, packed_on_gpu.why_no_flash):
        assert why_no_flash(*heads, torch.bfloat16, device) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_kernels_of_a_gated_product_compile_and_are_right(device: torch.device, dtype: torch.dtype):
    if device.type != "cuda":
        pytest.skip("no card that should have them")
    fused._kernels.cache_clear()
    assert fused._kernels(device, dtype) is not fused._PLAIN
    fused._kernels.cache_clear()


def generate(backend: Any, name: str) -> list[Any]:
    return completions(backend, asked(name, PROMPTS, 4, max_tokens=16))


def rows(said: Sequence[Any]) -> list[tuple[list[int], list[int]]]:
    prompts = [prompt for prompt in PROMPTS for _ in range(4)]
    return [(prompt, one.token_ids) for prompt, one in zip(prompts, said, strict=True)]


def differences(backend: Any, name: str, said: Sequence[Any]) -> torch.Tensor:
    """Of each token that was sampled: its log-probability then, and as the backend scores it now."""
    scores = backend.score(name, rows(said), temperature=1.0)
    then = torch.tensor([value for one in said for value in one.logprobs])
    return (then - torch.tensor([value for score in scores for value in score.logprobs])).abs()


def test_the_base_is_held_in_four_bits_and_the_adapters_in_float32(
    load: Callable[..., Any], model_name: str, device: torch.device
):
    backend = load(model_name)
    assert backend.device.type == device.type
    linear = list(backend.adapters._layers.values())
    assert linear
    for layer in linear:
        base = layer.get_base_layer()
        assert base.weight.quant_state.quant_type == "nf4"
        assert base.weight.nbytes == base.in_features * base.out_features / 2
    for seat in backend.adapters.seats:
        for parameter in backend.adapters.parameters(seat).values():
            assert parameter.dtype == torch.float32
            assert parameter.device.type == device.type


def test_every_seat_speaks_for_itself_and_says_the_same_again(load: Callable[..., Any], model_name: str):
    backend = load(model_name)
    said = {name: words(generate(backend, name)) for name in ("A", "B", BASE)}
    assert said["A"] != said["B"]
    assert said[BASE] not in (said["A"], said["B"])
    assert words(generate(backend, "A")) == said["A"]
    assert all(1 <= len(ids) <= 16 for every in said.values() for ids in every)


def test_log_probabilities_of_samples_are_those_that_are_computed_again(load: Callable[..., Any], model_name: str):
    backend = load(model_name)
    for name in ("A", "B", BASE):
        found = differences(backend, name, generate(backend, name))
        assert found.mean() < noise(backend, model_name)
        assert found.max() < WORST * noise(backend, model_name)


def noise(backend: Any, model: str) -> float:
    return NOISE[backend.compute_dtype] * (1 if model == "tiny" else REAL)


def test_what_is_said_follows_the_weights(load: Callable[..., Any]):
    backend = load("tiny")
    before = generate(backend, "A")
    backend.adapters.load_state("A", {key: -4 * tensor for key, tensor in backend.adapters.state("A").items()})
    after = generate(backend, "A")
    assert words(after) != words(before)
    # What weights that are gone said is scored as something else; what the present ones said differs by rounding alone.
    assert differences(backend, "A", after).mean() < differences(backend, "A", before).mean() / 3
    backend.adapters.snapshot("A", "A@then")
    assert words(generate(backend, "A@then")) == words(after)


def test_both_seats_move_and_the_base_does_not(load: Callable[..., Any], model_name: str, worker: Any):
    backend = load(model_name)
    before = {seat: backend.adapters.state(seat) for seat in "AB"}
    base = words(generate(backend, BASE))
    section = ModelSection(name=model_name, backend=backend.name)
    worker.one_update(backend, Chat.load(resolve(model_name).path), worker.episode(259), section)
    for seat in "AB":
        after = backend.adapters.state(seat)
        moved = [(after[name] - before[seat][name]).abs().max().item() for name in after]
        # Adam's first step moves a weight by its learning rate, whatever the size of its gradient.
        assert max(moved) == pytest.approx(worker.SEATS[seat].lr, rel=0.01)
        assert sum(size > 0 for size in moved) > len(moved) / 2
    assert words(generate(backend, BASE)) == base
