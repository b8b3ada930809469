"""What `run.report_to` may name: something that hears of a run as any `Progress` does, from `open` to `close`."""

from abc import ABC, abstractmethod

from lite_selfplay.training.progress import Progress


class Tracker(Progress, ABC):
    """A `Progress` that is begun after some steps, and ended."""

    @abstractmethod
    def open(self, done: int) -> None:
        """Begin, or go on after `done` steps. Raises ConfigError where the tracker cannot be started."""

    @abstractmethod
    def close(self) -> None:
        """End, so that all is written."""
