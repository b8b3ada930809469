"""Comparing numbers that were added up in another order: rounding grows with the numbers, so the bound does."""

from collections.abc import Sequence

import torch
from torch import Tensor


def near(got: Tensor | Sequence[float], expected: Tensor | Sequence[float], share: float = 1e-5) -> bool:
    """Whether no number is further off than a share of the largest one expected, or of 1 where that is smaller.

    In float32 a number is rounded by a share of 6e-8, and sums of a few hundred differ by about 1e-6 of their largest
    term from one set of a processor's instructions to another.
    """
    ours, theirs = torch.as_tensor(got).double(), torch.as_tensor(expected).double()
    return torch.allclose(
        ours, theirs, rtol=0.0, atol=share * max(1.0, theirs.abs().max().item() if len(theirs) else 0)
    )
