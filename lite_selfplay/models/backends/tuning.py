"""Process settings for a base on a CPU: glibc keeps freed memory, and the caches of compiled matrix products are small.

Both only affect speed and memory, not results. The C library's settings end with the backend that asked for them; the
environment is restored at once, so that child processes inherit nothing.
"""

import contextlib
import ctypes
import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

# Of glibc's `mallopt`.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# Larger tensors get their own mapping, which goes back to the system when freed. Smaller ones share the heap, where
# freed memory is kept but leaves gaps that other sizes do not fit. During sampling few tensors are large, and those
# (expanded weights, keys and values) live long.
_LARGE, _LARGE_IF_TIDY, _LARGE_WHILE_SAMPLING = 2**30, 10 * 2**20, 2**20
_PAGE = 4096
# Of both, in bytes. glibc raises them by itself until the first call of `mallopt`.
_DEFAULT = 128 * 1024
# Compiled products, of one shape each, that oneDNN and torch each cache on a CPU. Their default of 1,024 takes hundreds
# of MB if every batch has another shape.
_PRODUCTS = "64"
_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")

# Backends for which freed memory is kept.
_asking = 0


def tune(owner: Any, dtype: torch.dtype, *, tidy: bool = False) -> Callable[[], object]:
    """Tune the process for the lifetime of an object; the returned call ends that early. `tidy` keeps less freed
    memory, for a base so large that its activations are recomputed."""
    global _asking
    _limit_products(dtype)
    keep_what_is_freed(_LARGE_IF_TIDY if tidy else _LARGE)
    _asking += 1
    return weakref.finalize(owner, _end)


def _end() -> None:
    global _asking
    _asking -= 1
    if _asking == 0:
        _from_glibc("mallopt")(_MMAP_THRESHOLD, _DEFAULT)
        _from_glibc("mallopt")(_TRIM_THRESHOLD, _DEFAULT)
        trim_heap()


def keep_what_is_freed(large: int = _LARGE) -> None:
    """Let glibc keep freed memory of tensors below `large` bytes for the next one until `trim_heap`, instead of
    returning and requesting it page by page. Does nothing elsewhere."""
    _from_glibc("mallopt")(_MMAP_THRESHOLD, large)
    _from_glibc("mallopt")(_TRIM_THRESHOLD, -1)


@contextlib.contextmanager
def sampling(expanded: int = 0) -> Iterator[None]:
    """A context for a `tidy` base that samples: the heap begins without gaps, and long-lived tensors make no new ones.
    `expanded` bytes are freed and requested at every token: the largest weight that is expanded there."""
    trim_heap()
    keep_what_is_freed(max(_LARGE_WHILE_SAMPLING, expanded + _PAGE))
    try:
        yield
    finally:
        keep_what_is_freed(_LARGE_IF_TIDY)


def trim_heap() -> None:
    """Let glibc return freed memory to the system, for others. Does nothing elsewhere."""
    _from_glibc("malloc_trim")(0)


def _limit_products(dtype: torch.dtype) -> None:
    """Bound the caches of compiled products, unless the environment does: both bounds are read from it at oneDNN's
    first product, and never again."""
    missing = [name for name in _CACHES if name not in os.environ]
    os.environ.update(dict.fromkeys(missing, _PRODUCTS))
    try:
        square = torch.ones(128, 128, dtype=dtype)
        torch.nn.functional.linear(square, square)
    finally:
        for name in missing:
            del os.environ[name]


@functools.cache
def _from_glibc(name: str) -> Callable[..., object]:
    """A function of glibc, or elsewhere one that does nothing."""
    own = getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
    return own or (lambda *_: None)
