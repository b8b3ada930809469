"""A run from its configuration to its folder: `train`, `cold_start`, `resume`, `load_run`."""

import base64
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from lite_selfplay.config import RunConfig
from lite_selfplay.errors import ConfigError
from lite_selfplay.evaluation.result import as_markdown, change, comparison
from lite_selfplay.games import Game
from lite_selfplay.runs.build import ProgressLike, fresh, resumed
from lite_selfplay.runs.evaluating import evaluate
from lite_selfplay.runs.folder import ADAPTERS, RunFolder
from lite_selfplay.runs.report.figures import game_of
from lite_selfplay.runs.report.pages import choose_transcripts, transcripts_markdown
from lite_selfplay.scan import extra
from lite_selfplay.training.ranks import joined
from lite_selfplay.verify.reward_functions import RewardFunction

if TYPE_CHECKING:
    import pandas as pd

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Page(str):
    """Markdown that a notebook shows as such."""

    def _repr_markdown_(self) -> str:
        return self


class Pictures(list[Path]):
    """Files of pictures that a notebook shows."""

    def _repr_html_(self) -> str:
        data = [base64.b64encode(path.read_bytes()).decode() for path in self]
        return "".join(f'<img src="data:image/png;base64,{picture}">' for picture in data)


def train(config: RunConfig, reward: RewardFunction | None = None, *, progress: ProgressLike = None) -> "Run":
    """Train a game's seats and write the run folder.

    `reward` takes the checker's place (see `lite_selfplay.verify.reward_functions`). `progress` shows
    how the run goes: a `Progress`, or a function of a line such as `print`.
    Raises RequestError where the request is wrong, before anything is written; LiteSelfPlayError where the run fails;
    Interrupted after saving, where it was stopped by a signal.
    """
    with joined() as ranks, fresh(ranks, config, reward, progress) as loop:
        loop.run()
    return Run(loop.folder)


def cold_start(config: RunConfig, reward: RewardFunction | None = None, *, progress: ProgressLike = None) -> "Run":
    """Teach a game's seats their output format and stop there; another run starts from the folder by its `run.init`.

    Raises what `train` raises.
    """
    config = RunConfig.of(config.chosen(), {"cold_start": {"enabled": True}})
    if config.run.init is not None:
        raise ConfigError("a cold start begins with fresh seats: --init does not go with it")
    with joined() as ranks, fresh(ranks, config, reward, progress) as loop:
        loop.cold_start_only()
    return Run(loop.folder)


def resume(
    path: Path | str,
    *,
    steps: int | None = None,
    reward: RewardFunction | str | None = None,
    rollouts: str | None = None,
    trust_remote_code: bool = False,
    unsafe_code: bool = False,
    progress: ProgressLike = None,
) -> "Run":
    """Go on with a run from its newest complete and undamaged checkpoint, up to `steps` in all if given.

    A warning names every newer one that is skipped, and why. A run made with `trust_remote_code` or `unsafe_code` needs
    it given again, one whose `reward` was given as an object needs that, and one that sampled on servers needs
    `rollouts`: their addresses, others, or `none`. `reward` may also be `FILE.py:FUNCTION`. Code that the folder names
    is run if this user has run it on this machine; what has changed since the run was made is warned of. Raises
    RunFolderError, with nothing changed, where there is nothing to resume, where base, game or task are not what they
    were, where a file of the folder is damaged, or where another process is writing it; ConfigError where the
    configuration is not one, or code is not trusted.
    """
    with (
        joined() as ranks,
        resumed(
            ranks,
            RunFolder.open(Path(path)),
            progress,
            steps=steps,
            reward=reward,
            rollouts=rollouts,
            trust_remote_code=trust_remote_code,
            unsafe_code=unsafe_code,
        ) as loop,
    ):
        loop.run()
    return Run(loop.folder)


def _of_its_folder(
    call: Callable[Concatenate[Path | str, _Parameters], _Result],
) -> "Callable[Concatenate[Run, _Parameters], _Result]":
    """A function of a run folder as a method of a run."""

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
    """Go on with it: `lite_selfplay.resume` of its folder, with the same keywords."""
    evaluate = _of_its_folder(evaluate)
    """Measure its seats: `lite_selfplay.evaluate` of its folder, with the same tasks and keywords."""

    def game(self) -> type[Game]:
        """The class of its game, which says how the run is shown: `Game` itself, with a warning, where it cannot be
        had."""
        game, warning = game_of(self._folder)
        if warning:
            warnings.warn(warning, stacklevel=2)
        return game

    @property
    def seats(self) -> dict[str, Path]:
        """The folder of each seat's adapter, which plain PEFT loads."""
        return {name: self.path / ADAPTERS / name for name in self.config.seats}

    def metrics(self) -> "pd.DataFrame":
        """`metrics.jsonl` as a table, a row a step, nested keys joined by dots."""
        import pandas as pd

        return pd.json_normalize(self._folder.metrics())

    def metrics_rows(self) -> list[dict[str, Any]]:
        """`metrics.jsonl` as it stands, an object a step."""
        return self._folder.metrics()

    def episodes(self) -> list[dict[str, Any]]:
        """Every completion of the run, as in `episodes.jsonl`."""
        return list(self._folder.episodes())

    def evaluations(self) -> dict[int, dict[str, Any]]:
        """The evaluations made in training by the number of steps before them, in order, as in `eval/*.json`: 0 is
        before training, -1 the untouched base."""
        return {found["step"]: found for found in self._folder.evaluations().values()}

    def later_evaluations(self) -> dict[str, dict[str, Any]]:
        """What `evaluate` and `lite-selfplay eval` found of the run, by the name of the file in `eval/`."""
        return self._folder.later_evaluations()

    def comparison(self) -> Page:
        """The evaluations made in training, side by side, and what changed between the last two, as Markdown."""
        if not (moments := self._folder.evaluations()):
            return Page("No evaluation was made in training.")
        return Page(f"{as_markdown(*comparison(moments))}\n\n{change(moments) or ''}".rstrip())

    def transcripts(self, count: int = 3, rule: str = "kinds") -> Page:
        """Completions that are read together, such as a draft and the challenge to it, as Markdown, chosen by a `rule`:
        `kinds` (the latest of each kind), `first` or `spread` (of evenly spaced steps)."""
        game = self.game()
        return Page(
            transcripts_markdown(game, "Transcripts", choose_transcripts(game, self.episodes(), count, rule), rule)
        )

    def plot(self) -> Pictures:
        """The run's charts, a picture for each group of them, written into its folder `figures`. Raises ConfigError
        without matplotlib."""
        return Pictures(extra("charts").save_figures(self.path))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def load_run(path: Path | str) -> Run:
    """A finished or stopped run, from its folder. Raises RunFolderError if it is not one."""
    return Run(RunFolder.open(Path(path)))
