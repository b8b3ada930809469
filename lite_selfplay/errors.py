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
    said_elsewhere = False  # whether another process of the same run reports this error, so this one stays silent


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


class ModelNotFoundError(RequestError):
    """The base model is neither here nor downloadable, or it cannot be used."""


class TaskError(RequestError):
    """A task cannot be loaded; for an invalid line the message gives file and line number."""


class RunFolderError(RequestError):
    """The run folder exists already, or cannot be resumed."""


class PreflightError(RequestError):
    """Small steps before the first one (the pre-flight) showed that the run cannot learn."""


class RewardError(LiteSelfPlayError):
    """A user's reward function did not return one finite number per completion."""


class LossError(LiteSelfPlayError):
    """A user's loss function raised an error, or returned no usable loss."""


class GameError(LiteSelfPlayError):
    """A game violates the contract between games and trainer (see `lite_selfplay.testing.check_game`)."""


class TrainingError(LiteSelfPlayError):
    """Training cannot continue; the message says why, and at which step."""


class SaveFailed(LiteSelfPlayError):
    """A checkpoint could not be written, for example because the disk is full. Earlier ones are intact."""


class ProcessLost(LiteSelfPlayError):
    """Another process of this run has ended, or cannot be reached."""


class RolloutsLost(LiteSelfPlayError):
    """None of the sampling servers (`rollouts.servers`) is left."""


class WorkerStartError(LiteSelfPlayError):
    """The processes that check answers cannot be started, or get no time on a busy machine."""


class VerificationFailed(LiteSelfPlayError):
    """An exported model answers differently from its seat, or could not be run."""


class Interrupted(LiteSelfPlayError):
    """The run was stopped by a signal, after saving."""

    exit_code = 130
