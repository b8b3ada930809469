"""Saves a run: checkpoints, the seats, its model card, evaluations, and which checkpoint is the best.

Of several processes the first one saves; if it is lost, another one does.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from lite_selfplay.config import RunConfig
from lite_selfplay.errors import RunFolderError, SaveFailed, TrainingError
from lite_selfplay.runs.checkpoints import hash_of, kept_of, newest_whole, save_checkpoint, write_best
from lite_selfplay.runs.folder import ADAPTERS, CARD, CHECKPOINTS, CONFIG, RunFolder, writing
from lite_selfplay.runs.report.pages import added, model_card
from lite_selfplay.runs.resources import Resources
from lite_selfplay.tasks.files import read_json, write_whole, written_whole_folder
from lite_selfplay.training.atomic_update import find_nonfinite
from lite_selfplay.training.optimizer import optimizer_state
from lite_selfplay.training.ranks import Ranks

# Seconds to wait until the process that writes the run folder has saved; torchrun ends all after 30.
PATIENCE_S = 20.0
# Errors of process 0 after which another one could not save either.
_UNSAVED = ("SaveFailed", "RunFolderError")


class Saver:
    """Saves a run into its folder, if this process writes that. `clock` returns seconds."""

    def __init__(self, resources: Resources, clock: Callable[[], float]):
        self._resources, self._folder, self._adapters = resources, resources.folder, resources.loaded.adapters
        self._clock, self._last = clock, clock()
        self._total: dict[str, Any] = {}
        self._unwritten: dict[str, Mapping[str, Any]] = {}  # evaluations, by the name of their file

    def count(self, metrics: Mapping[str, Any]) -> None:
        """Add a step's line to the total for the model card, so that no save reads the lines again."""
        self._total = added(self._total, metrics)

    @cached_property
    def _measured(self) -> dict[str, dict[str, Any]]:
        """The evaluations made in training by their moment, read once."""
        return {
            moment: _brief(result) for moment, result in self._folder.evaluations(self._resources.progress.warn).items()
        }

    def is_due(self, done: int) -> bool:
        """Whether to save after `done` steps, by their number or by the time since the last save."""
        run = self._resources.config.run
        late = run.save_minutes > 0 and self._clock() - self._last >= 60 * run.save_minutes
        return late or done % run.save_every == 0

    def save(self, step: int, state: Mapping[str, Any], optimizer: Any) -> None:
        """Save the run before step number `step`. `optimizer` is None until there is one.

        Raises SaveFailed if the folder cannot be written, TrainingError if weights are not finite.
        """
        self._last = self._clock()
        if (found := find_nonfinite(self._adapters, optimizer)) is not None:
            raise TrainingError(f"{found} is not finite: not saved. {self.what_is_whole()}")

        config = self._resources.config

        def write() -> None:
            save_checkpoint(
                self._folder.path / CHECKPOINTS,
                step,
                adapters=self._adapters,
                optimizer=optimizer_state(optimizer, self._adapters) if optimizer is not None else {},
                state=state,
                identity={**self._resources.identity, "config_hash": hash_of(config), "config": kept_of(config)},
                keep=config.run.keep_checkpoints,
                best=best["step"] if (best := self._folder.best(self._measured.values())) else None,
            )
            with written_whole_folder(self._folder.path / ADAPTERS) as partial:
                for seat in self._adapters.seats:
                    self._adapters.save(seat, partial / seat)

        self._write(f"saving before step {step + 1}", write)
        self.write_card(step)

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """A context for saving in which a failure is only warned of, since the next save tries again."""
        try:
            yield
        except SaveFailed as error:
            self._resources.progress.warn(f"{error}. The run continues, and tries again at the next save")

    def change_config(self, config: RunConfig) -> None:
        """Replace the run's configuration and its file. Raises SaveFailed."""
        self._resources.plan = replace(self._resources.plan, config=config)
        self._write(f"writing {CONFIG}", lambda: self._folder.rewrite_config(config))

    def write_evaluation(self, name: str, result: Mapping[str, Any]) -> None:
        """Write an evaluation, and update `best.json`. If that fails, the next `write_card` tries again."""
        self._unwritten |= {name: result} if self._folder.ours else {}
        with self.going_on():
            self._write(f"writing the evaluation {name}", self._write_evaluations)

    def _write_evaluations(self) -> None:
        for name in list(self._unwritten):
            written = read_json(self._folder.write_evaluation(name, self._unwritten[name]))
            self._measured[written["moment"]] = _brief(written)
            del self._unwritten[name]
            if (best := self._folder.best(self._measured.values())) is not None:
                write_best(self._folder.path / CHECKPOINTS, best)

    def write_file(self, name: str, write: Callable[[Path], object]) -> None:
        """Let `write` write a file of the run folder. Raises SaveFailed."""
        self._write(f"writing {name}", lambda: write(self._folder.path / name))

    def write_card(self, step: int) -> None:
        """Write the evaluations that are not written yet, and the model card of a run after `step` steps. Raises
        SaveFailed."""
        self._write("writing evaluations", self._write_evaluations)

        def write(path: Path) -> None:
            card = model_card(
                self._resources.config,
                step,
                self._resources.plan.rewards,
                metrics=[self._total] if self._total else [],
                evaluations=self._measured,
                wrapped=bool(self._adapters.text_part),
            )
            write_whole(path, card)

        self.write_file(CARD, write)

    def _write(self, what: str, write: Callable[[], object]) -> None:
        """Call `write` if this process writes the folder. If it fails, SaveFailed says which checkpoint is intact."""
        if not self._folder.ours:
            return
        try:
            write()
        except (OSError, SafetensorError, SaveFailed, RunFolderError) as error:
            why = getattr(error, "strerror", None) or error
            raise SaveFailed(f"{what} failed: {why}. {self.what_is_whole()}") from None

    def what_is_whole(self) -> str:
        """Sentences about the newest intact checkpoint, and how to continue from it."""
        if (found := newest_whole(self._folder.path / CHECKPOINTS)) is None:
            return f"No checkpoint has been saved yet: remove {self._folder.path} and start the run again"
        return f"{found.path} is intact. {self.how_to_resume()}"

    def how_to_resume(self) -> str:
        return f"Continue with: {self._folder.resume_command(self._resources.config.rollouts.again)}"


def _brief(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation without its problems."""
    return {**evaluation, "per_problem": {}, "answers": {}}


def save_in_turn(ranks: Ranks, folder: RunFolder, done: int, save: Callable[[], None]) -> bool:
    """Save a run that ends after `done` steps: process 0 does, or another one if process 0 has ended before it could.

    The folder's lock decides who writes: process 0 holds it until it ends, and then one other at a time. Returns
    whether the run is saved, which it is not if process 0 could not write, or the lock cannot be acquired. Raises
    SaveFailed.
    """
    if ranks.main:
        save()
        return True
    last_words = ranks.last_words(0)
    if not (folder.path / CONFIG).is_file() or (last_words is not None and last_words["kind"] in _UNSAVED):
        return False
    try:
        with writing(folder.path, PATIENCE_S, insist=True):
            saved = newest_whole(folder.path / CHECKPOINTS)
            if saved is None or saved.step < done:
                folder.ours = True
                save()
    except RunFolderError:
        return False
    return True
