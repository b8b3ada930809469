"""`push`: an exported seat in a repository on the Hugging Face hub, by huggingface_hub. Private unless asked otherwise.

A push is one commit, so that a hub holds all of it or nothing.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.errors import ConfigError, LiteSelfPlayError, PushFailed, RequestError
from lite_selfplay.runs.export.card import Form
from lite_selfplay.runs.export.exporting import export
from lite_selfplay.runs.folder import CARD
from lite_selfplay.training.progress import Progress, as_progress

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_LOG_IN = "Log in with `hf auth login`, or set HF_TOKEN"


@dataclass(frozen=True)
class Push:
    """What was pushed, or with `url` None would be: sizes in bytes by the names of the files, and the model card."""

    repository: str
    private: bool
    files: Mapping[str, int]
    card: str
    url: str | None
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "dry_run": self.url is None}


def push(
    run: Path | str,
    name: str,
    seat: str | None = None,
    *,
    to: Form = "peft",
    dtype: str | None = None,
    private: bool = True,
    update: bool = False,
    dry_run: bool = False,
    verify: bool = True,
    trust_remote_code: bool = False,
    progress: Progress | Callable[[str], None] | None = None,
) -> Push:
    """Export a seat (see `export`) and push it to the hub as the repository `name`, `OWNER/NAME` or `NAME` of yours.

    Without a token nothing is sent, as with `dry_run`. `update` allows a repository that exists, which gets another
    commit. `HF_ENDPOINT` names another hub, as everywhere with huggingface_hub.

    Raises what `export` raises, ConfigError for a name that no repository can have, RequestError where the repository
    exists, and PushFailed where the hub refuses or fails; nothing is in the repository then.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    shown = as_progress(progress)
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConfigError(f"{name!r} is no name for a repository: {str(error).splitlines()[0]}") from None
    token = get_token()
    sends = token is not None and not dry_run
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)
    if sends:
        with _explained(name, api):
            name = _whole_name(api, name)
            if not update and api.repo_exists(name):
                raise RequestError(
                    f"{name} exists on {api.endpoint} already: give another name, or --update for a new commit"
                )
    with tempfile.TemporaryDirectory(prefix="lite-selfplay-") as place:
        made = export(
            run,
            seat,
            to=to,
            out=Path(place, "export"),
            dtype=dtype,
            verify=verify,
            trust_remote_code=trust_remote_code,
            portable=True,
            progress=_Without(shown, place),
        )
        files = {str(path.relative_to(made.path)): path.stat().st_size for path in made.files}
        card = (made.path / CARD).read_text(encoding="utf-8")
        if not sends:
            return Push(name, private, files, card, None, "" if token is not None else f"{_LOG_IN} to push")
        shown.say(f"pushing {len(files)} files, {sum(files.values()):,} bytes, to {name} on {api.endpoint}")
        url = _send(api, name, made.path, made.seat, private=private, update=update)
    return Push(name, private, files, card, url)


class _Without(Progress):
    """Progress of an export whose folder is nobody's business."""

    def __init__(self, shown: Progress, place: str):
        self._shown, self._place = shown, place

    def say(self, sentence: str) -> None:
        if self._place not in sentence:
            self._shown.say(sentence)

    def warn(self, sentence: str) -> None:
        self._shown.warn(sentence)

    def tick(self) -> None:
        self._shown.tick()


def _whole_name(api: "HfApi", name: str) -> str:
    return name if "/" in name else f"{api.whoami()['name']}/{name}"


def _send(api: "HfApi", name: str, folder: Path, seat: str, *, private: bool, update: bool) -> str:
    created = False
    try:
        with _explained(name, api):
            api.create_repo(name, private=private, exist_ok=update)
            created = not update
            found = api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"Seat {seat}, by lite-selfplay")
    except PushFailed as error:
        left = f". The repository {name} was made and is empty: the same push with --update fills it" if created else ""
        raise PushFailed(f"{error}{left}") from None
    return str(found.repo_url)


@contextlib.contextmanager
def _explained(name: str, api: "HfApi") -> Iterator[None]:
    """A context that asks a hub, without its progress bars; what goes wrong there raises PushFailed, in a sentence."""
    import httpx
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    except LiteSelfPlayError:
        raise
    except (httpx.HTTPError, OSError, RuntimeError, ValueError) as error:
        raise PushFailed(f"nothing was pushed to {name} on {api.endpoint}: {_reason(error)}") from error
    finally:
        if shown:
            enable_progress_bars()


def _reason(error: BaseException) -> str:
    """Why a hub took nothing; several libraries raise what lies behind it, some within another error."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    if any(isinstance(each, OfflineModeIsEnabled) for each in causes):
        return "HF_HUB_OFFLINE forbids asking it"
    answered = next((each for each in causes if isinstance(each, HfHubHTTPError) and each.response is not None), None)
    if answered is None:
        why = (str(causes[-1]).splitlines() or [""])[0] or type(causes[-1]).__name__
        return f"it could not be reached, or broke off ({why}): try again later"
    status = answered.response.status_code
    said = f"{status}: {answered.server_message}" if answered.server_message else str(status)
    reasons = {
        401: f"it does not know the token ({said}). {_LOG_IN} anew",
        403: f"the token may not write there ({said}): take one with the right to write, or a name of your own",
        409: f"there is a repository of that name ({said}): give another name, or --update",
    }
    return reasons.get(status, f"it failed ({said}): try again later" if status >= 500 else f"it answered {said}")
