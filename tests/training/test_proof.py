"""A backend's gradients before the first update: those of an honest one pass, a detaching one is refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay.errors import TrainingError
from lite_selfplay.models.backends.transformers import TransformersBackend
from lite_selfplay.training import atomic_update

from .harness import Harness, completion, episode


class Other(TransformersBackend):
    """Another backend by its name; `spoil` is what it makes of log-probabilities."""

    name = "other"
    spoil: Any = staticmethod(lambda logprobs: logprobs)

    def token_logprobs(self, *arguments: Any, **options: Any) -> Any:
        logprobs, entropies = super().token_logprobs(*arguments, **options)
        return self.spoil(logprobs), entropies


@pytest.fixture
def harness(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Callable[..., Harness]:
    monkeypatch.setattr("lite_selfplay.models.backends.transformers.TransformersBackend", Other)
    make_backend = request.getfixturevalue("make_backend")  # which finds the other one

    def make(role: dict[str, Any] | None = None, **options: Any) -> Harness:
        return Harness(make_backend(**options), tiny_path, tmp_path, role or {})

    return make


def detached(logprobs: torch.Tensor) -> torch.Tensor:
    return logprobs.detach().requires_grad_()


def half_detached(logprobs: torch.Tensor) -> torch.Tensor:
    half = len(logprobs) // 2
    return torch.cat([logprobs[:half].detach(), logprobs[half:]])


@pytest.mark.parametrize(
    ("role", "precision"),
    [
        ({}, "bf16"),
        ({"loss": "dr_grpo", "beta": 0.3, "reference": "base"}, "fp32"),
        ({"loss": "dapo", "entropy": 0.2}, "fp16"),
        ({"loss": "sequence", "beta": 0.3, "reference": "base", "entropy": 0.1}, "fp32"),
        ({"ratio": "sequence", "beta": 0.3, "reference": "base", "kl": "advantage"}, "fp32"),
    ],
)
def test_an_honest_backend_passes(harness: Any, role: dict[str, Any], precision: str, monkeypatch: pytest.MonkeyPatch):
    found: list[float] = []
    cosine = atomic_update._cosine
    monkeypatch.setattr(atomic_update, "_cosine", lambda *sides: found.append(cosine(*sides)) or found[-1])
    made = harness(role, precision=precision).step(episode(), episode(replay=True))
    assert made.trainer.guard.proved
    assert len(found) == 1  # asked once, for two steps
    assert found[0] > (0.99999 if precision == "fp32" else 0.995)


def test_a_replays_ratio_is_the_same(harness: Any):
    assert harness({"clip_ratio": 0.01}).step(episode(replay=True)).trainer.guard.proved


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            detached,
            r"the gradient of seat [AB] is not that of plain torch: their cosine is 0.00, with .*lora_[AB].* off",
        ),
        (half_detached, "the gradient of seat [AB] is not that of plain torch"),
        (lambda logprobs: -logprobs, "their cosine is -"),
        (torch.detach, "the log-probabilities of the backend other carry no gradient"),
    ],
)
def test_one_that_loses_the_way_back_is_refused(
    harness: Any, spoil: Any, message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Other, "spoil", staticmethod(spoil))
    made = harness()
    before = {seat: made.backend.adapters.state(seat) for seat in made.backend.adapters.seats}
    with pytest.raises(TrainingError, match=message):
        made.step(episode())
    for seat, kept in before.items():
        now = made.backend.adapters.state(seat)
        assert all(torch.equal(kept[name], now[name]) for name in kept)


def test_float16_keeps_small_gradients_on_a_cpu(make_backend: Callable[..., Any], tiny_path: Path, tmp_path: Path):
    """A loss whose slopes are 1e-5: nothing of it is rounded to 0, and it points where float32 does."""
    from lite_selfplay.models.logprobs.batch import Batch
    from lite_selfplay.training.atomic_update import LossScale

    rows = [(one.prompt_ids, one.token_ids) for one in (completion("A", index) for index in range(6))]
    sides = []
    for precision in ("fp16", "fp32"):
        backend = make_backend(precision)
        backend.adapters.activate("A")
        scale = LossScale(precision == "fp16")
        with backend.adapters.cast_together(backend.compute_dtype):
            logprobs, _ = backend.token_logprobs(Batch.of(rows, backend.way()))
            scale.of((1e-5 * logprobs).sum(), logprobs).backward()
        gradients = [p.grad for p in backend.adapters.parameters("A").values()]
        scale.take_off(gradients)
        assert all(gradient.any() for gradient in gradients)
        sides.append(torch.cat([gradient.flatten() for gradient in gradients]))
    assert atomic_update._cosine(*sides) > 0.999
