"""A pretend GPU for a test: `card` has both profiles one after the other, `t4` and `rtx_4090` one of them.

Importing `pretend` prepares autograd's engine, which must happen before the first backward pass of a process: this file
is imported when tests are collected.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pretend_gpu import pretend


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Skip these tests if all tests already run on a pretend GPU."""
    return True if config.getoption("--pretend-gpu") else None


@pytest.fixture(params=sorted(pretend.PROFILES))
def card(request: pytest.FixtureRequest) -> Iterator[pretend.Card]:
    with pretend.card(pretend.PROFILES[request.param]) as found:
        yield found


@pytest.fixture
def t4() -> Iterator[pretend.Card]:
    with pretend.card(pretend.T4) as found:
        yield found


@pytest.fixture
def rtx_4090() -> Iterator[pretend.Card]:
    with pretend.card(pretend.RTX_4090) as found:
        yield found


LONG = [("t4", "fp32"), ("t4", "fp16"), ("4090", "bf16"), ("4090", "4bit")]
KINDS = [("t4", "4bit"), *(pytest.param(kind, marks=pytest.mark.long) for kind in LONG)]
"""Precisions of the tests: 4 bits are multiplied in fp16 on a T4, in bf16 on a 4090."""


@pytest.fixture(params=KINDS, ids="-".join)
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """A precision, on a GPU that supports it."""
    model, name = request.param
    with pretend.card(pretend.PROFILES[model]):
        yield name


@pytest.fixture
def agon(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The configuration of a small run of Agon, with changes: `agon("name", precision="fp16", steps=2)`."""

    def config(name: str = "run", precision: str = "bf16", **changes: Any) -> dict[str, Any]:
        model = {"name": "tiny", "precision": precision}
        sizes = {"group_size": 4, "problems_per_step": 2, "steps": 1, "max_completion_tokens": 8, "seed": 1}
        asked = {"game": "agon", "model": model, "backend": "transformers", "tasks": "letters", **sizes}
        return {**asked, "run_dir": tmp_path / name, **changes}

    return config
