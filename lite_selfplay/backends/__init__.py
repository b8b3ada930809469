"""Backends: load a base, let a seat speak, give the trainer class its parent. Everything tensor-shaped starts here."""

from typing import TYPE_CHECKING, Any

from lite_selfplay.backends.availability import best_backend, unsloth_problem
from lite_selfplay.errors import RequestError

if TYPE_CHECKING:
    from pathlib import Path

    from lite_selfplay.backends.base import Backend
    from lite_selfplay.config import ModelSection

OTHER = "Use --backend transformers, which plays and trains the same on a CUDA card or a CPU"


def require_available(backend: str) -> None:
    """Raises RequestError, naming another backend, where the one asked for cannot work. Loads torch for `unsloth`."""
    if backend == "unsloth" and (problem := unsloth_problem()) is not None:
        raise RequestError(f"the Unsloth backend cannot work here: {problem}. {OTHER}")


def choose_backend(path: "Path", section: "ModelSection", *arguments: Any, **options: Any) -> "Backend":
    """The backend that a configuration asks for, with the base loaded; `auto` takes Unsloth where it can work.

    Raises RequestError where the one asked for cannot work, or is installed and cannot be imported.
    """
    require_available(section.backend)
    name = best_backend() if section.backend == "auto" else section.backend
    if name == "unsloth":
        from lite_selfplay.backends.unsloth import UnslothBackend

        return UnslothBackend(path, section, *arguments, **options)
    from lite_selfplay.backends.transformers import TransformersBackend

    return TransformersBackend(path, section, *arguments, **options)
