"""The unusual code paths on a GPU have the same results as on a CPU."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay.models.logprobs.batch import Batch, Way
from tests.made import as_sampled
from tests.models.sampled import ENDS, asked, completions, letters, own_generate, words
from tests.near import near
from tests.pretend_gpu import counts, pretend

PROMPTS = [[10, 11, 12, 13], [10, 11, 12], [30, 31, 32, 33, 34, 35, 36], [40, 41]]
ROWS = [(prompt, [7 + k, 50, 60 + k][: 1 + k]) for prompt in PROMPTS for k in range(3)]
SAMPLINGS: list[dict[str, Any]] = [{}, {"repetition_penalty": 1.3, "top_p": 0.9, "stop": ("ab",)}]


def on_both(work: Callable[[], Any]) -> tuple[Any, Any]:
    """The results of some work on a GPU, and on a CPU."""
    with pretend.card():
        found = work()
    return found, work()


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["plain", "more"])
def test_the_loop_that_looks_at_every_token(make_backend: Callable[..., Any], sampling: dict[str, Any]):
    def said() -> Any:
        backend = make_backend(eos_ids=ENDS, cache_tokens=200, decode=letters)  # some rows have to wait
        found = completions(backend, asked("A", PROMPTS, 3, max_tokens=24, **sampling), loop="plain")
        return words(found), [out.stop for out in found]

    ours, theirs = on_both(said)
    assert ours == theirs
    assert len({len(ids) for ids in ours[0]}) > 3


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["plain", "more"])
def test_a_models_own_generate(make_backend: Callable[..., Any], rtx_4090: pretend.Card, sampling: dict[str, Any]):
    """As the Unsloth backend samples, but by transformers' loop, which waits twice at every token: for the end of all
    rows, and for the mask. Reading sampled tokens waits as well, and top-p once more."""
    backend = make_backend(eos_ids=ENDS, decode=letters)
    request = asked("A", PROMPTS, 3, max_tokens=24, **sampling)
    own, ours = own_generate(backend, request), completions(backend, request)
    assert words(own) == words(ours)
    assert [out.stop for out in own] == [out.stop for out in ours]
    found = []
    for tokens in (3, 7):
        with rtx_4090.watch() as seen:
            own_generate(backend, asked("A", PROMPTS, 3, max_tokens=tokens, **sampling), eos_ids=[2**30])
        found.append(seen)
    assert (found[1].syncs - found[0].syncs) / 4 <= (4 if sampling else 3), found[1].table()


READINGS: dict[str, tuple[Way, Mapping[str, float], bool]] = {
    "whole": (Way.WHOLE, {}, False),
    "logits": (Way.WHOLE, {"logit_scale": 2.0}, False),
    "trained head": (Way.PACKED, {"final_logit_softcapping": 5.0}, True),
}


@pytest.mark.parametrize(("model", "precision"), [("t4", "fp16"), ("4090", "fp32"), ("4090", "bf16")])
def test_prompts_without_padding_are_read_by_a_fused_kernel(tmp_path: Path, model: str, precision: str):
    """Without flash attention torch has none for shared key heads; its formula overflows in half precision."""
    with pretend.card(pretend.PROFILES[model]) as card:
        counts.deep_model(tmp_path, 1)
        backend = counts.load(tmp_path, precision)
        with card.watch() as seen:
            counts.sampled(card, backend, "A", 2, rows=1)
        assert seen.kernels["_scaled_dot_product_flash_attention_for_cpu"] >= 1
        assert seen.kernels["_softmax"] == 2, seen.kernels  # one for each draw of a token, and none in attention
        assert not {"softmax", "_safe_softmax"} & seen.kernels.keys(), seen.kernels


@pytest.mark.parametrize("name", READINGS)
def test_ways_to_read_rows(make_backend: Callable[..., Any], name: str):
    way, settings, trained = READINGS[name]

    def read() -> tuple[torch.Tensor, torch.Tensor]:
        backend = make_backend()
        base = backend.adapters.model.get_base_model()
        for key, value in settings.items():
            setattr(base.config, key, value)
        base.get_output_embeddings().weight.requires_grad_(trained)
        backend.adapters.activate("A")
        batch = Batch.of(ROWS, way)
        assert batch.shares
        logprobs, entropies = backend.token_logprobs(batch, 0.7, entropy_gradient=True)
        (logprobs.sum() + entropies.sum()).backward()
        gradients = [p.grad.flatten() for p in backend.adapters.parameters("A").values()]
        return logprobs.detach().cpu(), torch.cat(gradients).cpu()

    ours, theirs = on_both(read)
    assert near(ours[0], theirs[0], 2e-5)
    assert (ours[1] - theirs[1]).norm() < 1e-3 * theirs[1].norm()


@pytest.mark.parametrize(
    "role",
    [
        {"beta": 0.2, "reference": "base", "entropy": 0.05, "loss": "dapo"},
        {"beta": 0.4, "reference": "base", "kl": "advantage", "loss": "sequence"},
    ],
    ids=["a KL term and entropy", "a KL inside the advantage"],
)
def test_an_update_in_two_parts_of_rows_that_are_replayed_and_others(tmp_path: Path, role: dict[str, Any]):
    counts.deep_model(tmp_path, 1)

    def updated() -> tuple[torch.Tensor, list[Any]]:
        backend = counts.load(tmp_path, "fp32")
        learner = counts.trainer(backend, tmp_path, role, minibatches=2)
        before = torch.cat([x.flatten() for seat in "AB" for x in backend.adapters.state(seat).values()])
        played = as_sampled(counts.episode(backend), backend)
        fresh, stored = played.streams
        episode = dataclasses.replace(played, streams=[fresh, dataclasses.replace(stored, replay=True)])
        report = learner.update(0, episode, counts.ROLES)
        assert {seat: found["updates"] for seat, found in report.seats.items()} == {"A": 2, "B": 2}
        after = torch.cat([x.flatten() for seat in "AB" for x in backend.adapters.state(seat).values()])
        return after - before, [(s.rows, s.loss, s.kl, s.clipped) for s in report.streams]

    (ours, told), (theirs, right) = on_both(updated)
    assert (ours - theirs).norm() < 0.05 * theirs.norm()  # Adam makes whole steps of gradients that are all but 0
    for one, other in zip(told, right, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4)
