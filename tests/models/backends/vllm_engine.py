"""A vLLM engine that is not there: it refuses what vLLM 0.33 refuses, and keeps what it keeps.

After `vllm/lora/request.py`, `lora/peft_helper.py`, `lora/worker_manager.py`, `sampling_params.py`, `v1/engine/core.py`
and `v1/core/kv_cache_utils.py` of vLLM 0.33.0. What it says is computed by a model of this library.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "use_dora": (None, False),
    "bias": (None, "none"),
    "modules_to_save": (None, []),
    "init_lora_weights": (None, True, False, "gaussian"),
}
"""Of an adapter's configuration, beside its rank."""


@dataclass(frozen=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""

    def __post_init__(self) -> None:
        refuse(self.lora_int_id < 1, f"id must be > 0, got {self.lora_int_id}")
        refuse(not self.lora_path, "lora_path cannot be empty")


@dataclass
class SamplingParams:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = 16
    stop: list[str] | None = None
    include_stop_str_in_output: bool = False
    stop_token_ids: list[int] | None = None
    seed: int | None = None
    logprobs: int | None = None
    detokenize: bool = True

    def __post_init__(self) -> None:
        refuse(not 0.0 <= self.temperature <= 2.0, f"temperature must be in [0, 2], got {self.temperature}.")
        refuse(bool(self.stop) and not self.detokenize, "stop strings are only supported when detokenize is True.")
        refuse(not -(2**63) <= (self.seed or 0) < 2**63, "the generator takes seeds of 64 bits")


def refuse(wrong: bool, why: str) -> None:
    if wrong:
        raise ValueError(why)


Speak = Callable[[Any, Sequence[int], SamplingParams], tuple[list[int], list[float], str]]
"""What a loaded adapter (None for the base) says: ids, log-probabilities, finish reason."""


@dataclass
class LLM:
    """`load` reads an adapter's folder; `speak` completes a prompt by what was loaded."""

    load: Callable[[Path], Any]
    speak: Speak
    max_loras: int = 1
    max_lora_rank: int = 16
    logprobs_mode: str = "raw_logprobs"
    enable_sleep_mode: bool = False
    enable_lora: bool = True
    loaded: dict[int, Any] = field(default_factory=dict)
    """By id, the one used longest ago first: as many as `max_loras`, which is also vLLM's `max_cpu_loras`."""
    read: dict[tuple[str, str, tuple[int, ...]], Any] = field(default_factory=dict)
    """What was read before a prompt's answer, by the adapter's name and path."""
    paused: bool = False
    keys_and_values: bool = True
    calls: list[str] = field(default_factory=list)
    asked: list[LoRARequest | None] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)

    def __post_init__(self) -> None:
        refuse(self.max_lora_rank not in RANKS, f"max_lora_rank: should be {RANKS}, got {self.max_lora_rank}")
        refuse(self.max_loras < 1, "max_loras: Input should be greater than or equal to 1")
        self.model_config = SimpleNamespace(logprobs_mode=self.logprobs_mode, enable_sleep_mode=self.enable_sleep_mode)
        self.llm_engine = SimpleNamespace(remove_lora=self._remove, list_loras=lambda: set(self.loaded))

    def generate(
        self,
        prompts: Sequence[dict[str, list[int]]],
        sampling_params: Sequence[SamplingParams],
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequest | None = None,
    ) -> list[Any]:
        refuse(len(prompts) != len(sampling_params), "The lengths of prompts and params must be the same.")
        refuse(lora_request is not None and not self.enable_lora, "Got lora_request but LoRA is not enabled!")
        if self.paused or not self.keys_and_values:
            raise TimeoutError("requests are accepted and never answered while the engine sleeps")
        self.asked.append(lora_request)
        self.params += sampling_params
        serving = None if lora_request is None else self._serve(lora_request)
        return [
            self._answer(prompt["prompt_token_ids"], params, lora_request, serving)
            for prompt, params in zip(prompts, sampling_params, strict=True)
        ]

    def _answer(self, ids: list[int], params: SamplingParams, lora: LoRARequest | None, serving: Any) -> Any:
        refuse(not ids, "The decoder prompt cannot be empty")
        # Prefix caching: the first read of a prompt under a name and a path is used again.
        key = (lora.lora_name, lora.lora_path, tuple(ids)) if lora else ("", "", tuple(ids))
        said, logprobs, reason = self.speak(self.read.setdefault(key, serving), ids, params)
        noted = [{token: SimpleNamespace(logprob=lp)} for token, lp in zip(said, logprobs, strict=True)]
        asked_for = noted if params.logprobs is not None else None
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=said, logprobs=asked_for, finish_reason=reason)])

    def _serve(self, lora: LoRARequest) -> Any:
        if lora.lora_int_id not in self.loaded:
            folder = Path(lora.lora_path)
            refuse(not (folder / "adapter_config.json").exists(), f"No adapter found for {lora.lora_path}")
            config = json.loads((folder / "adapter_config.json").read_text())
            rank = config["r"]
            refuse(rank > self.max_lora_rank, f"LoRA rank {rank} is greater than max_lora_rank {self.max_lora_rank}.")
            for key, values in SUPPORTED.items():
                refuse(config.get(key) not in values, f"vLLM does not support {key}={config.get(key)!r}.")
            loaded = self.load(folder)
            if len(self.loaded) + 1 > self.max_loras:
                del self.loaded[next(iter(self.loaded))]
            self.loaded[lora.lora_int_id] = loaded
        self.loaded[lora.lora_int_id] = self.loaded.pop(lora.lora_int_id)
        return self.loaded[lora.lora_int_id]

    def _remove(self, number: int) -> bool:
        return self.loaded.pop(number, None) is not None

    # Sleep and wake

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        self.calls.append(f"sleep {level}")
        refuse(level >= 1, "the weights that are trained over would go with it")
        self.paused = True

    def release_kv_cache_memory(self) -> None:
        self.calls.append("release")
        refuse(not self.paused, "release_kv_cache_memory() requires a completed pause first")
        refuse(not self.keys_and_values, "release_kv_cache_memory() requires all executor memory to be resident")
        self.keys_and_values = False
        self.read.clear()

    def wake_up(self, tags: list[str] | None = None) -> bool:
        self.calls.append("wake_up")
        self.keys_and_values, self.paused = True, False
        return True


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package vllm, as far as it is imported."""
    own = SimpleNamespace(SamplingParams=SamplingParams, LoRARequest=LoRARequest)
    for name in ("vllm", "vllm.lora", "vllm.lora.request"):
        monkeypatch.setitem(sys.modules, name, own)
