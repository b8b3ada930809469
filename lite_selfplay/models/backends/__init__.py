"""Backends: they load a base model, sample as a seat, compute log-probabilities, and name the class whose loss is
used."""

import contextlib
import io
import os
from typing import TYPE_CHECKING, Any

from lite_selfplay.errors import RequestError
from lite_selfplay.models.backends.availability import device_of, unsloth_problem
from lite_selfplay.models.packages import install, require, version_of
from lite_selfplay.scan import Registry, extra

if TYPE_CHECKING:
    from pathlib import Path

    from lite_selfplay.config import ModelSection
    from lite_selfplay.models.backends.backend import Backend, Rollouts

OTHER = "Use --backend transformers, which plays and trains the same on a CUDA GPU or a CPU"

BACKENDS: "Registry[type[Backend]]" = Registry(
    "backend",
    {
        "auto": "models.backends.transformers:TransformersBackend",
        "transformers": "models.backends.transformers:TransformersBackend",
        "unsloth": "models.backends.unsloth:UnslothBackend",
    },
    group="lite_selfplay.backends",
)


def register_backend(name: str, backend: "type[Backend]") -> None:
    """Register a backend under a name, for `--backend` and `model.backend`; `backends.base` says what it must offer.

    A package can do so by an entry point in the group `lite_selfplay.backends` instead. Raises RequestError for a taken
    name.
    """
    BACKENDS.add(name, backend)


def require_available(backend: str) -> None:
    """Raises UnknownNameError for an unknown backend, RequestError for one that cannot work here. Loads torch for
    `unsloth`."""
    BACKENDS.require(backend)
    if backend == "unsloth" and (problem := unsloth_problem()) is not None:
        raise RequestError(f"the Unsloth backend cannot work here: {problem}. {OTHER}")


def chosen(section: "ModelSection") -> str:
    """The name of the backend for a configuration: `auto` is transformers. Raises UnknownNameError for an unknown
    backend, RequestError if it cannot work here or with the other settings, and what `device_of` raises."""
    require_available(section.backend)
    device_of(section)
    name = "transformers" if section.backend == "auto" else section.backend
    if name == "unsloth" and section.device == "cpu":
        raise RequestError(f"the Unsloth backend needs a GPU, and --device cpu is given. {OTHER}")
    if name == "unsloth" and section.precision == "fp32":
        raise RequestError(f"the Unsloth backend works in 4 or 16 bits, not in fp32. {OTHER}")
    return name


def why_auto() -> str | None:
    """Why `auto` chooses transformers although Unsloth is installed, for a message; None if it is not."""
    if version_of("unsloth") is None:
        return None
    if (problem := unsloth_problem()) is not None:
        return f"Unsloth cannot work here: {problem}"
    return "its CUDA graphs sample three times as fast as Unsloth, measured on an H200; --backend unsloth works, too"


def import_first(section: "ModelSection") -> None:
    """Import what patches transformers, TRL and PEFT before any of them; to be called first in a run."""
    if chosen(section) == "unsloth":
        import_unsloth()


def import_unsloth() -> Any:
    """The package unsloth, imported quietly. Its compiled code goes into the cache folder, not into the working folder.

    Raises RequestError if it is installed and cannot be imported: its patches up to then stay, so the process must end.
    """
    from lite_selfplay.models.sources.cache import cache_dir

    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(cache_dir() / "unsloth"))
    # Otherwise it compiles every layer of both seats at first use, from torch 2.11 on.
    os.environ.setdefault("UNSLOTH_BLOCK_COMPILE_LEGACY", "0")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            import unsloth
    except Exception as error:
        raise RequestError(
            f"unsloth is installed and cannot be imported ({type(error).__name__}: {error}): reinstall it with "
            f"{install('unsloth')}. {OTHER}"
        ) from error
    return unsloth


def choose_backend(
    path: "Path", section: "ModelSection", *arguments: Any, rollouts: "Rollouts | None" = None, **options: Any
) -> "Backend":
    """The backend for a configuration, with the base loaded: the arguments are those of `Backend`.

    With `rollouts` it samples on servers. Raises what `chosen` and `import_first` do, and RequestError if an installed
    library lacks a name that is used, or a server does not serve the base.
    """
    import_first(section)
    require("torch", "transformers")
    if rollouts is not None:
        return extra("servers").ServedBackend(path, section, *arguments, rollouts=rollouts, **options)
    return BACKENDS.find(chosen(section))(path, section, *arguments, **options)
