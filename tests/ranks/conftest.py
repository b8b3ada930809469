"""Runs of several real processes, forked from one that has imported everything: they meet as torchrun's would."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.runs_in_processes import Ended, Nursery, nursery

COMMAND = (
    *("train", "agon", "--model", "tiny", "--precision", "fp32", "--tasks", "letters", "--max-completion-tokens", 8),
    *("--problems-per-step", 2, "--group-size", 4, "--set", "seats.*.lr=0.001"),
)


@pytest.fixture(scope="session")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Starts the processes of a command: `crew.start("train", "agon", world=2, play=("nan", 1, 0))`."""
    with nursery(tmp_path_factory.mktemp("ranks")) as found:
        yield found


@pytest.fixture(scope="session")
def play(crew: Nursery) -> Callable[..., Ended]:
    """Start the processes of a command and wait until all have ended in one way: `play(2, "train", "agon", code=1)`."""

    def played(world: int, *argv: object, code: int | None = 0, **more: Any) -> Ended:
        ended = crew.run(*argv, world=world, **more)
        assert code is None or list(ended.codes) == [code] * world, ended.texts
        return ended

    return played
