"""Transfers between host and GPU: many numbers at once, without needless waits.

A copy from ordinary memory makes the host wait until the GPU has finished all earlier work; one from pinned memory does
not, and torch keeps that memory until the copy is done.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def placed(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers of the host (nested lists or a CPU tensor) as a tensor on a device."""
    found = values if isinstance(values, Tensor) else torch.tensor(values, dtype=dtype)
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found.to(device)


def to_lists(tensors: Sequence[Tensor]) -> list[list[float]]:
    """The numbers in each of several float tensors, with a single wait for the GPU."""
    if not tensors:
        return []
    whole = torch.cat([tensor.detach().flatten().float() for tensor in tensors]).cpu()
    return [part.tolist() for part in whole.split([tensor.numel() for tensor in tensors])]


def on_host(tensors: Mapping[str, Tensor], *, wait: bool = True) -> dict[str, Tensor]:
    """Copies of named tensors on the CPU, from a GPU in one transfer per type. Without `wait` they are complete only
    after the GPU is synchronised."""
    result: dict[str, Tensor] = {}
    by_kind: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, tensor in tensors.items():
        by_kind.setdefault((tensor.device, tensor.dtype), []).append(name)
    for (device, dtype), names in by_kind.items():
        if device.type != "cuda":
            result |= {name: tensors[name].detach().to("cpu", copy=True).contiguous() for name in names}
            continue
        whole = torch.cat([tensors[name].detach().flatten() for name in names])
        host = torch.empty(len(whole), dtype=dtype, pin_memory=not wait).copy_(whole, non_blocking=not wait)
        for name, part in zip(names, host.split([tensors[name].numel() for name in names]), strict=True):
            result[name] = part.view(tensors[name].shape)
    return {name: result[name] for name in tensors}
