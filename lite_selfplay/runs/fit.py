"""Whether a run's update fits into memory, by computing its largest microbatch, and how long a step takes."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch

from lite_selfplay.config import RunConfig
from lite_selfplay.data import Completion
from lite_selfplay.errors import PreflightError
from lite_selfplay.models.backends.base import is_out_of_memory
from lite_selfplay.runs.small_step import Said
from lite_selfplay.training.microbatches import MicroBatch, Row, microbatches
from lite_selfplay.training.trainer import SelfPlayTrainer

TIMED_AGAIN_S = 10.0
"""A microbatch that took less is computed once more for its time: the first one prepares what later ones find ready."""
_CONTAINER = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Fit:
    """The largest microbatch, computed.

    Whose it is, its tokens with padding, its seconds, and the memory held at the peak in bytes, out of how many, on
    what. `asked` is what `run.microbatch_tokens` came to where that did not fit.
    """

    role: str
    tokens: int
    seconds: float
    used: int
    of: int
    what: str
    asked: int | None = None

    def line(self) -> str:
        """That it fits, as a sentence without its full stop."""
        fits = f"fits: {self.used / 1e9:.1f} of {self.of / 1e9:.1f} GB ({self.what})"
        if self.asked is not None:
            return f"{self.asked:,} tokens at once do not fit into memory; a microbatch of {self.tokens:,} {fits}"
        return f"the largest microbatch, {self.tokens:,} tokens of the {self.role}, {fits}"


@dataclass(frozen=True)
class Load:
    """What microbatches are made of: what roles said, who played them, and the run's own limits."""

    trainer: SelfPlayTrainer
    config: RunConfig
    max_completion_tokens: int
    said: Said
    seats: Mapping[str, str]

    @property
    def budget(self) -> int:
        """The most tokens of a microbatch."""
        return self.trainer.backend.tokens_at_once(self.config.run)

    def trained(self) -> dict[str, Sequence[Completion]]:
        """What was said by roles whose seats are trained."""
        own = self.trainer.adapters.seats
        return {role: c for role, c in self.said.items() if c and self.seats.get(role) in own}

    def cut(self, role: str, rows: Sequence[Row], tokens: int) -> list[MicroBatch]:
        section, way = self.config.roles[role], self.trainer.backend.way()
        return microbatches(rows, self.seats[role], section, tokens, way)

    def largest(self, tokens: int) -> tuple[str, MicroBatch] | None:
        """The largest microbatch where every completion is as long as it may be, after its role; None where nothing is
        trained."""
        found = [(role, micro) for role in self.trained() for micro in self.cut(role, self._longest(role), tokens)]
        return max(found, key=lambda each: each[1].batch.cost, default=None)

    def _longest(self, role: str) -> list[Row]:
        """The rows of a step whose completions are all as long as they may be; prompts are those that were seen, the
        longest first."""
        said, run = self.said[role], self.config.run
        sampling = self.config.roles[role].sampling(self.max_completion_tokens)
        prompts = sorted({tuple(c.prompt_ids) for c in said}, key=len, reverse=True)
        spoken = next((tuple(c.token_ids) for c in said if c.token_ids), prompts[0])
        ids = (spoken * (sampling.max_tokens // len(spoken) + 1))[: sampling.max_tokens]
        rows = []
        for i in range(run.group_size * run.problems_per_step):
            prompt = prompts[i // run.group_size % len(prompts)]
            row = replace(said[0], prompt_ids=prompt, token_ids=ids, logprobs=(), sampling=sampling)
            rows.append(Row(row, 1.0 if i % 2 else -1.0))
        return rows

    def read(self) -> int:
        """Tokens that an update on what was said reads, padding included."""
        rows = {role: [Row(c, 1.0) for c in own if c.token_ids] for role, own in self.trained().items()}
        return sum(m.batch.cost for role, own in rows.items() for m in self.cut(role, own, self.budget))


def largest_computed(load: Load) -> Fit | None:
    """Compute the largest microbatch that prompts as long as these can give; where memory runs out, one of half of it.

    Nothing moves. Raises PreflightError where a single row does not fit, and what `SelfPlayTrainer.rehearse` raises.
    """
    backend, tokens = load.trainer.backend, load.budget
    _watch(backend.device)
    while True:
        if (found := load.largest(tokens)) is None:
            return None
        role, micro = found
        try:
            seconds = _timed(load.trainer, micro)
            if seconds < TIMED_AGAIN_S:
                seconds = _timed(load.trainer, micro)
            used, of, what = peak(backend.device)
            asked = None if tokens == load.budget else load.budget
            return Fit(role, micro.batch.cost, round(seconds, 3), used, of, what, asked)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        # Out of the handler: what it held is free now.
        backend.release_memory()
        if len(micro.rows) == 1:
            raise PreflightError(
                f"pre-flight: the update of one completion of {micro.batch.cost:,} tokens does not fit into memory: "
                "lower --max-completion-tokens or run.max_prompt_tokens, --set model.gradient_checkpointing=true, or "
                "take a smaller model"
            )
        tokens = micro.batch.cost // 2


def step_seconds(load: Load, rollouts: int | None, speed: float, fit: Fit | None) -> float | None:
    """Seconds of a step of so many rollouts that are all learned from, by tokens sampled and read in a second.

    `speed` is that of sampling, `fit` tells that of the update. None where rollouts vary, or nothing was measured.
    """
    said = [len(completion.token_ids) for own in load.said.values() for completion in own]
    if rollouts is None or fit is None or not any(said) or not speed:
        return None
    return round(rollouts / len(said) * (sum(said) / speed + load.read() * fit.seconds / fit.tokens), 2)


def _timed(trainer: SelfPlayTrainer, micro: MicroBatch) -> float:
    started = time.monotonic()
    trainer.rehearse(micro)
    return time.monotonic() - started


def _watch(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> tuple[int, int, str]:
    """Bytes held at the peak, of how many, and what they are.

    On a card since it was watched, with all that others hold there; on a CPU this process's resident memory since it
    began, of what the machine has or its container may use.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        others = total - free - torch.cuda.memory_reserved(device)
        return others + torch.cuda.max_memory_reserved(device), total, torch.cuda.get_device_name(device)
    import resource  # which only Unix has

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return used, machine_memory(), "resident memory"


def machine_memory(container: Path = _CONTAINER) -> int:
    """Bytes of memory that this machine has, or that its container may use where that is less."""
    total = int(psutil.virtual_memory().total)
    try:
        bound = container.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return total
    return min(total, int(bound)) if bound.isdecimal() else total
