"""What `run.report_to` names hears of a run: the curves that the viewer shows, sample completions, and warnings.

A tracker listens as any `Progress` does. What models wrote reaches it as text that cannot drive anything: fenced, and
without control characters. A tracker that fails is told of once, and the run goes on without it.
"""

import contextlib
import io
import json
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lite_selfplay.config import RunConfig
from lite_selfplay.errors import ConfigError, RunFolderError, SaveFailed
from lite_selfplay.games import Game
from lite_selfplay.games.presentation import Transcript
from lite_selfplay.runs.folder import TENSORBOARD, TRACKER
from lite_selfplay.runs.report.analysis.curves import GAME, curves_of
from lite_selfplay.runs.report.transcripts import transcript_markdown
from lite_selfplay.runs.view.overview import LEARNING, group_of
from lite_selfplay.tasks.files import read_json, require_no_link, write_whole
from lite_selfplay.training.progress import Progress, printable

PROJECT = "lite-selfplay"
SAMPLE_EVERY = 10
"""Steps between two samples of completions; the first step has one."""
LONGEST = 4000
"""Characters of a completion, of a problem and of a prompt in such a sample."""


class Tracker(Progress, ABC):
    """A run as a tracker hears it, from `open` to `close`; `tell` is told where it fails, and it hears no more.

    Curves are named as in the viewer (`Learning/reward/drafter`). Steps are counted from 1; 0 is before training.
    """

    name = ""

    def __init__(self, config: RunConfig, game: type[Game], folder: Path, tell: Callable[[str], None]):
        self.config, self.folder = config, folder
        self._game, self._tell = game, tell
        self._is_open, self._done = False, 0
        self._seen: set[str] = set()

    def open(self, done: int) -> None:
        """Begin, or go on after `done` steps. Raises ConfigError where the tracker cannot be started."""
        identity = self._identity()
        try:
            self._start(identity, done)
        except Exception as error:  # whatever its library raises
            raise ConfigError(
                f"{self.name} cannot be started: {_short(error)} (--report-to none: no tracker)"
            ) from error
        self._is_open, self._done = True, done

    def close(self) -> None:
        """End, so that all is written."""
        self._try(self._finish)
        self._is_open = False

    def step(self, metrics: Mapping[str, Any], transcript: Transcript | None, line: str) -> None:
        step = self._done = metrics["step"] + 1
        self._try(self._log, curve_values(self._game, metrics, self._seen), step)
        if transcript is not None and (step - 1) % SAMPLE_EVERY == 0:
            self._try(self._show, transcript_markdown(self._game, transcript, LONGEST), step)

    def evaluated(self, name: str, result: Mapping[str, Any], line: str) -> None:
        self._try(self._log, evaluation_values(result), max(0, result.get("step", self._done)))

    def warn(self, sentence: str) -> None:
        self._try(self._alert, printable(sentence), self._done)

    def _try(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a library where there is one to hear; what it raises must not end the run."""
        if not self._is_open:
            return
        try:
            call(*arguments)
        except Exception as error:
            self._is_open = False
            self._tell(f"{self.name} failed, and hears no more of this run: {_short(error)}")

    def _identity(self) -> str:
        """What the tracker knows the run by: chosen once, and kept in the run's folder for a resume."""
        path = self.folder / TRACKER
        require_no_link(path)
        if path.exists():
            found = read_json(path).get("id")
            if not isinstance(found, str) or not found.isalnum():
                raise RunFolderError(f"{path} does not say what a tracker knows the run by")
            return found
        identity = uuid.uuid4().hex[:12]
        try:
            write_whole(path, json.dumps({"id": identity}) + "\n")
        except OSError as error:
            raise SaveFailed(f"cannot write {path}: {error.strerror or error}") from None
        return identity

    @property
    def _called(self) -> str:
        """The run's name: that of its folder."""
        return printable(self.folder.resolve().name)

    # What each library does in its own way

    @abstractmethod
    def _start(self, identity: str, done: int) -> None: ...

    @abstractmethod
    def _log(self, values: Mapping[str, float], step: int) -> None: ...

    @abstractmethod
    def _show(self, markdown: str, step: int) -> None: ...

    @abstractmethod
    def _alert(self, sentence: str, step: int) -> None: ...

    @abstractmethod
    def _finish(self) -> None: ...


class Tensorboard(Tracker):
    """Event files in RUN/tensorboard: scalars, and samples and warnings as text."""

    name = "tensorboard"

    def _start(self, identity: str, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What a run that is gone on with had written of later steps does not count.
        purged = {"purge_step": done + 1} if done else {}
        self._writer: Any = SummaryWriter(str(self.folder / TENSORBOARD), **purged)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def _show(self, markdown: str, step: int) -> None:
        self._writer.add_text("samples", markdown, step)

    def _alert(self, sentence: str, step: int) -> None:
        self._writer.add_text("warnings", f"```text\n{sentence.replace('```', chr(39) * 3)}\n```", step)

    def _finish(self) -> None:
        self._writer.close()


class Wandb(Tracker):
    """A run of Weights & Biases: metrics, samples as a table, warnings as alerts. `WANDB_MODE=offline` keeps it in
    RUN/wandb."""

    name = "wandb"

    def _start(self, identity: str, done: int) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=self._called,
            id=identity,
            dir=str(self.folder),
            config=self.config.values(),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )

    def _log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def _show(self, markdown: str, step: int) -> None:
        import wandb

        self._run.log({"samples": wandb.Table(columns=["step", "sample"], data=[[step, markdown]])}, step=step)

    def _alert(self, sentence: str, step: int) -> None:
        self._run.alert(title=f"{self._called}, step {step}", text=sentence)

    def _finish(self) -> None:
        self._run.finish()


class Trackio(Tracker):
    """A run of a local Trackio project (`trackio show`): metrics, samples as Markdown, warnings as alerts."""

    name = "trackio"

    def _start(self, identity: str, done: int) -> None:
        import trackio

        with _silenced():
            self._run: Any = trackio.init(
                project=os.environ.get("TRACKIO_PROJECT") or PROJECT,
                name=f"{self._called}-{identity}",
                config=self.config.values(),
                resume="allow",
                embed=False,
            )

    def _log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def _show(self, markdown: str, step: int) -> None:
        import trackio

        self._run.log({"samples": trackio.Markdown(markdown)}, step=step)

    def _alert(self, sentence: str, step: int) -> None:
        with _silenced():  # it prints alerts as well
            self._run.alert(title=sentence.split(":")[0][:120], text=sentence, step=step)

    def _finish(self) -> None:
        import trackio

        with _silenced():
            trackio.finish()


TRACKERS: Mapping[str, type[Tracker]] = {kind.name: kind for kind in (Tensorboard, Wandb, Trackio)}
"""The trackers by what `run.report_to` calls them."""


def curve_values(game: type[Game], metrics: Mapping[str, Any], seen: set[str]) -> dict[str, float]:
    """A step's point on each curve of the viewer, by group, name and line. `seen` collects the undeclared figures that
    were ever other than 0: before that they have no curve."""
    found = {}
    for curve in curves_of(game, [metrics], ()):
        line = curve.kind or ("" if curve.part == GAME else curve.part)
        tag = _tag(group_of(game, curve), curve.name, line)
        if curve.part != GAME or curve.declared or any(curve.values) or tag in seen:
            seen.add(tag)
            found[tag] = curve.values[-1]
    return found


def evaluation_values(result: Mapping[str, Any]) -> dict[str, float]:
    """pass@1 of every seat and direction, and the ends of its 95% interval."""
    name, found = f"pass@1, {result['n']} held-out problems", dict[str, float]()
    for seat, score in {**result["seats"], **result.get("directions", {})}.items():
        low, high = score["ci95"]
        values = {seat: score["pass_at_1"], f"{seat}, 95% from": low, f"{seat}, 95% to": high}
        found |= {_tag(LEARNING, name, line): value for line, value in values.items()}
    return found


def _tag(*parts: str) -> str:
    """A path of three levels at most: a slash inside a name would make another."""
    return "/".join(printable(part).replace("/", "|").replace("\n", " ") for part in parts if part)


def _short(error: BaseException) -> str:
    return printable(f"{type(error).__name__}: {error}")[:300].replace("\n", " ")


def _silenced() -> contextlib.AbstractContextManager[Any]:
    """Where a library prints, which would stand between the lines of a display."""
    return contextlib.redirect_stdout(io.StringIO())
