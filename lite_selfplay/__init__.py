"""lite-selfplay: self-play reinforcement learning for language models on one GPU.

Each role of a game is played by a seat: a LoRA adapter over the one base model. The names below are the public API,
imported on first use, so that importing this package loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lite_selfplay.models.threads import spin_briefly

if TYPE_CHECKING:
    from lite_selfplay.config import RunConfig
    from lite_selfplay.errors import LiteSelfPlayError
    from lite_selfplay.extras.export.exporting import export
    from lite_selfplay.games import Game, register_game
    from lite_selfplay.models.backends import register_backend
    from lite_selfplay.runs.api import Run, cold_start, load_run, resume, train
    from lite_selfplay.runs.evaluating import evaluate
    from lite_selfplay.tasks import register_task
    from lite_selfplay.training.progress import Progress

__all__ = [
    "Game",
    "LiteSelfPlayError",
    "Progress",
    "Run",
    "RunConfig",
    "cold_start",
    "evaluate",
    "export",
    "load_run",
    "register_backend",
    "register_game",
    "register_task",
    "resume",
    "train",
]

spin_briefly()  # before anything imports torch

_HOME = {
    "Game": "lite_selfplay.games",
    "LiteSelfPlayError": "lite_selfplay.errors",
    "Run": "lite_selfplay.runs.api",
    "RunConfig": "lite_selfplay.config",
    "Progress": "lite_selfplay.training.progress",
    "cold_start": "lite_selfplay.runs.api",
    "evaluate": "lite_selfplay.runs.evaluating",
    "export": "lite_selfplay.extras.export.exporting",
    "load_run": "lite_selfplay.runs.api",
    "register_backend": "lite_selfplay.models.backends",
    "register_game": "lite_selfplay.games",
    "register_task": "lite_selfplay.tasks",
    "resume": "lite_selfplay.runs.api",
    "train": "lite_selfplay.runs.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
