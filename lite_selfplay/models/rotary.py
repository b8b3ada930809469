"""Rotary positions of a decoded token on a card: three kernels each for queries and keys, where a model's own are five.

Shapes: `R` rows, `H` heads, `D` head size.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

NAME = "apply_rotary_pos_emb"
"""What transformers' models call by this name in their own modules."""


def fuse(base: nn.Module, undo: Callable[..., object]) -> None:
    """Turn queries and keys in this way from now on, where a model's own function comes to the same numbers; `undo` is
    given what puts that one back, to be called in the end."""
    for name in {type(part).__module__ for part in base.modules()}:
        module = sys.modules[name]
        own = getattr(module, NAME, None)
        if own is not None and not isinstance(own, functools.partial) and _agrees(own):
            setattr(module, NAME, functools.partial(_turned, own))
            undo(setattr, module, NAME, own)


def _turned(own: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *given: Any, **more: Any) -> Any:
    """Queries and keys (R, H, 1, D) at the positions of cos and sin (R, 1, D); all else is left to the model's own."""
    alone = q.is_cuda and q.shape[2] == 1 and q.dtype == k.dtype == cos.dtype and cos.shape[-1] == q.shape[-1]
    if not alone or torch.is_grad_enabled() or given or more:
        return own(q, k, cos, sin, *given, **more)
    return _turn(q, cos[:, None], sin[:, None]), _turn(k, cos[:, None], sin[:, None])


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return out


def _agrees(own: Any) -> bool:
    drawn = torch.randn(4, 2, 3, 1, 8, generator=torch.Generator().manual_seed(0))
    q, k, cos, sin = drawn[0], drawn[1], drawn[2, :, 0], drawn[3, :, 0]
    try:
        right = own(q, k, cos, sin)
        mine = [_turn(x, cos[:, None], sin[:, None]) for x in (q, k)]
        return all(torch.allclose(*pair, atol=1e-6) for pair in zip(mine, right, strict=True))
    except (TypeError, ValueError, RuntimeError):  # a function of that name that is another
        return False
