"""Handles a finished step: writes its lines, shows it, and warns."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lite_selfplay.data import NOT_JUDGED
from lite_selfplay.errors import SaveFailed, TrainingError
from lite_selfplay.runs.folder import last_step
from lite_selfplay.runs.report.diagnosis import ENDS, stalled, too_fast
from lite_selfplay.runs.report.step_rows import (
    episode_rows,
    only_finite,
    progress_line,
    right_for_all,
    stream_metrics,
    token_columns,
    warning_kind,
)
from lite_selfplay.runs.resources import Resources
from lite_selfplay.stats import is_above
from lite_selfplay.training.rollout import LiveTable
from lite_selfplay.training.updates import StepReport

SILENT_STEPS_WARNING = 3
# Steps between two warnings of one kind.
WARNING_EVERY = 10
# The last steps that a run looks back on while it trains; `why` looks at all.
SEEN = 400


class StepLog:
    """Counts, writes and shows a run's steps. `what_is_whole` says which checkpoint a resume would find.

    `skipped_steps` updated nothing; `nonfinite_steps` of them had a number that is not finite. `bad_steps` counts the
    last steps in a row with such a number, or with samples of other weights.
    """

    def __init__(self, resources: Resources, table: LiveTable, what_is_whole: Callable[[], str]):
        self._resources, self._game, self._folder = resources, resources.game, resources.folder
        self._progress, self._table, self._what_is_whole = resources.progress, table, what_is_whole
        self.skipped_steps = self.nonfinite_steps = self.bad_steps = 0
        self._prompts = self._too_long = 0  # since training began or was resumed
        self._steps_without_signal = self._warned_timeouts = 0
        self._warned_full = False
        self._unwritten: tuple[int, Mapping[str, Any], Sequence[Mapping[str, Any]], Mapping[str, Any]] | None = None
        self._warned: dict[str, int] = {}
        self._seen: list[Mapping[str, Any]] = []  # the streams of the first and of the last steps

    def write_what_is_missing(self) -> None:
        """Write the last step's lines if the main process ended before writing them. Raises SaveFailed."""
        if self._unwritten is None:
            return
        step, metrics, rows, tokens = self._unwritten
        last = last_step(self._folder.path)
        if last is None or last["step"] <= step:
            self._folder.cut(step)  # its completions may be written, and not its metrics
            self._write(step, metrics, rows, tokens)

    def write_step(self, report: StepReport, started: float) -> dict[str, Any]:
        """Write the lines of a step that `started` by `time.perf_counter`, and return that of `metrics.jsonl`. Raises
        SaveFailed if that fails."""
        trained, table = report.trained, self._table
        self._prompts, self._too_long = self._prompts + table.prompts, self._too_long + table.too_long
        trains = self._game.trains(report.episode.log)  # a game may skip a step
        self.skipped_steps += trains and not trained
        self.nonfinite_steps += report.nonfinite is not None
        skipped = report.nonfinite is not None or report.foreign is not None
        silent = bool(report.episode.streams) and trains and not trained and not skipped
        self._steps_without_signal = self._steps_without_signal + 1 if silent else 0
        metrics, rows = only_finite(self._metrics(report, started)), only_finite(episode_rows(report))
        self._write(report.step, metrics, rows, token_columns(report) if self._resources.config.run.keep_tokens else {})
        return metrics

    def judge(self, report: StepReport) -> None:
        """Warn of a step that was skipped for a number that is not finite, or for samples of other weights.

        Raises TrainingError after too many in a row, or if with 95% confidence most prompts are never asked.
        """
        if self._too_long and is_above(self._too_long / self._prompts, self._prompts, 0.5):
            raise TrainingError(f"{_never_asked(self._too_long, self._prompts)}. {self._what_is_whole()}")
        what = report.nonfinite or report.foreign
        self.bad_steps = 0 if what is None else self.bad_steps + 1
        if what is None:
            return
        most = self._resources.config.run.max_bad_steps
        self._progress.warn(
            f"step {report.step + 1} was skipped and updated nothing: {what} "
            f"({self.bad_steps} in a row, the run stops at {most})"
        )
        if self.bad_steps < most:
            return
        steps, whole = f"{most} step{'s' if most > 1 else ''} in a row", self._what_is_whole()
        if report.foreign is not None:
            raise TrainingError(
                f"{steps} could not be trained on (step {report.step + 1}: {report.foreign}). Completions of "
                "the base, of another seat or of an older adapter must not train a seat: check what samples them "
                "(model.backend, --rollouts and their --logprobs-mode; does --backend transformers agree without "
                f"them?). docs/sampler.md explains the check. Nothing was saved since: {whole}"
            )
        raise TrainingError(
            f"{steps} met a number that is not finite (step {report.step + 1}: {report.nonfinite}). Nothing was saved "
            f"since: {whole}, perhaps with a lower seats.*.lr in its config.yaml"
        )

    def _metrics(self, report: StepReport, started: float) -> dict[str, Any]:
        streams = {
            stream.role: stream_metrics(stream, update)
            for stream, update in zip(report.episode.streams, report.streams, strict=True)
        }
        table, reasons = self._table, self._resources.loaded.verifier.reasons
        return {
            "step": report.step + 1,
            "wall_s": {
                "total": round(time.perf_counter() - started, 4),
                "generate": round(table.seconds["generate"], 4),
                "verify": round(table.seconds["verify"], 4),
                "update": round(report.update_s, 4),
            },
            "tokens": {"generated": table.tokens_generated, "trained": sum(update.tokens for update in report.streams)},
            "prompts": {"asked": table.prompts - table.too_long, "too_long": table.too_long},
            "streams": streams,
            "seats": report.seats,
            "game": dict(report.episode.log),
            "warnings": [
                *([_never_asked(table.too_long, table.prompts)] if table.too_long else ()),
                *self._game.warnings(report.episode.log),
                *right_for_all([s for s in report.episode.streams if s.role not in self._game.accuracy]),
            ],
            "skipped_steps": self.skipped_steps,
            "nonfinite": self.nonfinite_steps,
            "nonfinite_what": report.nonfinite,
            "sampler_what": report.foreign,
            "verify_timeouts": reasons["timeout"],
            "not_judged": reasons[NOT_JUDGED],
            **({"over": True} if self._game.over() else {}),
        }

    def _write(
        self, step: int, metrics: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], tokens: Mapping[str, Any]
    ) -> None:
        if not self._folder.ours:
            self._unwritten = step, metrics, rows, tokens
            return
        limit = self._resources.config.run.episodes_limit_mb
        try:
            if tokens:
                self._folder.keep_tokens(step + 1, tokens)
            room = self._folder.append(metrics, rows, limit)
        except OSError as error:
            raise SaveFailed(
                f"cannot write step {step + 1} to {self._folder.path}: {error.strerror or error}. The run stops, "
                f"because this step's metrics would be lost. {self._what_is_whole()}"
            ) from None
        if not room and not self._warned_full:
            self._warned_full = True
            self._progress.warn(f"episodes.jsonl has reached its limit of {limit:g} MB: no more is written")

    def show(self, step: int, metrics: Mapping[str, Any], left: str) -> None:
        """Show a step's line with the time `left`, and its warnings, if this process writes the run folder."""
        if not self._folder.ours:
            return
        progress, game = self._progress, type(self._game)
        steps = None if game.open_ended else self._resources.config.run.steps
        progress.step(metrics, progress_line(game, metrics, steps, left, progress.verbose))
        progress.advance(step + 1)
        for sentence in metrics["warnings"]:
            kind = warning_kind(sentence)
            if step - self._warned.get(kind, -WARNING_EVERY) >= WARNING_EVERY:
                self._warned[kind] = step
                progress.warn(sentence)
        self._seen.append({"streams": metrics["streams"]})
        del self._seen[ENDS:-SEEN]
        for sentence in too_fast(self._seen) if (step + 1) % WARNING_EVERY == 0 else ():
            progress.warn(f"{sentence}; if it goes on, start again with a lower seats.*.lr")
        for found in stalled(self._seen):
            if found.shrank and step - self._warned.get("reasoning", -WARNING_EVERY) >= WARNING_EVERY:
                self._warned["reasoning"] = step
                remedy = found.remedy(self._game.options, "a lower seats.*.lr")
                progress.warn(f"{found.said}: reasoning may be lost. Start again with {remedy}")
        if self._steps_without_signal == SILENT_STEPS_WARNING:
            progress.warn(
                f"for {SILENT_STEPS_WARNING} steps in a row every group had equal rewards, so nothing was updated. "
                "What helps: problems that are neither too easy nor too hard, a larger "
                "--group-size, --cold-start if the answer format is missing"
            )
        if new := self._resources.loaded.verifier.reasons["timeout"] - self._warned_timeouts:
            self._warned_timeouts += new
            progress.warn(
                f"{new} answers took longer than {self._resources.config.run.verify_timeout_s:g} s to check and count "
                "as wrong"
            )


def _never_asked(too_long: int, prompts: int) -> str:
    return f"{too_long} of {prompts} prompts are too long and were never asked: a larger run.max_prompt_tokens helps"
