"""The errors of this library. Each message says what was wrong, where, and what to do about it.

The command line prints the message on stderr and ends with the error's exit code; `--debug` shows the traceback.
"""

import difflib
from collections.abc import Iterable


class LiteSelfPlayError(Exception):
    """Base class of every error that this library raises on purpose.

    `exit_code` is that of the command line: 2 if the request was invalid, 1 if the run failed.
    """

    exit_code = 1
    said_elsewhere = False
    """Whether another process of the same run tells the user, so that this one need not."""


class RequestError(LiteSelfPlayError):
    """The request is invalid. Nothing was started, and nothing was lost."""

    exit_code = 2


class ConfigError(RequestError):
    """A key of the configuration is unknown, or its value is out of range."""


class UnknownNameError(RequestError):
    """An unknown game, model, task or key; the message lists similar names."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = ""):
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        choice = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}."
        super().__init__(f"unknown {kind} {name!r}: {choice}{' ' + hint if hint else ''}")
        self.kind, self.name, self.near = kind, name, near


class ModelNotFoundError(RequestError):
    """A base model that is not on this machine and cannot be downloaded, or that cannot be used."""


class TaskError(RequestError):
    """A task that cannot be loaded; the message names file and line number of an invalid line."""


class RunFolderError(RequestError):
    """A run folder that exists already, or that cannot be resumed."""


class PreflightError(RequestError):
    """A run that cannot learn as it is configured, found out before its first step."""


class RewardError(LiteSelfPlayError):
    """A user's own reward function returned something that is not one finite number per completion."""


class LossError(LiteSelfPlayError):
    """A user's own loss raised an error, or returned something that nothing can be learned from."""


class GameError(LiteSelfPlayError):
    """A game violates the contract between games and trainer (see `lite_selfplay.testing.check_game`)."""


class TrainingError(LiteSelfPlayError):
    """Training cannot continue; the message says why, and at which step."""


class SaveFailed(LiteSelfPlayError):
    """A checkpoint could not be written, for example because the disk is full. Earlier ones are intact."""


class ProcessLost(LiteSelfPlayError):
    """Another process of this run has ended, or cannot be reached."""


class RolloutsLost(LiteSelfPlayError):
    """No server is left that samples completions (`rollouts.servers`)."""


class WorkerStartError(LiteSelfPlayError):
    """Processes that check answers cannot be started, so that no answer can be judged."""


class VerificationFailed(LiteSelfPlayError):
    """An exported model does not answer as the seat it was made from, or could not be asked."""


class Interrupted(LiteSelfPlayError):
    """The run was stopped by a signal, after saving."""

    exit_code = 130
