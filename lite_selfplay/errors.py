"""The errors of this library: each says what was wrong, where, and what to do about it.

The command line turns them into one sentence on stderr and an exit code; `--debug` shows the traceback.
"""

import difflib
from collections.abc import Iterable


class LiteSelfPlayError(Exception):
    """Base of every error this library raises on purpose.

    `exit_code` is what the command line ends with: 2 where the request was wrong, 1 where the run failed.
    """

    exit_code = 1


class RequestError(LiteSelfPlayError):
    """The request cannot be carried out as it stands: nothing was started, nothing was lost."""

    exit_code = 2


class ConfigError(RequestError):
    """A key of the configuration is unknown, or its value is out of range."""


class UnknownNameError(RequestError):
    """A game, model, task or key that nobody registered; the message lists the near names."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = ""):
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        choice = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}."
        super().__init__(f"unknown {kind} {name!r}: {choice}{' ' + hint if hint else ''}")
        self.kind, self.name, self.near = kind, name, near


class ModelNotFoundError(RequestError):
    """A base model that is neither on this machine nor to be had over the network."""


class TaskError(RequestError):
    """A task that cannot be read; a malformed line is named by file and line number."""


class RunFolderError(RequestError):
    """A run folder that exists already, or that cannot be resumed."""


class RewardError(LiteSelfPlayError):
    """A user's own reward function returned something that is not one finite number per completion."""


class GameError(LiteSelfPlayError):
    """A game broke the contract between games and trainer (see `lite_selfplay.testing.check_game`)."""


class TrainingError(LiteSelfPlayError):
    """Training cannot go on: what was seen, and at which step."""


class SaveFailed(LiteSelfPlayError):
    """A checkpoint could not be written: the disk is full, say. Those before it are whole."""


class Interrupted(LiteSelfPlayError):
    """The run was stopped from outside and saved first."""

    exit_code = 130
