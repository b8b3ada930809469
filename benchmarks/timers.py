"""Where a step's time goes: timers around the functions that a step calls, attached from outside.

Time belongs to the innermost running timer; everything inside a backward pass (which repeats parts of the forward pass)
belongs to the backward pass.
"""

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

READING, FORWARD, SAMPLING = "prompt reading", "generation forward", "sampling"
CACHE, DENSE = "moving the cache", "expanding weights"
UPDATE, LOGPROBS, BACKWARD, OPTIMIZER = "update forward", "log-probabilities", "update backward", "optimizer"
CHECKING, ARRANGING = "verification", "own Python, generating"
PARTS = (READING, FORWARD, SAMPLING, CACHE, DENSE, UPDATE, LOGPROBS, BACKWARD, OPTIMIZER, CHECKING)
"""The parts that are measured directly. `own Python` is the rest of a step."""


class Timers:
    """Seconds by part, while `enabled`."""

    def __init__(self) -> None:
        self.enabled = False
        self.seconds: dict[str, float] = {}
        self.dtype = torch.float32
        self._stack: list[tuple[str, float]] = []
        self._thread = threading.get_ident()
        self._width = 1

    @contextlib.contextmanager
    def running(self, part: str) -> Iterator[None]:
        if not self._counts():
            yield
            return
        self.start(part)
        try:
            yield
        finally:
            self.stop()

    def start(self, part: str) -> None:
        now = _now()
        if self._stack:
            above, since = self._stack[-1]
            self._add(above, now - since)
            part = BACKWARD if above == BACKWARD else part
        self._stack.append((part, now))

    def stop(self) -> None:
        now = _now()
        part, since = self._stack.pop()
        self._add(part, now - since)
        if self._stack:
            self._stack[-1] = (self._stack[-1][0], now)

    def _add(self, part: str, seconds: float) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def _counts(self) -> bool:
        # On a GPU the backward pass runs on threads of its own, inside the timer of the thread that waits for it.
        return self.enabled and threading.get_ident() == self._thread

    @property
    def _generating(self) -> bool:
        return any(part == ARRANGING for part, _ in self._stack)

    # Attaching the timers

    def around(self, function: Callable[..., Any], part: str | Callable[[], str]) -> Callable[..., Any]:
        """The function with a timer around it."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.running(part if isinstance(part, str) else part()):
                return function(*args, **kwargs)

        return timed

    def install(self) -> None:
        """Put timers around the library's functions in this process."""
        from transformers.cache_utils import Cache

        from lite_selfplay.models.adapters import Adapters
        from lite_selfplay.models.backends.transformers import TransformersBackend
        from lite_selfplay.models.generation import sampling
        from lite_selfplay.models.logprobs import token_logprobs as logprobs
        from lite_selfplay.training.rollout import LiveTable

        everywhere(sampling.sample_tokens, self.around(sampling.sample_tokens, SAMPLING))
        everywhere(logprobs.token_logprobs, self.around(logprobs.token_logprobs, LOGPROBS))
        on_class(TransformersBackend, "generate", lambda f: self.around(f, ARRANGING))
        on_class(LiveTable, "verify", lambda f: self.around(f, CHECKING))
        on_class(torch.Tensor, "backward", lambda f: self.around(f, BACKWARD))
        torch.nn.utils.clip_grad_norm_ = self.around(torch.nn.utils.clip_grad_norm_, OPTIMIZER)
        on_class(Cache, "batch_select_indices", lambda f: self.around(f, self._cache_part))
        for name in ("keep_rows", "join_rows"):
            if function := getattr(sys.modules.get("lite_selfplay.models.generation.kv_cache"), name, None):
                everywhere(function, self.around(function, self._cache_part))
        on_class(Adapters, "inference_packed", self._entering)
        register_optimizer_step_pre_hook(lambda *_: self._open(OPTIMIZER))
        register_optimizer_step_post_hook(lambda *_: self._close())

    def watch(self, model: Any, dtype: torch.dtype) -> None:
        """Time the forward passes of a PEFT model: the whole, and the parts that may be called separately."""
        self.dtype = dtype
        base = model.get_base_model()
        for module in (model, base.base_model, base.get_output_embeddings()):
            module.register_forward_pre_hook(self._before_forward, with_kwargs=True)
            module.register_forward_hook(lambda *_: self._close(), always_call=True)

    def _before_forward(self, module: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        if ids is not None and ids.dim() == 2:
            self._width = ids.shape[1]
        part = READING if self._width > 1 else FORWARD
        self._open(part if self._generating else UPDATE)

    def _open(self, part: str) -> None:
        if self._counts():
            self.start(part)

    def _close(self) -> None:
        if self._counts():
            self.stop()

    def _cache_part(self) -> str:
        return CACHE if self._generating else UPDATE

    def _entering(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A method that returns a context manager, with a timer around entering it."""

        @functools.wraps(function)
        @contextlib.contextmanager
        def timed(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with contextlib.ExitStack() as stack:
                with self.running(DENSE):
                    value = stack.enter_context(function(*args, **kwargs))
                yield value

        return timed


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def on_class(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """Replace a method, if the class has it."""
    if function := getattr(owner, name, None):
        setattr(owner, name, wrap(function))


def everywhere(function: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    """Replace a function in every module of the library that imports it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("lite_selfplay"):
            for key, value in list(vars(module).items()):
                if value is function:
                    setattr(module, key, replacement)
