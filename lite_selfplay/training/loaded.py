"""A base in memory with its seats and its chat, and who checks answers: what runs, evaluations and exports hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lite_selfplay.config import RunConfig, SeatConfig
from lite_selfplay.models.adapters import Adapters
from lite_selfplay.models.backends import choose_backend
from lite_selfplay.models.backends.base import Backend, Rollouts
from lite_selfplay.models.chat import Chat
from lite_selfplay.models.sources import ResolvedModel
from lite_selfplay.training.progress import Poll, Progress
from lite_selfplay.training.ranks import ALONE, Ranks
from lite_selfplay.verify import Verifier


@dataclass
class Loaded:
    """A base, its chat, its backend with the seats, and the verifier; `close` gives everything back."""

    chat: Chat
    backend: Backend
    verifier: Verifier
    progress: Progress = field(default_factory=Progress)
    poll: Poll = field(default_factory=lambda: Poll(Progress()))
    ranks: Ranks = ALONE

    @classmethod
    def of(
        cls,
        config: RunConfig,
        model: ResolvedModel,
        progress: Progress,
        poll: Poll,
        *,
        seats: Mapping[str, SeatConfig] | None = None,
        ranks: Ranks = ALONE,
        rollouts: Rollouts | None = None,
    ) -> "Loaded":
        """Load what a configuration names, with fresh `seats` (all of them where not given)."""
        chat, run, tasks = load_chat(config, model), config.run, config.tasks
        backend = choose_backend(
            model.path,
            config.model,
            config.seats if seats is None else seats,
            seed=run.seed,
            eos_ids=chat.eos_ids,
            run=run,
            decode=chat.decode,
            poll=poll,
            warn=lambda sentence: progress.warn(sentence),
            rollouts=rollouts,
        )
        backend.adapters.base_name = model.hub_id or model.name
        verifier = Verifier(
            deadline=run.verify_timeout_s,
            poll=poll,
            block_only=tasks.answer_from == "block",
            unsafe_code=tasks.unsafe_code,
        )
        return cls(chat, backend, verifier, progress, poll, ranks)

    @property
    def adapters(self) -> Adapters:
        return self.backend.adapters

    def close(self) -> None:
        """End the checking processes, and undo what the backend changed in this one."""
        self.verifier.close()
        self.backend.close()


def load_chat(config: RunConfig, model: ResolvedModel) -> Chat:
    """The chat of a model, which thinks aloud or not as a configuration says."""
    section = config.model
    return Chat.load(model.path, section.thinking, trust_remote_code=section.trust_remote_code)
