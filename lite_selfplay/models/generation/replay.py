"""Repeating a step that is always the same: by its Python code, or as a CUDA graph."""

import contextlib
from collections.abc import Callable, Hashable
from typing import Any

import torch

from lite_selfplay.models.generation.sampling import Decoding

Step = Callable[[], None]


class Graphs:
    """Steps by key: the first run is plain, the second is recorded, later ones replay it. Graphs hold tensors by
    address and must be dropped with them."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Step | None] = {}
        self._pool: Any = None

    def run(self, decoding: Decoding, key: Hashable, step: Step) -> None:
        """Run a step whose tensors all follow from `key`."""
        if not records(decoding):
            step()
            return
        if key not in self._known:
            self._known[key] = None
            _aside(decoding, step)
            return
        # Recording runs nothing, so the recorded step is replayed at once.
        replay = self._known[key] = self._known[key] or self._capture(decoding, step)
        (replay or step)()

    def _capture(self, decoding: Decoding, step: Step) -> Step | None:
        """A step as a CUDA graph; None if recording fails, and from then on none is tried."""
        try:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            _aside(decoding, lambda: _record(graph, self._pool, step))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            why = " ".join(str(error).split())[:200]
            decoding.refusals.append(why)
            decoding.warn(f"sampling continues without CUDA graphs, more slowly: {why}")
            return None
        return graph.replay


def records(decoding: Decoding) -> bool:
    """Whether steps are recorded: on a GPU, until a recording fails."""
    return decoding.loop == "graphs" and decoding.device.type == "cuda" and not decoding.refusals and graphs_are_there()


def _aside(decoding: Decoding, step: Step) -> None:
    """Run a step on the recording stream, so that libraries set up there what must not be recorded."""
    kept, before = decoding.kept, torch.cuda.current_stream()
    kept.stream = kept.stream or torch.cuda.Stream()
    kept.stream.wait_stream(before)
    # torch's own `graph` context stays on its stream if recording fails.
    with torch.cuda.stream(kept.stream):
        step()
    before.wait_stream(kept.stream)


def _record(graph: Any, pool: Any, step: Step) -> None:
    """Record a step. Other threads, such as those that check answers, may use the GPU meanwhile."""
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        step()
    except BaseException:
        with contextlib.suppress(RuntimeError):  # would hide the first error, such as out of memory
            graph.capture_end()
        raise
    graph.capture_end()


def graphs_are_there() -> bool:
    """Whether this torch has CUDA graphs: builds for CPUs only have the names."""
    try:
        torch.cuda.CUDAGraph()
    except RuntimeError:
        return False
    return True
