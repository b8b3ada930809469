"""Backends: load a base, let a seat speak, give the trainer class its parent. Everything tensor-shaped starts here."""

from typing import TYPE_CHECKING, Any

from lite_selfplay.errors import RequestError

if TYPE_CHECKING:
    from pathlib import Path

    from lite_selfplay.backends.base import Backend
    from lite_selfplay.config import ModelSection


def require_available(backend: str) -> None:
    """Raises RequestError, naming another backend, where the one asked for cannot work."""
    if backend == "unsloth":
        raise RequestError(
            "the Unsloth backend is not part of this version yet: use --backend transformers, which runs the same code "
            "on a CUDA card or a CPU"
        )


def choose_backend(path: "Path", section: "ModelSection", *arguments: Any, **options: Any) -> "Backend":
    """The backend that a configuration asks for, with the base loaded. Raises RequestError where it cannot work."""
    require_available(section.backend)
    from lite_selfplay.backends.transformers import TransformersBackend

    return TransformersBackend(path, section, *arguments, **options)
