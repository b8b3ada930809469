"""What tests are made with: an ear for what a run tells, lines of JSON, comparisons of weights, a small model."""

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from lite_selfplay.config import RunConfig
from lite_selfplay.models.sources import resolve
from lite_selfplay.runs.checkpoints import find_checkpoints
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.runs.loop import RunLoop
from lite_selfplay.runs.planning import plan
from lite_selfplay.runs.resources import Resources
from lite_selfplay.training.progress import Monitor, Progress
from tests.made import jsonl


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    return jsonl(path, *rows)


def write_evaluation(folder: RunFolder, step: int, rate: float) -> None:
    """Write what an evaluation of seat A after so many steps found."""
    lengths = {"tokens_final_mean": 9.0, "tokens_total_mean": 9.0}
    result = {"tasks": "letters", "best": "A", "n": 4, "samples": 1, "pass_at_1": rate, "per_problem": {}, **lengths}
    score = {"pass_at_1": rate, "ci95": [0.0, 1.0]}
    when = {"moment": f"after {step} steps", "step": step}
    folder.write_evaluation(f"at{step}", {**result, **when, "seats": {"A": score}})


class Ear(Progress):
    """Keeps all that it is told, by kind."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []
        self.phases: list[tuple[str, int | None]] = []
        self.notes: list[tuple[int, str]] = []
        self.results: list[tuple[str, Any, str]] = []
        self.tokened: list[tuple[int, int | None]] = []
        self.ticks = 0

    def say(self, sentence: str) -> None:
        self.said.append(sentence)

    def warn(self, sentence: str) -> None:
        self.warned.append(sentence)

    def phase(self, name: str, total: int | None = None) -> None:
        self.phases.append((name, total))

    def advance(self, done: int, note: str = "") -> None:
        self.notes.append((done, note))

    def tokens(self, done: int, most: int | None) -> None:
        self.tokened.append((done, most))

    def tick(self) -> None:
        self.ticks += 1

    def evaluated(self, name: str, result: Any, line: str) -> None:
        self.results.append((name, result, line))

    def finished(self, report: Sequence[str]) -> None:
        self.said += report


@contextlib.contextmanager
def loop_of(
    settings: RunConfig, folder: Path, reward: Any = None, clock: Any = time.monotonic, **watched: Any
) -> Iterator[RunLoop]:
    """A run of `tiny` in memory, before its first step."""
    held = Resources.of(plan(settings), resolve("tiny"), RunFolder(folder), reward, Monitor(**watched))
    with contextlib.closing(held):
        yield RunLoop(held, clock=clock)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def seat_weights(run: Path, seat: str) -> dict[str, torch.Tensor]:
    """The weights that a run ended with, or a checkpoint holds."""
    return load_file(run / "adapters" / seat / "adapter_model.safetensors")


def saved_steps(run: Path) -> list[int]:
    """The steps before which a run was saved."""
    return [checkpoint.step for checkpoint in find_checkpoints(run / "checkpoints")]


def small_model(arch: str = "llama", vocab_size: int = 263, noise: float = 0.0, **options: Any) -> Any:
    """A random model of two layers; with `noise`, biases and norms are not all alike."""
    from transformers import AutoConfig, AutoModelForCausalLM

    heads = {} if arch == "qwen2" else {"head_dim": 16}
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 512}
    heads |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    kind = f"{arch.capitalize()}ForCausalLM"
    config = AutoConfig.for_model(arch, vocab_size=vocab_size, architectures=[kind], **sizes, **heads, **options)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            parameter.data += noise * torch.randn(parameter.shape)
    return model.eval()
