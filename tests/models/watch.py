"""Helpers for tests of models: a seat's logits, trainable adapters, and recorded calls."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

IDS = torch.arange(10, 30)[None]


def said(model: Any) -> torch.Tensor:
    """The logits of one row."""
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(input_ids=IDS).logits
    return logits


def heard(adapters: Any, name: str) -> torch.Tensor:
    with adapters.inference(name):
        return said(adapters.model)


def move(adapters: Any, seat: str) -> None:
    """Add a constant to all weights of a seat."""
    with torch.no_grad():
        for parameter in adapters.parameters(seat).values():
            parameter.add_(0.05)


def trainable(adapters: Any) -> set[str]:
    """The adapters with trainable weights, by PEFT's names."""
    return {name.split(".")[-2] for name, p in adapters.model.named_parameters() if p.requires_grad}


def noted(patch: pytest.MonkeyPatch, owner: Any, name: str, what: Callable[..., Any], after: bool = False) -> list[Any]:
    """`what(*arguments)` for every later call of a function or method, taken before or after it."""
    found: list[Any] = []
    own = getattr(owner, name)

    def call(*given: Any, **options: Any) -> Any:
        if not after:
            found.append(what(*given, **options))
        out = own(*given, **options)
        if after:
            found.append(what(*given, **options))
        return out

    patch.setattr(owner, name, call)
    return found
