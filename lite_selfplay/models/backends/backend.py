"""The interface of a backend: a base model in memory with its seats, which samples completions and reads rows.

Your own backend is a class with these methods and one line, `register_backend("NAME", MyBackend)`; `--backend NAME`
then selects it. Derive it from the one in `backends/transformers.py` and override what differs.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from lite_selfplay.config import ModelSection, RolloutsSection, RunSection, SeatConfig
from lite_selfplay.data import TokenScores
from lite_selfplay.models.adapters import Adapters
from lite_selfplay.models.generation.sampling import Generation, GenerationRequest
from lite_selfplay.models.logprobs.batch import Batch, Row, Way

REMEDY = "set the temperature of the role (or of eval, or cold_start), or leave out --rollouts"
"""The remedy for a temperature that servers would change."""


@dataclass(frozen=True)
class Rollouts:
    """How a run samples on servers: its section, the folder for adapters unless the section names one, and the tokens
    of its longest prompt and completion together."""

    section: RolloutsSection
    folder: Path
    longest: int


class Backend(Protocol):
    """A base model in memory with its seats (named LoRA adapters). Seats, snapshots and `base` go by name; `adapters`
    holds them, and makes one active. Methods without a name use the active one."""

    name: str
    adapters: Adapters
    device: torch.device
    compute_dtype: torch.dtype
    """The type that weights are multiplied in."""

    def __init__(
        self,
        path: Path,
        section: ModelSection,
        seats: Mapping[str, SeatConfig],
        *,
        seed: int,
        eos_ids: Sequence[int],
        run: RunSection | None = None,
        decode: Callable[[Sequence[int]], str] | None = None,
        poll: Callable[[], None] = lambda: None,
        warn: Callable[[str], None] = lambda sentence: None,
    ):
        """Load the base at `path` and make its seats, with initial weights from `seed`.

        `eos_ids` end a completion. `run` bounds memory while sampling and updating. `decode` turns ids into text for
        stop strings. `poll` must be called often during long work and may raise to stop it; `warn` takes a sentence for
        the user.
        """

    def generate(self, request: GenerationRequest) -> list[list[Generation]]:
        """The requested completions, in the order of the prompts. Each depends on its seed only, and has the
        log-probability with which each token was sampled."""

    def rows_at_once(self, prompt: int, completion: int) -> int:
        """How many completions of these lengths are sampled side by side."""

    def score(self, seat: str, rows: Sequence[Row], temperature: float) -> list[TokenScores]:
        """Log-probabilities and entropies of the completions' tokens under a seat, a snapshot or `base`."""

    def token_logprobs(
        self, batch: Batch, temperature: float = 1.0, *, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies (N,) of the completions' tokens, row after row, under the active adapter.

        The log-probabilities are differentiable; the entropies only with `entropy_gradient`, and otherwise they may be
        0 if a gradient is taken.
        """

    def tokens_at_once(self, run: RunSection) -> int:
        """The most tokens of a microbatch, by the run's setting or suited to this base and device."""

    def way(self) -> Way:
        """How batches are read now."""

    def updating(self) -> contextlib.AbstractContextManager[Any]:
        """A context for an update: training mode, with the memory of sampling freed if the update needs it."""

    def release_memory(self) -> None:
        """Give unused memory back to the system; called after an out-of-memory error."""

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision of generation, scoring and updates."""

    def trainer_parent(self) -> type:
        """The GRPO trainer class whose loss is used, after the backend's patches."""

    def trainer_arguments(self) -> dict[str, Any]:
        """This backend's arguments for `GRPOConfig` (precision, device)."""

    def close(self) -> None:
        """Undo this backend's changes to the process."""


def samples_elsewhere(backend: Backend) -> bool:
    """Whether another program computes a backend's log-probabilities while sampling: its attribute of this name, False
    by default."""
    return bool(getattr(backend, "samples_elsewhere", False))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on a GPU or on a CPU."""
    on_cpu = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return on_cpu or isinstance(error, MemoryError | torch.OutOfMemoryError)
