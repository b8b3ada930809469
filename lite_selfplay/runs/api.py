"""A run from its configuration to its folder: `train`, `cold_start`, `resume`, `load_run`."""

import base64
import functools
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from lite_selfplay.config import RunConfig, nested
from lite_selfplay.errors import ConfigError
from lite_selfplay.evaluation.result import as_markdown, change, comparison
from lite_selfplay.games import Game
from lite_selfplay.runs.build import fresh, resumed
from lite_selfplay.runs.evaluating import evaluate
from lite_selfplay.runs.folder import ADAPTERS, RunFolder
from lite_selfplay.runs.report.figures import game_of
from lite_selfplay.runs.report.pages import choose_transcripts, transcripts_markdown
from lite_selfplay.scan import extra
from lite_selfplay.training.progress import Monitor, ProgressLike
from lite_selfplay.training.ranks import joined
from lite_selfplay.verify.reward_functions import RewardFunction

if TYPE_CHECKING:
    import pandas as pd

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Page(str):
    """Markdown that a notebook renders."""

    def _repr_markdown_(self) -> str:
        return self


class Pictures(list[Path]):
    """Image files that a notebook shows."""

    def _repr_html_(self) -> str:
        data = [base64.b64encode(path.read_bytes()).decode() for path in self]
        return "".join(f'<img src="data:image/png;base64,{picture}">' for picture in data)


def train(config: RunConfig, reward: RewardFunction | None = None, *, progress: ProgressLike = None) -> "Run":
    """Train a game's seats and write the run folder.

    `reward` replaces the checker (see `lite_selfplay.verify.reward_functions`). `progress` gets the output: a
    `Progress`, or a function of a line such as `print`. Raises RequestError, before anything is written, if the request
    is invalid; LiteSelfPlayError if the run fails; Interrupted, after saving, if a signal stopped it.
    """
    with joined() as ranks, fresh(Monitor(progress, ranks), config, reward) as loop:
        loop.run()
    return Run(loop.folder)


def cold_start(config: RunConfig, reward: RewardFunction | None = None, *, progress: ProgressLike = None) -> "Run":
    """Teach a game's seats their output format, and stop. Another run can start from the folder (`run.init`).

    Raises the errors of `train`.
    """
    config = RunConfig.of(config.chosen(), {"cold_start": {"enabled": True}})
    if config.run.init is not None:
        raise ConfigError("a cold start begins with fresh seats, so it takes no --init")
    with joined() as ranks, fresh(Monitor(progress, ranks), config, reward) as loop:
        loop.cold_start_only()
    return Run(loop.folder)


def resume(
    path: Path | str,
    *,
    steps: int | None = None,
    reward: RewardFunction | str | None = None,
    rollouts: str | Mapping[str, Any] | None = None,
    report_to: str | None = None,
    trust_remote_code: bool = False,
    unsafe_code: bool = False,
    progress: ProgressLike = None,
) -> "Run":
    """Continue a run from its newest complete checkpoint, up to `steps` in all if given.

    Newer checkpoints that are damaged are skipped with a warning. These must be given again: `trust_remote_code` and
    `unsafe_code` if the run was made with them, a `reward` that was given as an object (it may also be
    `FILE.py:FUNCTION`), and `rollouts` if the run sampled on servers: the same addresses, others, or `none` (or keys of
    that section). A folder that was copied or made elsewhere also needs `report_to`, if that names a tracker outside of
    it, and `rollouts` with its `folder`. Code that the folder names is run only if this user has run it on this
    machine; changes since the run was made are warned of.

    Raises RunFolderError, with nothing changed, if there is nothing to resume, if base, game or problems have changed,
    if a file is damaged, or if another process is writing the folder; ConfigError if the configuration is invalid or
    code is not trusted.
    """
    changes: dict[str, Any] = {} if rollouts is None else nested({"rollouts": rollouts})
    changes["run"] = {key: value for key, value in (("steps", steps), ("report_to", report_to)) if value is not None}
    allowed = {"trust_remote_code": trust_remote_code, "unsafe_code": unsafe_code}
    with joined() as ranks, resumed(Monitor(progress, ranks), Path(path), changes, reward, allowed) as loop:
        loop.run()
    return Run(loop.folder)


def _of_its_folder(
    call: Callable[Concatenate[Path | str, _Parameters], _Result],
) -> "Callable[Concatenate[Run, _Parameters], _Result]":
    """Turn a function of a run folder into a method of `Run`."""

    @functools.wraps(call)
    def method(run: "Run", *positional: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
        return call(run.path, *positional, **named)

    return method


class Run:
    """A run, read from its folder."""

    def __init__(self, folder: RunFolder):
        self.path = folder.path
        self.config = folder.config()
        self._folder = folder

    resume = _of_its_folder(resume)
    """Continue the run: `lite_selfplay.resume` of its folder, with the same keywords."""
    evaluate = _of_its_folder(evaluate)
    """Measure its seats: `lite_selfplay.evaluate` of its folder, with the same tasks and keywords."""

    def game(self) -> type[Game]:
        """The class of its game, which determines how the run is shown; `Game`, with a warning, if it is missing."""
        game, warning = game_of(self._folder)
        if warning:
            warnings.warn(warning, stacklevel=2)
        return game

    @property
    def seats(self) -> dict[str, Path]:
        """The folder of each seat's adapter; plain PEFT can load it."""
        return {name: self.path / ADAPTERS / name for name in self.config.seats}

    def metrics(self) -> "pd.DataFrame":
        """`metrics.jsonl` as a table with one row per step; nested keys are joined by dots."""
        import pandas as pd

        return pd.json_normalize(self.metrics_rows())

    def metrics_rows(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`, one object per step."""
        return list(self._folder.steps())

    def episodes(self) -> list[dict[str, Any]]:
        """The lines of `episodes.jsonl`, one object per completion."""
        return list(self._folder.episodes())

    def evaluations(self) -> dict[int, dict[str, Any]]:
        """The evaluations made in training, as in `eval/*.json`, by the number of steps before them: 0 is before
        training, -1 the untouched base."""
        return {found["step"]: found for found in self._folder.evaluations().values()}

    def later_evaluations(self) -> dict[str, dict[str, Any]]:
        """The results of `evaluate` and `lite-selfplay eval` for this run, by the name of the file in `eval/`."""
        return self._folder.later_evaluations()

    def comparison(self) -> Page:
        """The evaluations made in training side by side, and the change between the last two, as Markdown."""
        if not (moments := self._folder.evaluations()):
            return Page("No evaluation was made in training.")
        return Page(f"{as_markdown(*comparison(moments))}\n\n{change(moments) or ''}".rstrip())

    def transcripts(self, count: int = 3, rule: str = "kinds") -> Page:
        """Completions that belong together, such as a draft and its challenge, as Markdown. `rule` chooses them:
        `kinds` (the latest of each kind), `first` or `spread` (from evenly spaced steps)."""
        game = self.game()
        chosen = choose_transcripts(game, self.episodes(), count, rule)
        return Page(transcripts_markdown(game, "Transcripts", chosen, rule))

    def plot(self) -> Pictures:
        """Draw the run's charts, one picture per group, into its folder `figures`. Raises ConfigError without
        matplotlib."""
        return Pictures(extra("charts").save_figures(self.path))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def load_run(path: Path | str) -> Run:
    """A finished or stopped run, from its folder. Raises RunFolderError if that is not a run folder."""
    return Run(RunFolder.open(Path(path)))
