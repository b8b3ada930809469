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


@dataclass(frozen=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""

    def __post_init__(self) -> None:
        if self.lora_int_id < 1:
            raise ValueError(f"id must be > 0, got {self.lora_int_id}")
        assert self.lora_path, "lora_path cannot be empty"


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
        if not 0.0 <= self.temperature <= 2.0:
            raise ValueError(f"temperature must be in [0, 2], got {self.temperature}.")
        if self.stop and not self.detokenize:
            raise ValueError(
                "stop strings are only supported when detokenize is True. Set detokenize=True to use stop."
            )
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise OverflowError("the generator takes seeds of 64 bits")


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

    def __post_init__(self) -> None:
        if self.max_lora_rank not in RANKS:
            raise ValueError(f"max_lora_rank: Input should be {RANKS}, got {self.max_lora_rank}")
        if self.max_loras < 1:
            raise ValueError("max_loras: Input should be greater than or equal to 1")
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
        if len(prompts) != len(sampling_params):
            raise ValueError("The lengths of prompts and params must be the same.")
        if lora_request is not None and not self.enable_lora:
            raise ValueError(f"Got lora_request {lora_request} but LoRA is not enabled!")
        if self.paused or not self.keys_and_values:
            raise TimeoutError("requests are accepted and never answered while the engine sleeps")
        serving = None if lora_request is None else self._serve(lora_request)
        return [
            self._answer(prompt["prompt_token_ids"], params, lora_request, serving)
            for prompt, params in zip(prompts, sampling_params, strict=True)
        ]

    def _answer(self, ids: list[int], params: SamplingParams, lora: LoRARequest | None, serving: Any) -> Any:
        if not ids:
            raise ValueError("The decoder prompt cannot be empty")
        # Prefix caching: the first read of a prompt under a name and a path is used again.
        key = (lora.lora_name, lora.lora_path, tuple(ids)) if lora else ("", "", tuple(ids))
        said, logprobs, reason = self.speak(self.read.setdefault(key, serving), ids, params)
        noted = [{token: SimpleNamespace(logprob=lp)} for token, lp in zip(said, logprobs, strict=True)]
        output = SimpleNamespace(
            token_ids=said, logprobs=noted if params.logprobs is not None else None, finish_reason=reason
        )
        return SimpleNamespace(outputs=[output])

    def _serve(self, lora: LoRARequest) -> Any:
        if lora.lora_int_id not in self.loaded:
            folder = Path(lora.lora_path)
            if not (folder / "adapter_config.json").exists():
                raise ValueError(f"Loading lora {lora.lora_name} failed: No adapter found for {lora.lora_path}")
            config = json.loads((folder / "adapter_config.json").read_text())
            if config["r"] > self.max_lora_rank:
                raise ValueError(f"LoRA rank {config['r']} is greater than max_lora_rank {self.max_lora_rank}.")
            if config.get("use_dora") or config.get("bias", "none") != "none" or config.get("modules_to_save"):
                raise ValueError("vLLM does not support this adapter")
            if isinstance(init := config.get("init_lora_weights", True), str) and init != "gaussian":
                raise ValueError(f"vLLM does not support init_lora_weights={init!r}.")
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
        if level >= 1 and not self.enable_sleep_mode:
            raise ValueError("Sleep mode is not enabled. Please set enable_sleep_mode=True")
        self.paused = True
        if level >= 1:
            raise AssertionError("the weights that are trained over would go with it")

    def release_kv_cache_memory(self) -> None:
        self.calls.append("release")
        if not self.paused:
            raise RuntimeError("release_kv_cache_memory() requires a completed pause first")
        if not self.keys_and_values:
            raise RuntimeError("release_kv_cache_memory() requires all executor memory to be resident")
        self.keys_and_values = False
        self.read.clear()

    def wake_up(self, tags: list[str] | None = None) -> bool:
        self.calls.append("wake_up")
        self.keys_and_values = True
        self.paused = False
        return True


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package vllm, as far as it is imported."""
    own = SimpleNamespace(SamplingParams=SamplingParams, LoRARequest=LoRARequest)
    for name in ("vllm", "vllm.lora", "vllm.lora.request"):
        monkeypatch.setitem(sys.modules, name, own)
