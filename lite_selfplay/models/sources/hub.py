"""Base models on the hub: from the local cache or the network, with a quick error if neither works.

huggingface_hub waits without limit for a hub that accepts a connection and stays silent, so a first request checks with
a deadline whether it answers and knows the model.
"""

import errno
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from lite_selfplay.errors import ModelNotFoundError
from lite_selfplay.models.sources import folders
from lite_selfplay.tasks.hub_data import deadline, hub_problem, within

# Config, tokenizer and safetensors at the top of the repository; `consolidated*` is a second copy of the weights.
_ALLOW = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
_IGNORE = ["*/*", "consolidated*"]
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)


def fetch(hub_id: str, *, with_code: bool, say: Callable[[str], None]) -> Path:
    """The snapshot folder of `hub_id` (`owner/name`); its name is the revision, 40 hexadecimal digits.

    `with_code` includes the Python files at its top level. A complete snapshot in the hub's cache is used as it is,
    without the network: a base must not change between a run and its resume. Waits `HF_HUB_ETAG_TIMEOUT` seconds (4
    unless set) for the hub.

    Raises `ModelNotFoundError`: no network, unknown, gated, or without safetensors.
    """
    allowed = [*_ALLOW, *(["*.py"] if with_code else [])]
    if (cached := _cached(hub_id, allowed)) is not None:
        return cached
    if (why := hub_problem()) is not None:
        raise ModelNotFoundError(_not_here(hub_id, why))
    try:
        info = within(deadline(), lambda: huggingface_hub.HfApi().model_info(hub_id, timeout=deadline()))
        _require_safetensors(hub_id, [file.rfilename for file in info.siblings or []])
        say(f"fetching {hub_id} from the hub, once")
        # With the model card, which says whether it was merged; cached models may lack it.
        path = Path(
            huggingface_hub.snapshot_download(hub_id, allow_patterns=[*allowed, "README.md"], ignore_patterns=_IGNORE)
        )
    except ModelNotFoundError:
        raise
    except Exception as error:  # Several libraries raise from here, with no common base.
        raise ModelNotFoundError(_explain(hub_id, error)) from error
    folders.require_model(path)
    return path


def fetch_config(hub_id: str) -> Path:
    """The path of a model's `config.json`, from the hub's cache or the network, without weights. Raises
    `ModelNotFoundError` if it cannot be had."""
    cached = huggingface_hub.try_to_load_from_cache(hub_id, "config.json")
    if not isinstance(cached, str):
        if (why := hub_problem()) is not None:
            raise ModelNotFoundError(_not_here(hub_id, why))
        try:
            cached = within(deadline(), lambda: huggingface_hub.hf_hub_download(hub_id, "config.json"))
        except Exception as error:  # Several libraries raise from here, with no common base.
            raise ModelNotFoundError(_explain(hub_id, error)) from error
    return Path(cached)


def _cached(hub_id: str, allowed: list[str]) -> Path | None:
    """The newest complete snapshot in the hub's cache, if any."""
    try:
        path = huggingface_hub.snapshot_download(
            hub_id, allow_patterns=allowed, ignore_patterns=_IGNORE, local_files_only=True
        )
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise ModelNotFoundError(f"{hub_id!r} is neither a folder nor a valid hub id: {error}") from error
    # Other programs leave snapshots of single files, which count as whole without a listing.
    if folders.missing_parts(Path(path)) or ("*.py" in allowed and folders.lacks_code(Path(path))):
        return None
    return Path(path)


def _require_safetensors(hub_id: str, files: list[str]) -> None:
    if any(name.endswith(".safetensors") for name in files if "/" not in name):
        return
    ggufs = [name for name in files if name.endswith(".gguf")]
    hint = f" It holds {ggufs[0]}: download such a file and use its path." if ggufs else ""
    raise ModelNotFoundError(f"the hub's {hub_id} holds no safetensors weights at its top level.{hint}")


def _explain(hub_id: str, error: Exception) -> str:
    if isinstance(error, GatedRepoError):
        return (
            f"{hub_id} is gated: accept its licence at https://huggingface.co/{hub_id} and run `hf auth login` "
            f"(or set HF_TOKEN). {folders.NO_NETWORK}"
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"{hub_id} is neither a local folder nor a model that the hub knows; "
            "if it is private, run `hf auth login` (or set HF_TOKEN) first."
        )
    if isinstance(error, HfHubHTTPError) and error.response is not None:
        return _not_here(hub_id, f"the hub answered with HTTP {error.response.status_code}")
    if isinstance(error, OSError) and error.errno in _DISK:
        return f"{hub_id} could not be stored in the hub's cache ({constants.HF_HUB_CACHE}): {error}."
    cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) and error.__cause__ else error
    first_line = (str(cause).splitlines() or ["no reason given"])[0]
    return _not_here(hub_id, f"the hub could not be reached ({type(cause).__name__}: {first_line})")


def _not_here(hub_id: str, why: str) -> str:
    return (
        f"{hub_id} is neither a local folder nor, whole, in the hub's cache ({constants.HF_HUB_CACHE}), and {why}. "
        f"{folders.NO_NETWORK}"
    )
