"""How a step that is always the same is run again: by its Python code, or as a CUDA graph."""

import contextlib
from collections.abc import Callable, Hashable
from typing import Any

import torch

from lite_selfplay.models.generation.sampling import Decoding

Step = Callable[[], None]


class Graphs:
    """Steps by what their tensors follow from: each runs as it is the first time, is recorded the second, and only
    replayed from then on. Graphs hold tensors by their addresses, and go with them."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Step | None] = {}
        self._pool: Any = None

    def run(self, decoding: Decoding, key: Hashable, step: Step) -> None:
        """Run a step, whose tensors all follow from `key`."""
        if not records(decoding):
            step()
            return
        if key not in self._known:
            self._known[key] = None
            _aside(decoding, step)
            return
        # Recording runs nothing: the recorded step is replayed like those after it.
        replay = self._known[key] = self._known[key] or self._capture(decoding, step)
        (replay or step)()

    def forget(self) -> None:
        self._known.clear()

    def _capture(self, decoding: Decoding, step: Step) -> Step | None:
        """A step as a CUDA graph; None where it cannot be one, and from then on none is tried."""
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
            decoding.warn(f"sampling goes on without CUDA graphs, more slowly: {why}")
            return None
        return graph.replay


def records(decoding: Decoding) -> bool:
    """Whether steps are recorded: on a card, as long as none could not be."""
    wished = decoding.loop == "graphs" and decoding.device.type == "cuda"
    return wished and not decoding.refusals and graphs_are_there()


def _aside(decoding: Decoding, step: Step) -> None:
    """Run a step on the stream for recordings: libraries set up for it what must not be recorded."""
    kept, before = decoding.kept, torch.cuda.current_stream()
    kept.stream = kept.stream or torch.cuda.Stream()
    kept.stream.wait_stream(before)
    # Not torch's `graph`, which leaves its stream in place where a recording fails.
    with torch.cuda.stream(kept.stream):
        step()
    before.wait_stream(kept.stream)


def _record(graph: Any, pool: Any, step: Step) -> None:
    """Other threads, such as those that check answers, may go on using the card meanwhile."""
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        step()
    except BaseException:
        with contextlib.suppress(RuntimeError):  # which would hide what went wrong, such as memory that ran out
            graph.capture_end()
        raise
    graph.capture_end()


def graphs_are_there() -> bool:
    """Whether this torch has CUDA graphs: one that is built for CPUs has a name for them alone."""
    try:
        torch.cuda.CUDAGraph()
    except RuntimeError:
        return False
    return True
