"""Cold start: a few steps of supervised learning that teach seats their output format, without a teacher.

The examples are solutions written by rule (or found in a data file), in the very prompts the game will use. A seat
learns every role it may play; a challenger sees right and wrong attempts, and answers from the problem either way.
"""

from collections.abc import Callable, Iterator, Sequence

import torch

from lite_selfplay.adapters import Adapters
from lite_selfplay.backends.base import Backend
from lite_selfplay.backends.logprobs import token_logprobs
from lite_selfplay.backends.transformers import pad
from lite_selfplay.config import ColdStartSection
from lite_selfplay.data import Example
from lite_selfplay.errors import ConfigError
from lite_selfplay.games.base import Game
from lite_selfplay.models.chat import Chat, Conversation
from lite_selfplay.tasks import Source
from lite_selfplay.tasks.base import derived_rng

_WARM_UP = 5
_CLIP = 1.0


def cold_start(
    backend: Backend,
    chat: Chat,
    game: Game,
    source: Source,
    section: ColdStartSection,
    *,
    seed: int,
    say: Callable[[str], None],
    poll: Callable[[], None],
) -> None:
    """Train every seat of a game on `section.steps` batches of worked examples, one seat after the other.

    The loss is the mean negative log-likelihood per completion token. Raises ConfigError where the source's problems
    bring no solutions, or the game teaches none of its roles that way.
    """
    backend.adapters.model.train()
    for seat in game.trained_seats():
        roles = [role for role in game.roles if seat in {game.seats(step)[role] for step in range(2)}]
        batches = _batches(chat, game, roles, source, section, seed=seed, seat=seat)
        losses = _fit(backend, chat, seat, batches, section.lr, poll)
        say(f"cold start of {seat} as {' and '.join(roles)}: loss {losses[0]:.2f} -> {losses[-1]:.2f}")


def _batches(
    chat: Chat, game: Game, roles: Sequence[str], source: Source, section: ColdStartSection, *, seed: int, seat: str
) -> Iterator[list[Conversation]]:
    rng = derived_rng(seed, "cold start", seat)
    for _ in range(section.steps):
        examples: list[Example] = []
        for i, problem in enumerate(source.draw(section.examples_per_step)):
            example = game.cold_start(roles[i % len(roles)], problem, rng, thinks=chat.thinks)
            if example is not None:
                examples.append(example)
        if not examples:
            raise ConfigError(
                "cold start needs worked solutions, and these tasks bring none for the roles of this game: use "
                "--no-cold-start, or --set cold_start.tasks=stories"
            )
        yield [chat.conversation(example.prompt, example.completion) for example in examples]


def _fit(
    backend: Backend,
    chat: Chat,
    seat: str,
    batches: Iterator[list[Conversation]],
    lr: float,
    poll: Callable[[], None],
) -> list[float]:
    """Adam over one seat; returns the loss of each batch."""
    adapters: Adapters = backend.adapters
    parameters = list(adapters.parameters(seat).values())
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0)
    losses = []
    for step, batch in enumerate(batches):
        poll()
        optimizer.param_groups[0]["lr"] = lr * min(1.0, (step + 1) / _WARM_UP)
        adapters.activate(seat)
        with backend.autocast():
            loss = _loss(backend, chat, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, _CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


def _loss(backend: Backend, chat: Chat, batch: Sequence[Conversation]) -> torch.Tensor:
    prompt_ids, prompt_mask = pad([row.prompt_ids for row in batch], chat.pad_id, left=True)
    ids, mask = pad([row.completion_ids for row in batch], chat.pad_id)
    input_ids = torch.cat([prompt_ids, ids], dim=1).to(backend.device)
    attention_mask = torch.cat([prompt_mask, mask], dim=1).to(backend.device)
    logprobs, _ = token_logprobs(backend.adapters.model, input_ids, attention_mask, ids.shape[1])
    return -logprobs.sum() / mask.sum()
