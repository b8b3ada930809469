"""CUDA graphs for the pretend GPU: what was recorded is run again, on the same memory, without the Python code.

As on a GPU, recording runs nothing for good (what was written is put back), refuses whatever a stream cannot record (a
copy to or from the host, a number or a shape that the host asks for), and a replay reads and writes the tensors that
were there at the recording. What it cannot show: streams, CUDA's own reasons to refuse, and time.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from tests.pretend_gpu.pretend import Card, Seen, inside


class RecordedGraph:
    """A replacement for `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.replays = 0
        self._ends: Any = None
        self._recording: Any = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        self._ends = contextlib.ExitStack()
        seen = self._ends.enter_context(_cards[-1].watch())
        self._recording = self._ends.enter_context(_Recording(self, seen))

    def capture_end(self) -> None:
        self._ends.close()
        recording, self._recording, self._ends = self._recording, None, None
        with torch.inference_mode():
            recording.undo()
        if recording.refused:
            raise RuntimeError(f"CUDA error: operation failed due to a previous error during capture ({REFUSED})")
        _made[-1].append(self)

    def replay(self) -> None:
        self.replays += 1
        # What was recorded lies below autocast, which would change it again.
        with torch.inference_mode(), torch.autocast("cuda", enabled=False):
            for function, args, kwargs, outs in self.operations:
                again = [x for x in tree_flatten(function(*args, **kwargs))[0] if isinstance(x, Tensor)]
                for old, new in zip(outs, again, strict=True):
                    if inside(old).data_ptr() != inside(new).data_ptr():  # not a view, and not written in place
                        inside(old).copy_(inside(new))


REFUSED = "operation not permitted when stream is capturing"
_cards: list[Card] = []
_made: list[list[RecordedGraph]] = []


class _Recording(TorchDispatchMode):
    def __init__(self, graph: RecordedGraph, seen: Seen):
        super().__init__()
        self._graph, self._seen, self.refused = graph, seen, False
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for argument, given in zip(function._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(given, Tensor):
                self._keep(inside(given))
        out = function(*args, **kwargs)
        if self._seen.syncs:
            self.refused = True
            raise RuntimeError(f"CUDA error: {REFUSED} ({function})")
        outs = [x for x in tree_flatten(out)[0] if isinstance(x, Tensor)]
        self._graph.operations.append((function, args, kwargs, outs))
        return out

    def _keep(self, written: Tensor) -> None:
        storage = written.untyped_storage()
        if storage.data_ptr() not in self._before:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._before[storage.data_ptr()] = whole, whole.clone()

    def undo(self) -> None:
        for whole, before in self._before.values():
            whole.copy_(before)


@contextlib.contextmanager
def graphs_on_the_card(card: Card) -> Iterator[list[RecordedGraph]]:
    """A context in which the pretend GPU has CUDA graphs; the list has those that were recorded."""
    _cards.append(card)
    _made.append([])
    try:
        with (
            mock.patch.object(torch.cuda, "CUDAGraph", RecordedGraph),
            mock.patch.object(torch.cuda, "graph_pool_handle", return_value=(0, 0), create=True),
        ):
            yield _made[-1]
    finally:
        _cards.pop()
        _made.pop()
