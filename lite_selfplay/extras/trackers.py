"""Sends a run's curves (values by training step) and warnings to the experiment tracker that `run.report_to` names,
through accelerate's trackers. If a tracker fails, the run says so once and continues without it."""

import contextlib
import io
import json
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lite_selfplay.config import RunConfig
from lite_selfplay.errors import ConfigError, RunFolderError
from lite_selfplay.evaluation.result import scores_of
from lite_selfplay.games import Game
from lite_selfplay.runs.folder import TENSORBOARD, TRACKER, last_step
from lite_selfplay.runs.report.figures import LEARNING, curves_of
from lite_selfplay.runs.report.pages import fenced
from lite_selfplay.tasks.files import read_json, require_no_link, write_whole
from lite_selfplay.training.progress import Progress, printable


class AccelerateTracker(Progress):
    """Logs a run's curves and warnings to an experiment tracker, between `open` and `close`.

    - `kind`: the tracker, `tensorboard`, `wandb` or `trackio`
    - `config`: the run's configuration, which wandb and trackio store
    - `game`: the class of the run's game, which declares the game's own curves
    - `folder`: the run folder
    - `tell`: a function that is called with a sentence if the tracker fails, after which the run continues without it

    Curves are named as in the viewer (`Learning/reward/drafter`). Steps are counted from 1; values at step 0 are from
    before training. A resumed run continues in the same tracker run. If it repeats steps, TensorBoard replaces their
    values; other trackers keep the first values.
    """

    def __init__(self, kind: str, config: RunConfig, game: type[Game], folder: Path, tell: Callable[[str], None]):
        self._kind, self._config, self._game, self._folder, self._tell = kind, config, game, folder, tell
        last = last_step(folder)
        self._told = 0 if last is None or kind == "tensorboard" else last["step"]
        self._done, self._tracker = 0, None

    def open(self, done: int) -> None:
        """Start the tracker. `done` is the number of steps that a resumed run has done before, 0 for a new run. Raises
        ConfigError if the tracker's library cannot start it."""
        self._done = done
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # trackers print into the progress display
                tracker = self._made()
                tracker.start()
        except Exception as error:  # its library may raise anything
            raise ConfigError(
                f"{self._kind} cannot be started: {_short(error)} (--report-to none: no tracker)"
            ) from error
        self._tracker = tracker

    def _made(self) -> Any:
        from accelerate import PartialState, tracking

        PartialState()  # trackers ask it whether to write; normally the trainer has made it
        if self._kind == "tensorboard":
            return tracking.TensorBoardTracker(
                TENSORBOARD, self._folder, purge_step=self._done + 1 if self._done else None
            )
        identity, project = self._identity(), os.environ.get(f"{self._kind.upper()}_PROJECT") or "lite-selfplay"
        about: dict[str, Any] = {
            "name": f"{printable(self._folder.resolve().name)}-{identity}",
            "config": self._config.values(),
            "resume": "allow",
        }
        if self._kind == "trackio":
            return tracking.TrackioTracker(project, embed=False, **about)
        settings = {"console": "off", "silent": True}
        return tracking.WandBTracker(project, id=identity, dir=str(self._folder), settings=settings, **about)

    def _identity(self) -> str:
        """The run's id in the tracker. It is chosen at the first call and kept in a file of the run's folder, so that a
        resumed run has the same id, and a copied or moved one another: it must not write into the original's. Raises
        RunFolderError if that file contains no valid id."""
        path, here = self._folder / TRACKER, str(self._folder.resolve())
        require_no_link(path)
        found = read_json(path) if path.exists() else {"folder": ""}
        if found.get("folder", here) != here:
            found, self._told = {"id": uuid.uuid4().hex[:12], "folder": here}, 0
            write_whole(path, json.dumps(found) + "\n")
        identity = found.get("id")
        if not isinstance(identity, str) or not identity.isalnum():
            raise RunFolderError(f"{path} has no valid tracker id")
        return identity

    def step(self, metrics: Mapping[str, Any], line: str) -> None:
        self._done = metrics["step"]
        if self._done > self._told:
            curves = curves_of(self._game, [metrics])
            self._log({_tag(curve.group, curve.name, curve.line): curve.values[-1] for curve in curves}, self._done)

    def evaluated(self, name: str, result: Mapping[str, Any], line: str) -> None:
        chart = f"pass@1, {result['n']} held-out problems"
        values = {_tag(LEARNING, chart, seat): score["pass_at_1"] for seat, score in scores_of(result).items()}
        self._log(values, max(0, result.get("step", self._done)))

    def warn(self, sentence: str) -> None:
        self._log({"warnings": fenced(sentence)}, self._done)

    def close(self) -> None:
        """Finish the tracker, so that everything is written."""
        self._try(lambda tracker: tracker.finish())
        self._tracker = None

    def _log(self, values: Mapping[str, float | str], step: int) -> None:
        self._try(lambda tracker: tracker.log(dict(values), step=step))

    def _try(self, call: Callable[[Any], None]) -> None:
        """Call `call` with the tracker, unless it is not open or has failed before. If the call raises, the tracker
        counts as failed, the user is told so, and the run continues."""
        if self._tracker is None:
            return
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                call(self._tracker)
        except Exception as error:
            self._tracker = None
            self._tell(f"{self._kind} failed and gets no more of this run: {_short(error)}")


def _tag(*parts: str) -> str:
    """A metric's name in the tracker: `parts` joined by `/`. Empty parts are skipped; a `/` in a part becomes `|`."""
    return "/".join(printable(part).replace("/", "|").replace("\n", " ") for part in parts if part)


def _short(error: BaseException) -> str:
    return printable(f"{type(error).__name__}: {error}")[:300].replace("\n", " ")
