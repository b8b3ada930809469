"""A backend's gradients before the first update: right ones pass, a detaching backend is refused; and the factor of
losses in float16, by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cosine_similarity

from lite_selfplay.errors import TrainingError
from lite_selfplay.models.backends.transformers import TransformersBackend
from lite_selfplay.models.logprobs.batch import Batch
from lite_selfplay.training import atomic_update
from lite_selfplay.training.atomic_update import BACK, GROWS_AFTER, LARGEST, LossScale

from .harness import Harness, completion, episode


class Other(TransformersBackend):
    """A backend of another name; `spoil` changes its log-probabilities."""

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
def test_a_correct_backend_passes(harness: Any, role: dict[str, Any], precision: str, monkeypatch: pytest.MonkeyPatch):
    found: list[torch.Tensor] = []
    monkeypatch.setattr(
        atomic_update,
        "cosine_similarity",
        lambda one, other, dim: found.append(cosine_similarity(one, other, dim)) or found[-1],
    )
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
            lambda logprobs: logprobs.detach().requires_grad_(),
            r"the gradient of seat [AB] is not .* their cosine is 0.00, and .* are off, such as .*lora_[AB]",
        ),
        (half_detached, "the gradient of seat [AB] is not that of plain torch"),
        (lambda logprobs: -logprobs, "their cosine is -"),
        (torch.detach, "the log-probabilities of the backend other carry no gradient"),
    ],
)
def test_a_backend_with_wrong_gradients_is_refused(harness: Any, monkeypatch: Any, spoil: Any, message: str):
    monkeypatch.setattr(Other, "spoil", staticmethod(spoil))
    run = harness()
    with pytest.raises(TrainingError, match=message):
        run.step(episode())
    assert not run.moved()


def test_float16_keeps_small_gradients_on_a_cpu(make_backend: Callable[..., Any]):
    """A loss with slopes of 1e-5: no gradient is rounded to 0, and the direction is that of float32."""
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
        scale.unscale(gradients)
        assert all(gradient.any() for gradient in gradients)
        sides.append(torch.cat([gradient.flatten() for gradient in gradients]))
    assert cosine_similarity(*sides, 0) > 0.999


# The factor of losses


def started(slope: float) -> LossScale:
    scale = LossScale(True)
    logprobs = torch.zeros(3, requires_grad=True)
    loss = (logprobs * torch.tensor([0.0, -slope, slope / 2])).sum()
    assert torch.equal(scale.of(loss, logprobs), loss * scale.factor)
    return scale


def test_it_starts_where_the_steepest_slope_is_about_one_and_gradients_are_divided_by_it():
    slopes = {1.0: 0, 0.4: 1, 1 / 160: 7, 2.0**-16: 16, 1e-9: LARGEST, 30.0: 0}
    assert {slope: started(slope).exponent for slope in slopes} == slopes
    scale, gradients = started(1 / 160), [torch.tensor([128.0, 3 * 128.0]), torch.tensor([[-1.0]])]
    assert scale.factor == 2.0**7
    scale.unscale(gradients)
    assert [x.flatten().tolist() for x in gradients] == [[1.0, 3.0], [-1 / 128]]


def test_a_loss_without_a_slope_decides_nothing():
    scale = started(0.0)
    assert (scale.exponent, scale.factor) == (None, 1.0)
    assert not scale.lower()
    scale.note_success()
    assert scale.state() == {"exponent": None, "updates": 0}
    unneeded, logprobs = LossScale(False), torch.zeros(2, requires_grad=True)
    loss = logprobs.sum()
    assert unneeded.of(loss, logprobs) is loss


def test_it_falls_to_one_and_grows_after_many_good_updates_in_a_row():
    scale = started(1 / 160)
    assert [(scale.lower(), scale.exponent) for _ in range(4)] == [(True, 4), (True, 1), (True, 0), (False, 0)]
    assert BACK == 3
    scale = started(2.0**-15)
    for number, exponent in ((GROWS_AFTER - 1, 15), (1, LARGEST), (GROWS_AFTER, LARGEST)):
        for _ in range(number):
            scale.note_success()
        assert scale.exponent == exponent
    scale.lower()  # an overflow starts the count again
    scale.note_success()
    assert scale.state() == {"exponent": LARGEST - BACK, "updates": 1}


def test_its_state_comes_back_and_what_is_none_is_refused():
    scale, other = started(1 / 160), LossScale(True)
    scale.note_success()
    other.restore(scale.state())
    assert (other.factor, other.state()) == (scale.factor, scale.state()) == (2.0**7, {"exponent": 7, "updates": 1})
    for exponent, updates in (("7", 0), (99, 0), (3, -1)):
        with pytest.raises(ValueError, match="loss scale"):
            other.restore({"exponent": exponent, "updates": updates})
    for state in (None, {}):
        with pytest.raises(ValueError, match="loss scale"):
            other.restore(state)
