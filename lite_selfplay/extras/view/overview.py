"""A run as the page first shows it: what it is, its curves, its evaluations, and which steps have episodes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lite_selfplay.errors import RunFolderError
from lite_selfplay.extras.view.cases import filters_of
from lite_selfplay.extras.view.index import EpisodeIndex
from lite_selfplay.runs.folder import EPISODES, EVALUATIONS, METRICS, RunFolder, as_written, state_of
from lite_selfplay.runs.report.figures import charts_of, game_of
from lite_selfplay.runs.report.steps import only_finite, warned


class ViewedRun:
    """A run folder that is looked at again and again; nothing but the index of its episodes is kept.

    Raises RunFolderError where it is none.
    """

    def __init__(self, path: Path):
        self.folder = RunFolder.open(path)
        with as_written(path):
            self.game, self.without_game = game_of(self.folder)
        self.index = EpisodeIndex(path / EPISODES)
        self._known: dict[str, Any] = {"stamp": None}

    @property
    def path(self) -> Path:
        return self.folder.path

    def stamp(self) -> str:
        """Changes whenever the run has written something that the page shows."""
        files = [self.path / METRICS, self.path / EPISODES, *sorted((self.path / EVALUATIONS).glob("*.json"))]
        sizes = [f"{file.name}:{file.stat().st_size}" for file in files if file.exists()]
        return f"{state_of(self.path).stage} {' '.join(sizes)}"

    def overview(self) -> dict[str, Any]:
        """Everything that the page shows before a step is opened, as JSON. Raises RunFolderError or ConfigError."""
        stamp = self.stamp()
        if self._known["stamp"] == stamp:
            return self._known
        with as_written(self.path):
            state, config, counts = state_of(self.path), self.folder.config(), self.index.steps()
            rows = self.folder.metrics()
            facts = {
                "name": self.path.resolve().name,
                "game": config.game.label,
                "model": config.model.name,
                "tasks": config.tasks.train,
                "stage": state.stage,
                "played": state.step,
                "asked_for": state.steps,
                "best": state.best,
                "stamp": stamp,
                "filters": filters_of(self.game),
                "roles": list(getattr(self.game, "roles", ())),
                "steps": [[step, count] for step, count in counts.items()],
                "charts": charts_of(self.game, self.folder, rows),
                "remarks": self._remarks(rows, len(counts)),
            }
            self._known = dict(only_finite(facts))
            return self._known

    def _remarks(self, rows: Sequence[Mapping[str, Any]], recorded: int) -> list[str]:
        """What a reader has to know about what is not shown, and what the game warned of."""
        found = [self.without_game] if self.without_game else []
        spoken = sum(any(stream.get("completions") for stream in row["streams"].values()) for row in rows)
        if recorded < spoken:
            found.append(f"episodes.jsonl holds the completions of {recorded} of {spoken} steps.")
        if self.index.damaged:
            found.append(f"{self.index.damaged} lines of episodes.jsonl are damaged and left out.")
        warnings = warned(rows).items()
        return found + [f"At {count} step{'s' if count > 1 else ''}: {text}" for text, count in warnings]


def require_readable(run: ViewedRun) -> None:
    """Raises RunFolderError or ConfigError where a run could not be shown, before a server is started."""
    run.overview()
    if (run.path / EPISODES).is_symlink():
        raise RunFolderError(f"{run.path / EPISODES} is a symbolic link, which is not followed")
