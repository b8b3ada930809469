"""Gradients on the card: against float32, against the other backend, with and without gradient checkpointing.

Every set of gradients is computed in a process of its own, over the same rows.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.gpu

Evidence = Callable[..., Mapping[str, Tensor]]

PRECISION = 0.99
"""Cosine of a seat's gradient in half precision with that in float32: each of its numbers is a sum of products that are
off by up to 2**-8 in bf16, mostly not all to one side."""
CHECKPOINTED = {"fp32": 1e-4, "auto": 0.05}
"""Relative difference of a seat's gradient with and without checkpointing. Without it, prompts that begin alike are
read once: the same sums in other batches, rounded at 1e-7, or at 2**-8 many times over."""
BACKENDS = {"tiny": 0.02}
"""Mean difference of log-probabilities of two backends over the same 4-bit weights: that of two batches, which
`test_seats` bounds alike."""
OF_A_REAL_MODEL = 0.1


def flat(found: Mapping[str, Tensor], seat: str) -> Tensor:
    """A seat's gradient as one vector, its parts in the order of their names."""
    mine = {name: tensor for name, tensor in found.items() if name.startswith(f"gradient/{seat}/")}
    whole = torch.cat([mine[name].flatten() for name in sorted(mine)]).double()
    assert whole.norm() > 1e-6  # a zero gradient would agree with anything
    return whole


def cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other / (one.norm() * other.norm()))


@pytest.fixture
def sections(backend_name: str, model_name: str) -> Callable[..., dict[str, Any]]:
    """The `model` section of this test's backend and model, with changes."""
    return lambda **changes: {"name": model_name, "backend": backend_name, "gradient_checkpointing": False, **changes}


def test_a_gradient_is_that_of_float32(evidence: Evidence, sections: Callable[..., dict[str, Any]]):
    found = evidence(**sections())
    reference = evidence(**sections(backend="transformers", compute_dtype="fp32"))
    assert found.keys() == reference.keys()
    for seat in "AB":
        assert cosine(flat(found, seat), flat(reference, seat)) > PRECISION


def test_backends_agree(
    evidence: Evidence, sections: Callable[..., dict[str, Any]], backend_name: str, model_name: str
):
    if backend_name == "transformers":
        pytest.skip("is what the others are compared with")
    found, plain = evidence(**sections()), evidence(**sections(backend="transformers"))
    for seat in "AB":
        assert cosine(flat(found, seat), flat(plain, seat)) > PRECISION
        assert (found[f"logprobs/{seat}"] - plain[f"logprobs/{seat}"]).abs().mean() < BACKENDS.get(
            model_name, OF_A_REAL_MODEL
        )


def test_checkpointing_changes_no_gradient(
    evidence: Evidence, sections: Callable[..., dict[str, Any]], backend_name: str
):
    kind = "fp32" if backend_name == "transformers" else "auto"  # what Unsloth computes in is its own choice
    plain, checkpointed = (evidence(**sections(gradient_checkpointing=on, compute_dtype=kind)) for on in (False, True))
    for seat in "AB":
        one, other = flat(plain, seat), flat(checkpointed, seat)
        assert (one - other).norm() / one.norm() < CHECKPOINTED[kind]


def test_seats_have_gradients_of_their_own(evidence: Evidence, sections: Callable[..., dict[str, Any]]):
    found = evidence(**sections())
    assert abs(cosine(flat(found, "A"), flat(found, "B"))) < 0.9
    assert not torch.equal(found["logprobs/A"], found["logprobs/B"])
