"""What a backend is: a base model in memory with its seats, which complete prompts and read rows.

Your own backend is a class with these methods and one line, `register_backend("NAME", MyBackend)`; `--backend
NAME` then chooses it. The one to derive from, or to read, is `backends/transformers.py`; what differs is overridden.
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
"""What to do about a temperature at which servers sample otherwise."""


@dataclass(frozen=True)
class Rollouts:
    """How a run samples on servers: its section, where adapters are written unless that says so, and the tokens of its
    longest prompt and completion together."""

    section: RolloutsSection
    folder: Path
    longest: int


class Backend(Protocol):
    """A base model in memory with its seats.

    Seats, snapshots and `base` go by name; `adapters` says which there are, and makes one active. Methods that take no
    name work with the one that is active.
    """

    name: str
    adapters: Adapters
    device: torch.device
    compute_dtype: torch.dtype
    """What weights are multiplied in."""

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
        """Load the base at `path` and make its seats, whose first weights follow from `seed`.

        `eos_ids` end a completion. `run` says how much may be held while sampling and updating. `decode` turns ids
        into text where stop strings ask for it. `poll` is to be called often during long work and may raise to stop it;
        `warn` takes a sentence for the user.
        """

    def generate(self, request: GenerationRequest) -> list[list[Generation]]:
        """The completions that are asked for, in the order of the prompts.

        Each follows from its seed, and notes the log-probability with which each of its tokens was drawn.
        """

    def rows_at_once(self, prompt: int, completion: int) -> int:
        """How many completions of such a length, of prompts of such a length, are sampled side by side."""

    def score(self, seat: str, rows: Sequence[Row], temperature: float) -> list[TokenScores]:
        """Log-probabilities and entropies of the completions' tokens under a seat, a snapshot or `base`."""

    def token_logprobs(
        self, batch: Batch, temperature: float = 1.0, *, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies (N,) of the completions' tokens, row after row, under what is active.

        The log-probabilities are differentiable in the active adapter; the entropies where `entropy_gradient` asks.
        Where it does not, and a gradient is taken, they may be 0.
        """

    def tokens_at_once(self, run: RunSection) -> int:
        """The most tokens of a microbatch: what a run sets, or what suits this base and its device."""

    def way(self) -> Way:
        """How rows are read now: what batches are to be made for."""

    def updating(self) -> contextlib.AbstractContextManager[Any]:
        """Training mode, with memory of another shape, for the length of an update."""

    def release_memory(self) -> None:
        """Give memory that is no longer in use back to the system: called where none was left."""

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision that generation, scoring and the update all run in."""

    def trainer_parent(self) -> type:
        """The GRPO trainer class whose loss is used, chosen after the backend has patched what it patches."""

    def trainer_arguments(self) -> dict[str, Any]:
        """What this backend asks of `GRPOConfig` (precision, device)."""

    def close(self) -> None:
        """Undo what was changed in the process for this backend's sake."""


def samples_elsewhere(backend: Backend) -> bool:
    """Whether what a backend notes while sampling is another program's arithmetic than its own log-probabilities.

    A backend says so by an attribute of this name; one without it does not.
    """
    return bool(getattr(backend, "samples_elsewhere", False))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that no memory was left, on a GPU or on a CPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
