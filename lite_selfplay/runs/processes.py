"""Several processes that play one run: what must be the same in all of them, and who saves it when one is lost."""

import platform
from collections.abc import Callable
from typing import TYPE_CHECKING

from lite_selfplay.config import ModelSection
from lite_selfplay.config.user_files import file_of
from lite_selfplay.errors import RequestError, RunFolderError
from lite_selfplay.models.backends import chosen
from lite_selfplay.models.packages import versions
from lite_selfplay.runs.folder import CHECKPOINTS, CONFIG, PACKAGES, RunFolder, writing
from lite_selfplay.tasks.files import sha256_of
from lite_selfplay.training.ranks import Ranks

if TYPE_CHECKING:
    from lite_selfplay.runs.planning import Plan
    from lite_selfplay.runs.resources import Resources

PATIENCE_S = 20.0
"""Seconds to wait for the process that writes the run folder to have saved; torchrun ends all after 30."""
_UNSAVED = ("SaveFailed", "RunFolderError")
"""What process 0 may end with where another one could not save either."""


def require_one_run(ranks: Ranks, ready: "Plan") -> None:
    """Raises RequestError, naming what differs, where another process was started on something else, and for a backend
    that several processes have not been run with."""
    if ranks.alone:
        return
    config = ready.config
    require_shareable(ranks, config.model)
    if config.rollouts.servers:
        raise RequestError(f"--rollouts is for one process, and there are {ranks.world}: leave it out, or torchrun")
    packages = {"python": platform.python_version(), **versions(PACKAGES)}
    own = {"game": config.game.name, "reward function": config.run.reward or "", "tasks": config.tasks.train or ""}
    own |= {f"{name}'s loss": role.loss for name, role in config.roles.items()}
    ranks.require_same(
        {
            "set of packages": "\n".join(f"{name} {version}" for name, version in packages.items()),
            "configuration": config.to_yaml(),
            **{f"{name}'s code": sha256_of(file) for name, spec in own.items() if (file := file_of(spec)) is not None},
        }
    )


def require_shareable(ranks: Ranks, section: ModelSection) -> None:
    """Raises RequestError for a backend that several processes have not been run with."""
    if ranks.world > 1 and (chosen(section) == "unsloth" or section.fast_inference):
        raise RequestError(
            f"{ranks.world} processes have not been tried with the Unsloth backend: use --backend transformers"
        )


def require_one_kind(ranks: Ranks, held: "Resources") -> None:
    """Raises RequestError where another process has another device, base or data."""
    if ranks.alone:
        return
    facts = held.facts()
    ranks.require_same(
        {
            "device": f"{facts['device']}, {held.loaded.backend.compute_dtype}",
            "base model": facts["base"],
            "set of problems": facts["data"],
        }
    )


def save_in_turn(ranks: Ranks, folder: RunFolder, done: int, save: Callable[[], None]) -> bool:
    """Save a run that ends after `done` steps: process 0 does, and another one where that has ended before it could.

    Whoever has the folder's lock writes it: process 0 keeps it to its end, however that comes, and of several others
    one has it at a time. Returns whether the run is saved: not where process 0 could not write the folder, or where the
    lock cannot be had. Raises SaveFailed.
    """
    from lite_selfplay.runs.checkpoints import find_checkpoints

    if ranks.main:
        save()
        return True
    said = ranks.last_words(0)
    if not (folder.path / CONFIG).is_file() or (said is not None and said["kind"] in _UNSAVED):
        return False
    try:
        with writing(folder.path, PATIENCE_S, insist=True):
            saved = [found.step for found in find_checkpoints(folder.path / CHECKPOINTS)]
            if max(saved, default=-1) < done:
                folder.ours = True
                save()
    except RunFolderError:
        return False
    return True
