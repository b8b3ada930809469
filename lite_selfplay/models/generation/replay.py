"""How a step that is always the same is run again: by its Python code, as a CUDA graph, or with the model compiled."""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import nn

from lite_selfplay.models.generation.sampling import Decoding

Step = Callable[[], None]


class Steps:
    """The steps of a batch. Graphs hold its tensors by their addresses, and go with it."""

    def __init__(self, decoding: Decoding):
        self.decoding = decoding
        self._known: dict[Hashable, Step] = {}
        self._pool: Any = None
        self._compiled: Any = None

    @property
    def graphs(self) -> bool:
        """Whether steps are recorded: on a card, as long as none could not be."""
        decoding = self.decoding
        wished = decoding.loop in ("graphs", "compiled") and decoding.device.type == "cuda"
        return wished and not decoding.refusals and graphs_are_there()

    def of(self, shape: Hashable, step: Step) -> Step:
        """What to call instead of `step`, whose tensors all follow from `shape`."""
        if shape not in self._known:
            self._known[shape] = Replayed(step, self._aside, self._capture) if self.graphs else step
        return self._known[shape]

    def forget(self) -> None:
        """Let go of the steps, and of the batch that they hold, whose memory is wanted at once."""
        self._known.clear()

    def model(self, model: nn.Module) -> Any:
        """What to call instead of a model: the same, or compiled."""
        if self.decoding.loop != "compiled":
            return model
        if self._compiled is None:
            base: Any = getattr(model, "get_base_model", lambda: model)()
            self._compiled = torch.compile(base)
        return self._compiled

    def _capture(self, step: Step) -> Step | None:
        """A step as a CUDA graph; None where it cannot be one, and from then on none is tried."""
        if not self.graphs:
            return None
        try:
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            self._aside(lambda: _record(graph, self._pool, step))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            why = " ".join(str(error).split())[:200]
            self.decoding.refusals.append(why)
            self.decoding.warn(f"sampling goes on without CUDA graphs, more slowly: {why}")
            return None
        replay: Step = graph.replay
        return replay

    def _aside(self, step: Step) -> None:
        """Run a step on the stream for recordings: libraries set up for it what must not be recorded."""
        kept, before = self.decoding.kept, torch.cuda.current_stream()
        kept.stream = kept.stream or torch.cuda.Stream()
        kept.stream.wait_stream(before)
        # Not torch's `graph`, which leaves its stream in place where a recording fails.
        with torch.cuda.stream(kept.stream):
            step()
        before.wait_stream(kept.stream)


class Replayed:
    """A step that is run as it is the first time, recorded the second, and only replayed from then on."""

    def __init__(self, step: Step, aside: Callable[[Step], None], capture: Callable[[Step], Step | None]):
        self._step, self._aside, self._capture = step, aside, capture
        self._runs = 0
        self._replay: Step | None = None

    def __call__(self) -> None:
        self._runs += 1
        if self._runs == 1:
            self._aside(self._step)
            return
        if self._runs == 2:
            # Recording runs nothing: the recorded step is replayed like those after it.
            self._replay = self._capture(self._step)
        (self._replay or self._step)()


def _record(graph: Any, pool: Any, step: Step) -> None:
    """Other threads, such as those that check answers, may go on using the card meanwhile."""
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        step()
    finally:
        graph.capture_end()


def graphs_are_there() -> bool:
    """Whether this torch has CUDA graphs: one that is built for CPUs has a name for them alone."""
    try:
        torch.cuda.CUDAGraph()
    except RuntimeError:
        return False
    return True
