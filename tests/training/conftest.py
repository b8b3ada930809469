"""A trainer of one step over the random model, for tests of the update."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.config import SeatConfig

from .harness import FREE, Harness


@pytest.fixture
def harness(make_backend: Callable[..., Any], tiny_path: Path, tmp_path: Path) -> Callable[..., Harness]:
    """`harness(role, minibatches=2, ...)`: what a role has, and what the section `run` has."""

    def make(role: Mapping[str, Any] | None = None, *, backend: Any = None, **run: Any) -> Harness:
        made = backend or make_backend(seats={seat: SeatConfig(**FREE) for seat in ("A", "B")})
        return Harness(made, tiny_path, tmp_path, role or {}, **run)

    return make
