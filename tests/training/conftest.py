"""A trainer of one step over the random model, for tests of the update."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from .harness import SEATS, Harness


@pytest.fixture
def harness(make_backend: Callable[..., Any], tiny_path: Path, tmp_path: Path) -> Callable[..., Harness]:
    """`harness(role, minibatches=2, ...)`: settings of all roles and of the section `run`."""

    def make(role: Mapping[str, Any] | None = None, *, backend: Any = None, **run: Any) -> Harness:
        return Harness(backend or make_backend(seats=SEATS), tiny_path, tmp_path, role or {}, **run)

    return make
