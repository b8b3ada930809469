"""GPU tensors: a wrapper without memory whose device is `cuda:0`, over a CPU tensor with the numbers.

The wrapper is made `torch.Tensor` again by its `__class__`, so that whatever asks for exact types (foreach optimizers,
`nn.Parameter`) takes the way it takes on a GPU. `PATCHES` are the methods that look at a tensor's own memory.
"""

import functools
import weakref
from typing import Any

import torch
from torch import Tensor

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


class _Wrapper(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"a tensor of a pretend GPU is used where there is no GPU any more: {func}")


def wrap(inner: Tensor) -> Tensor:
    """A GPU tensor over a CPU tensor."""
    card: Any = torch.Tensor._make_wrapper_subclass(
        _Wrapper,
        inner.size(),
        strides=inner.stride(),
        storage_offset=inner.storage_offset(),
        dtype=inner.dtype,
        layout=inner.layout,
        device=CUDA,
    )
    card.__class__ = torch.Tensor
    card._card = inner
    return card


def is_card(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_cuda


def inside(x: Any) -> Tensor:
    """The CPU tensor of a GPU tensor: the same memory, for reading without a counted copy."""
    return x._card


_PINNED: set[int] = set()
"""Storages, by address, from which a GPU copies while the host continues."""


def pinned(x: Tensor) -> Tensor:
    """Mark a CPU tensor's memory as pinned."""
    storage = x.untyped_storage()
    _PINNED.add(storage._cdata)
    weakref.finalize(storage, _PINNED.discard, storage._cdata).atexit = False
    return x


def is_pinned(x: Tensor) -> bool:
    return not x.is_cuda and x.untyped_storage()._cdata in _PINNED


# Methods of torch.Tensor

_DATA: Any = torch._C.TensorBase.data
_SUBCLASS = torch.Tensor._make_subclass


def set_data(self: Any, value: Tensor) -> None:
    """`self.data = value`, which may change the device in torch."""
    if self.is_cuda == value.is_cuda:
        _DATA.__set__(self, value)
        if self.is_cuda:
            self._card = inside(value)
        return
    fresh, grad = value.detach().requires_grad_(self.requires_grad), self.grad
    torch._C._swap_tensor_impl(self, fresh)
    self.__dict__.pop("_card", None)
    if value.is_cuda:
        self._card = inside(value)
    if grad is not None:
        self.grad = grad.to(value.device)


def _make_subclass(cls: type, data: Tensor, require_grad: bool = False, **options: Any) -> Tensor:
    if not is_card(data):
        return _SUBCLASS(cls, data, require_grad, **options)
    found = data.detach()
    found.__class__ = cls
    return found.requires_grad_(require_grad)


def _deepcopy(self: Tensor, memo: dict[int, Any], plain: Any = torch.Tensor.__deepcopy__) -> Any:
    if not is_card(self):
        return plain(self, memo)
    if id(self) not in memo:
        found = self.detach().clone()
        found.__class__ = type(self)
        memo[id(self)] = found.requires_grad_(self.requires_grad)
    return memo[id(self)]


def _repr(self: Tensor, *, plain: Any = torch.Tensor.__repr__, **options: Any) -> str:
    if not is_card(self):
        return str(plain(self, **options))
    text = plain(inside(self), **options)
    return f"{text[:-1]}, device='cuda:0'{', requires_grad=True' if self.requires_grad else ''})"


def _tolist(self: Tensor, plain: Any = torch.Tensor.tolist) -> Any:
    return plain(self.cpu() if is_card(self) else self)


def _numpy(self: Tensor, *args: Any, plain: Any = torch.Tensor.numpy, **options: Any) -> Any:
    if is_card(self):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
            "first."
        )
    return plain(self, *args, **options)


def _of_the_inside(function: Any) -> Any:
    return functools.wraps(function)(lambda x: function(inside(x) if is_card(x) else x))


PATCHES: dict[str, Any] = {
    "data": property(_DATA.__get__, set_data),
    "_make_subclass": staticmethod(_make_subclass),
    "__deepcopy__": _deepcopy,
    "__repr__": _repr,
    "tolist": _tolist,
    "numpy": _numpy,
    "pin_memory": lambda x, device=None: pinned(x.clone()),
    "is_pinned": lambda x, device=None: is_pinned(x),
    **{
        name: _of_the_inside(getattr(torch.Tensor, name))
        for name in ("data_ptr", "untyped_storage", "storage", "_typed_storage")
    },
}


# Generators

_ON_THE_CARD: set[int] = set()
"""The GPU's generators by address: operations receive another Python object."""


class Generator(torch.Generator):
    """A replacement for `torch.Generator` that knows its device."""

    def __new__(cls, device: Any = "cpu") -> Any:
        self = super().__new__(cls, "cpu")
        if torch.device(device).type == "cuda":
            _ON_THE_CARD.add(self._cdata)
            weakref.finalize(self, _ON_THE_CARD.discard, self._cdata).atexit = False
        return self

    @property
    def device(self) -> torch.device:
        return CUDA if generates_on_card(self) else CPU


def generates_on_card(generator: Any) -> bool:
    return generator._cdata in _ON_THE_CARD
