"""Kernel launches of a decoded token and of an update, counted on the pretend GPU.

The model is random and narrow, in the shape of Qwen3-0.6B with any number of layers: launches depend on the layers, not
on the width.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lite_selfplay.config import ModelSection, RunSection, SeatConfig
from lite_selfplay.data import Episode, Group, Sample, Stream
from lite_selfplay.models.backends.transformers import TransformersBackend
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.sources import tiny
from lite_selfplay.training.trainer import SelfPlayTrainer
from tests.gpu import evidence
from tests.gpu.evidence import ROLES
from tests.made import as_sampled
from tests.models.sampled import asked
from tests.pretend_gpu.pretend import Card, Seen

LAYERS = 28
"""As in Qwen3-0.6B."""
SEATS = {seat: SeatConfig(rank=16, alpha=32, init="gaussian", init_std=0.05, lr=1e-2) for seat in ("A", "B")}
PROMPTS = ([5, 6, 7, 8, 9], [6, 6, 7, 8, 10])


NARROW = {"hidden_size": 64, "intermediate_size": 192}
NARROW |= {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 16}


def deep_model(folder: Path, layers: int = LAYERS, kind: str = "Qwen3", sizes: Mapping[str, int] = NARROW) -> None:
    """Write a random model with this many layers of these sizes and the tokenizer of `tiny` into a folder."""
    import transformers

    tiny.build_tiny(folder)
    config = getattr(transformers, f"{kind}Config").from_pretrained(folder)
    config.architectures = [f"{kind}ForCausalLM"]
    config.num_hidden_layers, config.layer_types = layers, ["full_attention"] * layers
    config.update(sizes)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def section(precision: str = "bf16") -> ModelSection:
    """The `model` section for `bf16`, `fp16`, `fp32`, or for `4bit` with its compute type, as in `4bit:bf16`."""
    kind, _, inner = precision.partition(":")
    return ModelSection(name="tiny", precision=kind, compute_dtype=inner or "auto", gradient_checkpointing=False)


def load(folder: Path, precision: str = "bf16", **options: Any) -> TransformersBackend:
    """The model in a folder with two seats; completions end at `eos_ids`, by default never."""
    run = RunSection(generation_tokens=options.pop("cache_tokens", None))
    return TransformersBackend(
        folder, section(precision), SEATS, **{"seed": 0, "eos_ids": [2**30], "run": run, **options}
    )


# A token


@dataclass(frozen=True)
class Token:
    """The average cost of a decoded token of all rows."""

    kernels: float
    waits: float


def token(card: Card, backend: Any, seat: str, *, rows: int = 8, span: tuple[int, int] = (3, 7)) -> Token:
    """Count a token of `generate` under a seat or `base`: a longer call minus a shorter one."""
    few, many = (sampled(card, backend, seat, length, rows=rows) for length in span)
    more = span[1] - span[0]
    return Token((many.launches - few.launches) / more, (many.syncs - few.syncs) / more)


def sampled(card: Card, backend: Any, seat: str, tokens: int, *, rows: int = 8, **sampling: Any) -> Seen:
    """Count a call of `generate` that samples this many tokens of each row."""
    prompts = PROMPTS[: 1 + (rows > 1)]
    request = asked(seat, prompts, rows // len(prompts), max_tokens=tokens, **sampling)
    with card.watch(with_operations=True) as seen:
        backend.generate(request)
    return seen


# An update


def update(card: Card, backend: Any, folder: Path) -> Seen:
    """Count the second update of a small step of Agon: two seats, two groups of four completions each. The first update
    builds caches and is not counted."""
    learner = trainer(backend, folder)
    learner.update(0, as_sampled(episode(backend), backend), ROLES)
    played = as_sampled(episode(backend), backend)
    with card.watch() as seen:
        report = learner.update(1, played, ROLES)
    assert report.trained
    assert report.nonfinite is None
    return seen


def recorded_update(card: Card, backend: Any, folder: Path, vocabulary: int, groups: int, each: int = 16) -> Seen:
    """Count a later update of a seat, by groups of a recorded step of GRPO: lengths of 256 completions on an H100."""
    learner = trainer(backend, folder, max_completion_tokens=4096)
    learner.update(0, as_sampled(episode(backend), backend), ROLES)
    rows = json.loads(Path(__file__).with_name("recorded_lengths.json").read_text(encoding="utf-8"))["grpo 1 solver"]
    draw = torch.Generator().manual_seed(0)

    def ids(length: int) -> list[int]:
        return torch.randint(3, vocabulary, (length,), generator=draw).tolist()

    made = []
    for start in range(0, groups * each, each):
        prompt = ids(rows[start][0])
        said = [evidence.spoke("A", prompt, ids(length)) for _, length in rows[start : start + each]]
        now = [replace(one, weights_version=backend.adapters.version("A")) for one in said]
        made.append(Group([Sample(one, float(i % 3)) for i, one in enumerate(now)]))
    played = as_sampled(Episode([Stream("drafter", made)]), backend)
    with card.watch(with_operations=True) as seen:
        report = learner.update(17, played, {"drafter": "A"})
    assert report.trained
    return seen


def trainer(backend: Any, folder: Path, role: Mapping[str, Any] = {}, **run: Any) -> SelfPlayTrainer:
    """A trainer of Agon's two roles over a backend, with options of both roles and of the run."""
    tokenizer = Chat.load(folder).tokenizer
    return evidence.trainer_of(backend, tokenizer, folder, {"name": "tiny"}, SEATS, role, **run)


def episode(backend: Any) -> Episode:
    """Two groups for each seat, of rows of unequal lengths, as if the current weights had sampled them."""

    def now(sample: Sample) -> Sample:
        version = backend.adapters.version(sample.completion.seat)
        return replace(sample, completion=replace(sample.completion, weights_version=version))

    streams = [
        replace(stream, groups=[replace(group, samples=[*map(now, group.samples)]) for group in stream.groups])
        for stream in evidence.episode(259).streams
    ]
    return Episode(streams)
