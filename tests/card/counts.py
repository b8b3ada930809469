"""What a decoded token and an update launch, counted on the pretend card.

The model is random and small in width, and has as many layers as is asked for, in the shape of Qwen3-0.6B: the number
of kernels depends on the layers, not on the width.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lite_selfplay.config import ModelSection, RunConfig, SeatConfig
from lite_selfplay.data import Completion, Episode, Group, Sample, Sampling, Stream
from lite_selfplay.models.backends.transformers import TransformersBackend
from lite_selfplay.models.chat import Chat
from lite_selfplay.models.generation.sampling import GenerationRequest
from lite_selfplay.models.sources import tiny
from lite_selfplay.testing import as_sampled
from lite_selfplay.training.trainer import SelfPlayTrainer
from lite_selfplay.training.trl import make_loss
from tests.card.pretend import Card, Seen, Wait

LAYERS = 28
"""Of Qwen3-0.6B."""
SEATS = {seat: SeatConfig(rank=16, alpha=32, init="gaussian", init_std=0.05, lr=1e-2) for seat in ("A", "B")}
ROLES = {"drafter": "A", "challenger": "B"}
CAP = 24
PROMPTS = ([5, 6, 7, 8, 9], [6, 6, 7, 8, 10])
REWARDS = ([0.0, 2.0, 2.5, 0.5], [3.0, 0.0, 2.0, 0.5])


def deep_model(folder: Path, layers: int = LAYERS) -> None:
    """Write a random model of so many layers, with the tokenizer of `tiny`, into a folder."""
    from transformers import Qwen3Config

    tiny.build_tiny(folder)
    config = Qwen3Config.from_pretrained(folder)
    config.num_hidden_layers, config.layer_types = layers, ["full_attention"] * layers
    config.hidden_size, config.intermediate_size = 64, 192
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 16, 8, 16
    config.save_pretrained(folder)
    tiny._write_weights(folder, config)


def section(precision: str = "bf16") -> ModelSection:
    """The `model` section of `bf16`, `fp16`, `fp32`, or of `4bit` with what it is multiplied in, as in `4bit:bf16`."""
    kind, _, inner = precision.partition(":")
    return ModelSection(name="tiny", precision=kind, compute_dtype=inner or "auto", gradient_checkpointing=False)


def load(folder: Path, precision: str = "bf16") -> TransformersBackend:
    """The model in a folder with two seats, none of whose completions ends by itself."""
    return TransformersBackend(folder, section(precision), SEATS, seed=0, eos_ids=[2**30])


# A token


@dataclass(frozen=True)
class Token:
    """What a decoded token of all rows costs on average, and what there is before the first."""

    kernels: float
    waits: float
    by_operation: Mapping[str, float]
    by_wait: Mapping[Wait, float]
    before: float


def token(
    card: Card,
    backend: Any,
    seat: str,
    *,
    rows: int = 8,
    sampling: Mapping[str, Any] = {},
    span: tuple[int, int] = (3, 7),
) -> Token:
    """Count a token of `generate` under a seat or `base`: a call of more tokens less one of fewer."""
    few, many = (sampled(card, backend, seat, length, rows=rows, sampling=sampling) for length in span)
    more = span[1] - span[0]
    kernels = (many.launches - few.launches) / more
    return Token(
        kernels,
        (many.syncs - few.syncs) / more,
        _less(many.kernels, few.kernels, more),
        _less(many.waits, few.waits, more),
        few.launches - span[0] * kernels,
    )


def sampled(
    card: Card,
    backend: Any,
    seat: str,
    tokens: int,
    *,
    rows: int = 8,
    sampling: Mapping[str, Any] = {},
    with_operations: bool = False,
) -> Seen:
    """Count a call of `generate` that samples so many tokens of each row."""
    prompts = PROMPTS[: 1 + (rows > 1)]
    each = rows // len(prompts)
    seeds = [[10 * p + k for k in range(each)] for p in range(len(prompts))]
    request = GenerationRequest(seat, prompts, each, Sampling(max_tokens=tokens, **sampling), seeds)
    with card.watch(with_operations=with_operations) as seen:
        backend.generate(request)
    return seen


def _less(many: Counter[Any], few: Counter[Any], more: int) -> dict[Any, float]:
    return {key: (many[key] - few[key]) / more for key in many | few if many[key] != few[key]}


# An update


def update(card: Card, backend: Any, folder: Path, *, with_places: bool = False) -> Seen:
    """Count the second update of a small step of Agon: two seats, two groups of four completions each.

    The first one is not counted: it makes what is kept from then on.
    """
    learner = trainer(backend, folder)
    learner.update(0, as_sampled(episode(backend), backend), ROLES)
    played = as_sampled(episode(backend), backend)
    with card.watch(with_places=with_places) as seen:
        report = learner.update(1, played, ROLES)
    assert report.trained
    assert report.nonfinite is None
    return seen


def trainer(backend: Any, folder: Path, role: Mapping[str, Any] = {}, **run: Any) -> SelfPlayTrainer:
    """A trainer of Agon's two roles over a backend, with options of both roles and of the run."""
    config = RunConfig(
        game="agon",
        model={"name": "tiny"},
        seats=SEATS,
        roles=dict.fromkeys(ROLES, role),
        run={"steps": 2, "max_completion_tokens": CAP, **run},
    )
    tokenizer = Chat.load(folder).tokenizer
    return SelfPlayTrainer(
        backend=backend, loss=make_loss(backend, config, tokenizer, str(folder / "out")), config=config
    )


def episode(backend: Any, seats: Sequence[str] = tuple(SEATS)) -> Episode:
    """Two groups a seat, of rows of unequal lengths that nobody sampled."""
    streams = []
    for role, seat in ROLES.items():
        groups = []
        for number, rewards in enumerate(REWARDS if seat in seats else ()):
            draw = torch.Generator().manual_seed(100 * ord(seat) + number)
            prompt = torch.randint(3, 259, (5 + 7 * number,), generator=draw).tolist()
            lengths = [1 + (5 * k + 3 * number) % CAP for k in range(len(rewards))]
            said = [torch.randint(3, 259, (length,), generator=draw).tolist() for length in lengths]
            version = backend.adapters.version(seat)
            spoken = [
                Completion("", "", prompt, ids, [-5.0] * len(ids), "length", seat, version, Sampling(max_tokens=CAP))
                for ids in said
            ]
            groups.append(Group([Sample(one, reward) for one, reward in zip(spoken, rewards, strict=True)]))
        streams.append(Stream(role, groups))
    return Episode(streams)
