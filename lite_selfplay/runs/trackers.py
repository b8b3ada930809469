"""What `run.report_to` may name: something that hears of a run as any `Progress` does, from `open` to `close`."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from lite_selfplay.config import RunConfig
from lite_selfplay.games import Game
from lite_selfplay.training.progress import Progress


class Tracker(Progress, ABC):
    """A `Progress` that is begun after some steps, and ended."""

    @abstractmethod
    def open(self, done: int) -> None:
        """Begin, or go on after `done` steps. Raises ConfigError where the tracker cannot be started."""

    @abstractmethod
    def close(self) -> None:
        """End, so that all is written."""


# (the configuration, the game, the run's folder, what is told where it fails) -> the tracker
MakeTracker = Callable[[RunConfig, type[Game], Path, Callable[[str], None]], Tracker]

TRACKERS: dict[str, MakeTracker] = {}
"""The trackers by what `run.report_to` calls them; the extra `trackers` puts in its own."""
