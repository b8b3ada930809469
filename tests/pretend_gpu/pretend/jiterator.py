"""torch's kernels for one number each, compiled from C++ on a GPU: here their C++ is run as Python, in float32."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .tensors import inside, is_card, wrap


def launch(
    card: Any, code: str, name: str, by_reference: bool, outputs: int, tensors: Sequence[Tensor], more: Any
) -> Any:
    """`torch._C._cuda_jiterator_compile_and_launch_kernel` for a function of assignments and one `return`."""
    if not all(map(is_card, tensors)):
        raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices")
    match = re.fullmatch(rf"template <typename T> \w+ {name}\((.*?)\) \{{(.*)\}}\s*", code, re.DOTALL)
    if match is None or more:
        raise RuntimeError(f"not a function that this pretend GPU can read: {code}")
    names = [parameter.split()[-1] for parameter in match[1].split(",")]
    values: dict[str, Any] = {"exp": torch.exp}
    values |= zip(names[: len(tensors)], (inside(x).float() for x in tensors), strict=True)
    try:
        for statement in filter(None, map(str.strip, match[2].split(";"))):
            exec(re.sub(r"^(T |return )", lambda found: "" if found[1] == "T " else "result = ", statement), values)
    except (SyntaxError, NameError) as error:
        raise RuntimeError(f"not compiled: {error}") from error
    found = [values[one].to(tensors[0].dtype) for one in (names[len(tensors) :] if by_reference else ["result"])]
    assert len(found) == outputs
    card.count(name, given=tensors, made=found)
    for one in found:
        card.memory.take(one)
    return tuple(map(wrap, found)) if by_reference else wrap(found[0])
