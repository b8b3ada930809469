"""A pretend CUDA GPU: code that asks for `cuda` runs on a CPU build of torch, with real numbers.

    from tests.pretend_gpu import pretend             # before the first backward pass of the process

    with pretend.card(pretend.T4) as card:     # or, for a whole run of tests: pytest --pretend-gpu t4 tests/models
        x = torch.ones(3, device="cuda")       # x.is_cuda, type(x) is torch.Tensor; its numbers lie on the CPU
        x + torch.ones(3)                      # RuntimeError: Expected all tensors to be on the same device ...
        with card.watch() as seen:
            x.sum().item()
        seen.launches, seen.waits              # 2 kernels, and where the host waited

What it shows: which way code takes where there is a GPU, tensors on the wrong device, precisions and types, memory
that runs out (the bytes of all tensors), how many kernels are launched, and where the host waits.

What it cannot show: time; the numbers of CUDA's own kernels, which round otherwise; what goes wrong within a kernel or
between streams; the memory of workspaces and gaps; what norms keep for the backward pass, to autograd's hooks;
processes that a program starts, which have no GPU; and what is not torch (vLLM, Triton, bitsandbytes' CUDA library,
whose operators run here as they do on a CPU). A kernel is counted for every operation that is not a view; a GPU may
take none or several for it. No figure from here is one of a GPU. Work takes several times as long as on the CPU alone.
"""

import contextlib
import functools
import sys
import threading
import types
import warnings
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, library

from .counting import Seen, Wait, places
from .engine import ENGINE
from .jiterator import launch
from .models import GIB, PROFILES, RTX_4090, T4, Memory, Model
from .operations import Operations, attention, rms_norm
from .tensors import CPU, PATCHES, Generator, inside, is_card
from .torch_cuda import functions

__all__ = ["GIB", "PROFILES", "RTX_4090", "T4", "Card", "Model", "Seen", "Wait", "card", "inside", "is_card"]


class Card:
    """The GPU inside a `card` context."""

    def __init__(self, model: Model, package: str, *, numbers: bool):
        self.model, self.package, self.numbers = model, package, numbers
        self.host = CPU if numbers else torch.device("meta")
        self.memory = Memory(model)
        self.generator = torch.Generator()
        self._watching: list[Seen] = []
        self._lock = threading.Lock()

    @property
    def watched(self) -> bool:
        return bool(self._watching)

    @contextlib.contextmanager
    def watch(self, *, with_operations: bool = False) -> Iterator[Seen]:
        """Count kernels and waits inside; may be nested. `with_operations` also keeps every kernel in order."""
        seen = Seen(with_operations)
        self._watching.append(seen)
        try:
            yield seen
        finally:
            self._watching.remove(seen)

    def count(self, name: str, kernels: int = 1, given: Sequence[Tensor] = (), made: Sequence[Tensor] = ()) -> None:
        """Record an operation's kernels, its arguments and its results."""
        with self._lock:
            for seen in self._watching:
                seen.kernels[name] += kernels
                if seen.with_operations:
                    seen.operations.append((name, tuple(tuple(x.shape) for x in given)))
                    seen.sizes.append(sum(x.numel() * x.element_size() for x in (*given, *made)))

    def wait(self, kind: str, name: str) -> None:
        """Record that the host waited."""
        if self._watching:
            found = Wait(kind, name, *places(self.package))
            with self._lock:
                for seen in self._watching:
                    seen.waits[found] += 1

    @contextlib.contextmanager
    def randomness(self) -> Iterator[None]:
        """The GPU's own generator in place of the CPU's."""
        own = torch.default_generator.get_state()
        torch.default_generator.set_state(self.generator.get_state())
        try:
            yield
        finally:
            self.generator.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(own)


_one_at_a_time = threading.Lock()


@contextlib.contextmanager
def card(model: Model = RTX_4090, package: str = "lite_selfplay", *, numbers: bool = True) -> Iterator[Card]:
    """A context with a GPU in the machine; tensors on it do not outlive it.

    `package` is the one whose lines are reported for waits. Without `numbers` tensors have only sizes, so that large
    models take seconds: the host reads zeros, and True of booleans. Raises RuntimeError if torch is built for CUDA, or
    if there already is a GPU.
    """
    if ENGINE is None:
        raise RuntimeError("this torch is built for CUDA: a pretend GPU needs a build for CPUs")
    if not _one_at_a_time.acquire(blocking=False):
        raise RuntimeError("there is a card already")
    found = Card(model, package, numbers=numbers)
    with contextlib.ExitStack() as stack:
        stack.callback(_one_at_a_time.release)
        with contextlib.suppress(ImportError):  # looks for a GPU when imported, and for its own library for one
            import bitsandbytes  # noqa: F401
        stack.callback(_forget_the_device)
        aten = library.Library("aten", "IMPL")
        stack.callback(aten._destroy)
        stack.enter_context(ENGINE.believing())
        _patch(found, stack)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            aten.impl("scaled_dot_product_attention", functools.partial(attention, found), "AutogradCUDA")
            aten.impl("_fused_rms_norm", functools.partial(rms_norm, found), "AutogradCUDA")
        _forget_the_device()
        stack.enter_context(Operations(found))
        yield found


def _patch(found: Card, stack: contextlib.ExitStack) -> None:
    lift = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor(list, device="cuda")` copies, as it does on a GPU
    stack.callback(torch._C._set_only_lift_cpu_tensors, lift)
    for name, value in functions(found).items():
        for module in (torch.cuda, torch.cuda.memory, torch.cuda.random):
            if module is torch.cuda or hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, value, create=True))
    for name, value in PATCHES.items():
        stack.enter_context(mock.patch.object(torch.Tensor, name, value, create=True))
    for where, name, value in (
        (torch, "Generator", Generator),
        (threading.Thread, "_bootstrap_inner", _in_every_thread(found)),
        (torch.version, "cuda", "12.8"),
        (torch._C, "_cuda_jiterator_compile_and_launch_kernel", functools.partial(launch, found)),
        (torch.backends.cuda, "is_built", lambda: True),
    ):
        stack.enter_context(mock.patch.object(where, name, value, create=True))


def _in_every_thread(found: Card, plain: Any = threading.Thread._bootstrap_inner) -> Any:  # type: ignore[attr-defined]
    """Modes belong to a thread, so new threads get it, too, such as those of transformers that load weights."""

    def start(self: threading.Thread) -> None:
        with Operations(found):
            plain(self)

    return start


def _forget_the_device() -> None:
    """Clear what accelerate and transformers cached about the machine."""
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()
    for name in ("transformers.utils.import_utils", "transformers.training_args", "accelerate.utils.imports"):
        for function in vars(sys.modules.get(name, types)).values():
            if hasattr(function, "cache_clear"):
                function.cache_clear()
