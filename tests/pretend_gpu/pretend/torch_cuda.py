"""The parts of `torch.cuda` that programs use, such as the current stream; streams run everything at once."""

import contextlib
import time
import types
from typing import Any

import torch

from .tensors import CUDA


class _Device(contextlib.AbstractContextManager[None]):
    """`torch.cuda.device`: there is one."""

    def __init__(self, device: Any = None):
        self.idx, self.prev_idx = 0, 0

    def __exit__(self, *_: Any) -> None:
        return None


class _Stream:
    """A stream or an event."""

    device, cuda_stream, stream_id = CUDA, 0, 0

    def __init__(self, *_: Any, **__: Any):
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, other: "_Stream") -> float:
        return 1000 * (other.at - self.at)

    def query(self) -> bool:
        return True

    wait_stream = wait_event = wait = record

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: Any) -> None:
        return None


def _always(value: Any) -> Any:
    return lambda *_, **__: value


def functions(card: Any) -> dict[str, Any]:
    """Replacements for `torch.cuda`'s functions and classes, by name."""
    return {**_about(card.model), **_work(card), **_memory(card), **_randomness(card.generator)}


def _about(model: Any) -> dict[str, Any]:
    properties = types.SimpleNamespace(
        name=model.name,
        major=model.capability[0],
        minor=model.capability[1],
        total_memory=model.memory,
        multi_processor_count=model.multiprocessors,
        warp_size=32,
        is_integrated=False,
        gcnArchName="",
    )
    return {
        **dict.fromkeys(("is_available", "is_initialized", "_is_compiled"), _always(True)),
        **dict.fromkeys(("_nvml_based_avail", "can_device_access_peer"), _always(False)),
        **dict.fromkeys(("init", "_lazy_init", "set_device"), _always(None)),
        **dict.fromkeys(("device_count", "_device_count_nvml"), _always(1)),
        "_lazy_call": lambda call, **_: call(),
        "current_device": _always(0),
        "get_device_name": _always(model.name),
        "get_device_properties": _always(properties),
        "get_device_capability": _always(model.capability),
        "get_arch_list": _always([f"sm_{model.capability[0]}{model.capability[1]}"]),
        "is_bf16_supported": lambda including_emulation=True: model.bf16 or including_emulation,
        "is_tf32_supported": _always(model.bf16),
    }


def _work(card: Any) -> dict[str, Any]:
    class Stream(_Stream):
        def synchronize(self) -> None:
            card.wait("read", "synchronize")

    current = [Stream()]

    class Within(contextlib.AbstractContextManager[None]):
        def __init__(self, stream: Any):
            self.stream = stream

        def __enter__(self) -> None:
            current.append(self.stream)

        def __exit__(self, *_: Any) -> None:
            current.pop()

    return {
        "synchronize": lambda *_: card.wait("read", "synchronize"),
        "is_current_stream_capturing": _always(False),
        **dict.fromkeys(("ipc_collect", "set_stream"), _always(None)),
        **dict.fromkeys(("device", "device_of", "_DeviceGuard"), _Device),
        **dict.fromkeys(("Stream", "Event"), Stream),
        "stream": Within,
        "current_stream": lambda *_: current[-1],
        "default_stream": lambda *_: Stream(),
    }


def _memory(card: Any) -> dict[str, Any]:
    model, memory = card.model, card.memory

    def empty_cache() -> None:
        card.wait("read", "empty_cache")  # memory is given back when the GPU is done with it
        memory.empty_cache()

    def stats(device: Any = None) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": memory.allocated,
            "allocated_bytes.all.peak": memory.peak,
            "reserved_bytes.all.current": memory.reserved,
            "reserved_bytes.all.peak": memory.peak_reserved,
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }

    return {
        "mem_get_info": lambda *_: (int(model.memory * memory.fraction) - memory.reserved, model.memory),
        "memory_allocated": lambda *_: memory.allocated,
        "max_memory_allocated": lambda *_: memory.peak,
        "memory_reserved": lambda *_: memory.reserved,
        "max_memory_reserved": lambda *_: memory.peak_reserved,
        **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated"), lambda *_: memory.reset_peak()),
        "empty_cache": empty_cache,
        "memory_stats": stats,
        "set_per_process_memory_fraction": lambda share, *_: setattr(memory, "fraction", share),
        "get_per_process_memory_fraction": lambda *_: memory.fraction,
    }


def _randomness(generator: torch.Generator) -> dict[str, Any]:
    return {
        **dict.fromkeys(("manual_seed", "manual_seed_all"), lambda seed: generator.manual_seed(int(seed))),
        "initial_seed": generator.initial_seed,
        "get_rng_state": lambda *_: generator.get_state(),
        "get_rng_state_all": lambda: [generator.get_state()],
        "set_rng_state": lambda state, *_: generator.set_state(state),
        "set_rng_state_all": lambda states: generator.set_state(states[0]),
        "default_generators": (generator,),
    }
