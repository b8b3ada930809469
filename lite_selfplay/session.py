"""A run in progress: the base in memory, the game at its table, the trainer, and what is written down of each step."""

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lite_selfplay.backends import choose_backend
from lite_selfplay.checkpoints import Checkpoint, load_checkpoint, read_state, save_checkpoint
from lite_selfplay.cold_start import cold_start
from lite_selfplay.data import Episode
from lite_selfplay.errors import Interrupted
from lite_selfplay.models.chat import Chat
from lite_selfplay.optimization import load_optimizer_state, optimizer_state
from lite_selfplay.records import ADAPTERS, CARD, CHECKPOINTS, RunFolder
from lite_selfplay.reports import episode_rows, flat, model_card, progress_line, stream_metrics
from lite_selfplay.rewards import RewardFunction
from lite_selfplay.rollout import LiveTable
from lite_selfplay.tasks import Source, load_task
from lite_selfplay.tasks.base import derived_seed
from lite_selfplay.trainer import StepReport, make_trainer_class, reference_name
from lite_selfplay.verify import Verifier

if TYPE_CHECKING:
    from lite_selfplay.models import ResolvedModel
    from lite_selfplay.planning import Plan


SILENT_STEPS_WARNING = 3


class Session:
    """Everything a run holds in memory. `run` plays it to its end, or from a checkpoint; `close` when done with it."""

    def __init__(
        self,
        ready: "Plan",
        model: "ResolvedModel",
        folder: RunFolder,
        *,
        reward: RewardFunction | None,
        say: Callable[[str], None],
        poll: Callable[[], None],
    ):
        self.config, self.game, self.folder, self.say = ready.config, ready.game, folder, say
        self._poll = poll
        run = ready.config.run
        self.identity = {"base": model.identity, "game": ready.config.game.name}
        self.chat = Chat.load(model.path, ready.config.model.thinking)
        say(f"loading {model.name} in {ready.config.model.precision}")
        self.backend = choose_backend(
            model.path,
            ready.config.model,
            ready.config.seats,
            seed=run.seed,
            eos_ids=self.chat.eos_ids,
            pad_id=self.chat.pad_id,
            base_name=model.name,
            cache_tokens=run.generation_tokens,
            poll=poll,
        )
        self.adapters = self.backend.adapters
        self.verifier = Verifier(deadline=run.verify_timeout_s)
        self.sources = {name: Source(ready.task.problems, seed=run.seed, name=name) for name in self.game.sources}
        self.table = LiveTable(
            self.backend,
            self.chat,
            self.verifier,
            self.sources,
            self.config,
            max_completion_tokens=ready.max_completion_tokens,
            reward=reward,
        )
        self.skipped_steps = 0
        self._cold_started = not ready.config.cold_start.enabled
        self._said_full = False
        self._silent_steps = 0
        self._said_timeouts = 0
        self._start_state: dict[str, Any] = {}
        self._trainer_files = tempfile.TemporaryDirectory(prefix="lite-selfplay-")
        self.trainer = make_trainer_class(self.backend.trainer_parent())(
            backend=self.backend,
            config=self.config,
            tokenizer=self.chat.tokenizer,
            play=self._play,
            on_step=self._on_step,
            load=self._load,
            poll=poll,
            output_dir=self._trainer_files.name,
        )

    def facts(self) -> dict[str, Any]:
        """What `environment.json` says of this run beside the versions."""
        device = self.backend.device
        cuda = device.type == "cuda"
        return {
            "backend": self.backend.name,
            "device": torch.cuda.get_device_name(device) if cuda else f"{torch.get_num_threads()} CPU threads",
            "seed": self.config.run.seed,
            "base": self.identity["base"],
        }

    def run(self, checkpoint: Checkpoint | None = None) -> None:
        """Play to the last step. Raises Interrupted after saving the state before the step that was cut short."""
        if checkpoint is not None and not read_state(checkpoint)["cold_started"]:
            checkpoint = None  # stopped during the cold start, which is short: it begins again
        self._first_step = checkpoint.step if checkpoint else 0
        try:
            if checkpoint is None:
                self._cold_start()
                self._keep_references()
            self._started = time.perf_counter()
            self.trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
            self._save(self.config.run.steps, self._state())
            self.say(f"done: {self.folder.path}")
            self.say(f"look at what was said: lite-selfplay report {self.folder.path}")
        except Interrupted as stop:
            step = self.trainer.state.global_step
            self._save(step, self._start_state or self._state())
            go_on = f"lite-selfplay train --resume {self.folder.path}"
            raise Interrupted(f"{stop}; saved before step {step + 1}. Go on with: {go_on}") from None

    def close(self) -> None:
        """End the checking processes and remove what the trainer wrote aside."""
        self.verifier.close()
        self._trainer_files.cleanup()

    def _cold_start(self) -> None:
        section, seed = self.config.cold_start, self.config.run.seed
        if not section.enabled:
            return
        # Problems of their own, where the task makes them: training starts on problems it has not seen.
        task = load_task(section.tasks or self.config.tasks.train or "", seed=derived_seed(seed, "cold start"))
        source = Source(task.problems, seed=seed, name="cold start")
        cold_start(self.backend, self.chat, self.game, source, section, seed=seed, say=self.say, poll=self._poll)
        self._cold_started = True
        self._save(0, self._state())

    def _keep_references(self) -> None:
        """Where a role has a KL term, keep its possible seats as they enter training."""
        if any(role.beta and role.reference == "seat" for role in self.config.roles.values()):
            for seat in self.adapters.seats:
                self.adapters.snapshot(seat, reference_name(seat))

    # A step

    def _play(self, step: int) -> tuple[Episode, Mapping[str, str]]:
        self._start_state = self._state()
        self._step_started = time.perf_counter()
        seats = self.game.seats(step)
        self.table.open(step, seats)
        return self.game.play(step, self.table), seats

    def _on_step(self, report: StepReport) -> None:
        moved = any(update.rows for update in report.streams)
        self.skipped_steps += not moved
        self._silent_steps = 0 if moved else self._silent_steps + 1
        metrics = self._metrics(report)
        run = self.config.run
        room = self.folder.append(metrics, episode_rows(report), run.episodes_limit_mb)
        if not room and not self._said_full:
            self._said_full = True
            self.say(f"episodes.jsonl has reached its limit of {run.episodes_limit_mb:g} MB: no more are written")
        self._tell(report, metrics)
        if run.report_to != "none":
            self.trainer.report(flat(metrics))
        done = report.step + 1
        if done % run.save_every == 0 and done < run.steps:
            self._save(done, self._state())

    def _metrics(self, report: StepReport) -> dict[str, Any]:
        streams = {
            stream.role: stream_metrics(stream, advantages, update)
            for stream, advantages, update in zip(
                report.episode.streams, report.advantages, report.streams, strict=True
            )
        }
        return {
            "step": report.step,
            "wall_s": {
                "total": round(time.perf_counter() - self._step_started, 4),
                "generate": round(self.table.seconds["generate"], 4),
                "verify": round(self.table.seconds["verify"], 4),
                "update": round(report.update_s, 4),
            },
            "tokens": {
                "generated": self.table.tokens_generated,
                "trained": sum(update.tokens for update in report.streams),
            },
            "streams": streams,
            "seats": report.seats,
            "game": dict(report.episode.log),
            "skipped_steps": self.skipped_steps,
            "verify_timeouts": self.verifier.counters.timeouts,
        }

    def _tell(self, report: StepReport, metrics: Mapping[str, Any]) -> None:
        self.say(progress_line(metrics, self.config.run.steps, self._time_left(report.step)))
        for sentence in self.game.warnings(report.episode.log):
            self.say(f"warning: {sentence}")
        if self._silent_steps == SILENT_STEPS_WARNING:
            self.say(
                f"warning: {SILENT_STEPS_WARNING} steps in a row gave every completion of each group the same reward, "
                "so nothing moved. What helps: problems that are neither too easy nor too hard, a larger --group-size, "
                "and --cold-start where the answer format is missing"
            )
        if self.verifier.counters.timeouts > self._said_timeouts:
            new = self.verifier.counters.timeouts - self._said_timeouts
            self._said_timeouts += new
            self.say(f"warning: {new} answers took longer than {self.config.run.verify_timeout_s:g} s to check: wrong")

    def _time_left(self, step: int) -> float:
        played = step + 1 - self._first_step
        return (time.perf_counter() - self._started) / played * (self.config.run.steps - step - 1)

    # Checkpoints

    def _state(self) -> dict[str, Any]:
        return {
            "game": self.game.state(),
            "sources": {name: source.state() for name, source in self.sources.items()},
            "skipped_steps": self.skipped_steps,
            "cold_started": self._cold_started,
        }

    def _save(self, step: int, state: Mapping[str, Any]) -> None:
        optimizer = self.trainer.optimizer
        save_checkpoint(
            self.folder.path / CHECKPOINTS,
            step,
            adapters=self.adapters,
            optimizer=optimizer_state(optimizer, self.adapters) if optimizer is not None else {},
            state=state,
            identity=self.identity,
            keep=self.config.run.keep_checkpoints,
        )
        aside = self.folder.path / f".{ADAPTERS}.partial"
        for seat in self.adapters.seats:
            self.adapters.save(seat, aside / seat)
        self.folder.replace_folder(ADAPTERS, aside)
        (self.folder.path / CARD).write_text(model_card(self.config, step), encoding="utf-8")

    def _load(self, path: str) -> None:
        checkpoint = Checkpoint(Path(path), self.trainer.state.global_step)
        optimizer, state = load_checkpoint(checkpoint, self.adapters)
        load_optimizer_state(self.trainer.optimizer, self.adapters, optimizer)
        self.game.restore(state["game"])
        for name, source in self.sources.items():
            source.restore(state["sources"][name])
        self.skipped_steps = state["skipped_steps"]
        self._cold_started = state["cold_started"]
