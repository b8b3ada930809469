"""Layers that are computed again in the backward pass, without their matrix products.

Gradient checkpointing keeps a layer's input and computes everything after it a second time. Most of that time goes into
products, most of the memory into what lies between them: norms, activations, rotated and repeated heads. So what the
products and attention came to is kept from the forward pass, and only the rest is computed again. Gradients are the
same, bit by bit.
"""

from contextlib import AbstractContextManager

from torch import Tensor


class _Layer:
    """What was computed in one pass over a layer, in its order, for the pass that computes it again."""

    def __init__(self) -> None:
        self.again = False
        self.results: list[list[tuple[Tensor, int]]] = []

    def keep(self, *results: Tensor) -> None:
        if not self.again:
            self.results.append([(one.detach(), one._version) for one in results])

    def next(self) -> list[Tensor] | None:
        if not self.again or not self.results:
            return None
        results = self.results.pop(0)
        # Whoever changed one in place left nothing to be used again.
        return [one for one, _ in results] if all(one._version == version for one, version in results) else None


_layer: _Layer | None = None
"""The layer that is being passed, where it keeps results."""


class _Pass(AbstractContextManager[None]):
    """The first pass over a layer, or one that computes it again, of which there may be several. The first of these
    uses up the results, and the others compute everything."""

    def __init__(self, layer: _Layer, *, again: bool):
        self._layer, self._again = layer, again
        self._before: _Layer | None = None

    def __enter__(self) -> None:
        global _layer
        self._before, _layer = _layer, self._layer
        self._layer.again = self._again

    def __exit__(self, *error: object) -> None:
        global _layer
        _layer = self._before
        if self._again:
            self._layer.results.clear()


def keeping_products() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """What surrounds a layer's forward pass, and what surrounds it when it is computed again: the `context_fn` of
    `torch.utils.checkpoint.checkpoint`."""
    layer = _Layer()
    return _Pass(layer, again=False), _Pass(layer, again=True)


def keep(*results: Tensor) -> None:
    """Keep what a product came to, where its layer is to be computed again."""
    if _layer is not None:
        _layer.keep(*results)


def kept() -> list[Tensor] | None:
    """What the next product came to when its layer was computed before; None where it is to be computed."""
    return _layer.next() if _layer is not None else None
