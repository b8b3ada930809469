"""`python evidence.py SECTION FILE`: what a backend computes of fixed rows, into a safetensors file.

SECTION is the `model` section of a configuration, in JSON. The file holds the gradient of every adapter weight of an
Agon step (`gradient/<seat>/...`), and log-probabilities of the rows of that step under each seat (`logprobs/<seat>`).
"""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lite_selfplay.config import ModelSection, RunConfig, SeatConfig
from lite_selfplay.data import Completion, Episode, Group, Sample, Sampling, Stream
from lite_selfplay.models.backends import choose_backend, import_first
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.sources import resolve

CAP = 24
SEATS = {seat: SeatConfig(rank=8, alpha=16, init="gaussian", init_std=0.05, clip=1e9, lr=1e-2) for seat in ("A", "B")}
ROLES = {"drafter": "A", "challenger": "B"}
OUT_OF_MEMORY = tuple(
    f"out of memory while sampling: from now on {what}" for what in ("4-bit weights are not expanded", "at most ")
)
"""How a warning begins: weights are left as they are before fewer rows are held."""
REWARDS = ([0.0, 2.0, 2.5, 0.5], [3.0, 0.0, 2.0, 0.5])


def main() -> None:
    section = ModelSection(**json.loads(sys.argv[1]))
    import_first(section)
    from safetensors.torch import save_file

    backend, chat = load(section)
    played = episode(vocabulary=259)
    found = {}
    for seat, stream in zip(SEATS, played.streams, strict=True):
        spoken = [sample.completion for group in stream.groups for sample in group.samples]
        scores = backend.score(seat, [(one.prompt_ids, one.token_ids) for one in spoken], temperature=1.0)
        found[f"logprobs/{seat}"] = torch.tensor([value for score in scores for value in score.logprobs])
    for seat, gradients in one_update(backend, chat, played, section).items():
        found |= {f"gradient/{seat}/{name}": gradient for name, gradient in gradients.items()}
    save_file(found, sys.argv[2])


def load(section: ModelSection, seats: Mapping[str, SeatConfig] = SEATS, **options: Any) -> tuple[Any, Any]:
    """A base with its seats in memory, and its chat."""
    path = resolve(section.name).path
    chat = Chat.load(path)
    return choose_backend(path, section, seats, **{"seed": 0, "eos_ids": chat.eos_ids, **options}), chat


def episode(vocabulary: int, seats: Sequence[str] = tuple(SEATS)) -> Episode:
    """Two groups a seat, of rows of unequal lengths; the prompts are shared by a group."""
    streams = []
    for role, seat in ROLES.items():
        if seat not in seats:
            continue
        groups = []
        for number, rewards in enumerate(REWARDS):
            draw = torch.Generator().manual_seed(100 * ord(seat) + number)
            prompt = torch.randint(3, vocabulary, (5 + 7 * number,), generator=draw).tolist()
            lengths = [1 + (5 * k + 3 * number) % CAP for k in range(len(rewards))]
            said = [torch.randint(3, vocabulary, (length,), generator=draw).tolist() for length in lengths]
            groups.append(Group([Sample(spoke(seat, prompt, ids), r) for ids, r in zip(said, rewards, strict=True)]))
        streams.append(Stream(role, groups))
    return Episode(streams)


def spoke(seat: str, prompt: list[int], ids: list[int]) -> Completion:
    return Completion("", "", prompt, ids, [-5.0] * len(ids), "length", seat, 0, Sampling(max_tokens=CAP))


def trainer_of(
    backend: Any,
    tokenizer: Any,
    folder: Path,
    model: Mapping[str, Any],
    seats: Mapping[str, SeatConfig],
    role: Mapping[str, Any] = {},
    **run: Any,
) -> Any:
    """A trainer of Agon's two roles over a backend, with options of both roles and of the run."""
    from lite_selfplay.training.losses import make_loss
    from lite_selfplay.training.trainer import SelfPlayTrainer

    run = {"steps": 2, "max_completion_tokens": CAP, **run}
    config = RunConfig(game="agon", model=model, seats=seats, roles=dict.fromkeys(ROLES, role), run=run)
    loss = make_loss(backend, config, tokenizer, str(folder / "out"))
    return SelfPlayTrainer(backend=backend, loss=loss, config=config)


def one_update(
    backend: Any,
    chat: Any,
    played: Episode,
    section: ModelSection,
    after: Callable[[], None] = lambda: None,
    keep: bool = True,
) -> dict[str, dict[str, torch.Tensor]]:
    """Update the seats by one step of play, and return the gradients of each, in float32 on the CPU.

    `after` is called when the optimizer has moved the weights, while the gradients are still there. Without `keep`
    no copy of them is made, and none returned.
    """
    from tests.made import as_sampled

    adapters = backend.adapters
    gradients: dict[str, dict[str, torch.Tensor]] = {}
    with tempfile.TemporaryDirectory() as folder:
        seats = dict.fromkeys(adapters.seats, SEATS["A"])
        trainer = trainer_of(backend, chat.tokenizer, Path(folder), section.model_dump(), seats, steps=1)

        def capture(*_: Any) -> None:
            # The factor of a gradient scaler has been taken out by then.
            for seat in adapters.seats if keep else ():
                moving = {n: p.grad for n, p in adapters.parameters(seat).items() if p.grad is not None}
                gradients[seat] = {name: grad.detach().float().cpu().clone() for name, grad in moving.items()}

        trainer.optimizer.register_step_pre_hook(capture)
        trainer.optimizer.register_step_post_hook(lambda *_: after())
        roles = {stream.role: ROLES[stream.role] for stream in played.streams}
        trainer.update(0, as_sampled(played, backend), roles)
    return gradients


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main()
