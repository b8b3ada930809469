"""The pretend GPUs, and the memory of one."""

import threading
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

GIB = 2**30
_BLOCK, _SEGMENT = 512, 2**21
"""Bytes to which CUDA's allocator rounds a tensor up, and bytes of an allocation from the GPU."""


@dataclass(frozen=True)
class Model:
    """A GPU by its data sheet: usable memory in bytes, compute capability, multiprocessors."""

    name: str
    memory: int
    capability: tuple[int, int]
    multiprocessors: int

    @property
    def bf16(self) -> bool:
        """Whether the GPU multiplies in bfloat16."""
        return self.capability >= (8, 0)


T4 = Model("Tesla T4", int(14.6 * GIB), (7, 5), 40)
RTX_4090 = Model("NVIDIA GeForce RTX 4090", int(23.5 * GIB), (8, 9), 128)
PROFILES = {"t4": T4, "4090": RTX_4090}


class Memory:
    """Bytes of the storages of GPU tensors, rounded as CUDA's allocator rounds.

    Not included: workspaces of libraries, memory inside kernels, and gaps between blocks.
    """

    def __init__(self, model: Model):
        self.model, self.fraction = model, 1.0
        self.allocated = self.peak = self.reserved = self.peak_reserved = 0
        self._known: set[int] = set()
        self._lock = threading.RLock()

    def take(self, inner: Tensor) -> None:
        """Count a tensor's storage, once, until it is freed. Raises torch.OutOfMemoryError if it does not fit."""
        storage = inner.untyped_storage()
        key = storage._cdata
        with self._lock:
            if key in self._known:
                return
            size = -(-storage.nbytes() // _BLOCK) * _BLOCK
            if self.allocated + size > int(self.model.memory * self.fraction):
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. GPU 0 has a total capacity of "
                    f"{self.model.memory / GIB:.2f} GiB (pretend GPU: {self.allocated / GIB:.2f} GiB allocated)."
                )
            self._known.add(key)
            self.allocated += size
            self.peak = max(self.peak, self.allocated)
            self.reserved = max(self.reserved, _segments(self.allocated))
            self.peak_reserved = max(self.peak_reserved, self.reserved)
        weakref.finalize(storage, self._give, key, size).atexit = False

    def _give(self, key: int, size: int) -> None:
        with self._lock:
            self._known.discard(key)
            self.allocated -= size

    def empty_cache(self) -> None:
        """Keep only the memory in use."""
        self.reserved = _segments(self.allocated)

    def reset_peak(self) -> None:
        self.peak, self.peak_reserved = self.allocated, self.reserved


def _segments(size: int) -> int:
    return -(-size // _SEGMENT) * _SEGMENT
