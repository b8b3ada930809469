"""A trial of a base at every load, before anything is trained.

The forward pass must match transformers' own, made before any layer is replaced: sampler and update read the same
weights, so no later comparison between them notices that both read a weight wrongly. Of an architecture that this
library's tests do not cover, samples and updates must match it as well, each row alone, without padding and without a
cache. Otherwise a model whose attention sees later tokens, whose state leaks between rows or that ignores positions
would train without an error.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lite_selfplay.data import BASE, Sampling
from lite_selfplay.errors import LiteSelfPlayError, ModelNotFoundError
from lite_selfplay.models.backends.backend import is_out_of_memory
from lite_selfplay.models.generation.kv_cache import row_cache
from lite_selfplay.models.generation.sampling import Generation, GenerationRequest
from lite_selfplay.models.logprobs.batch import Batch, Row
from lite_selfplay.models.logprobs.token_logprobs import is_frozen

_PROMPTS, _EACH, _TOKENS = (9, 4, 6), 3, 8
# The largest error relative to the spread of the right numbers. Rounding makes 0.02 in bfloat16 and 0.03 in 4 bits of
# SmolLM2-135M.
_TOLERANCE, _TOLERANCE_IN_HALF = 1e-3, 0.15
# The same for the forward pass alone on a CPU, where it has the same bits over the whole catalogue, in every precision.
# Rounding to bfloat16 is at most 0.05 of it, and two exchanged layers change at least 0.14. Kernels of a GPU round
# elsewhere: 0.1 of it in a hybrid of states.
_TOLERANCE_OF_FORWARD = 0.08
# The factor for gradients, which sum rounding errors over all tokens: 0.13 of SmolLM2-135M's in bfloat16.
_TOLERANCE_OF_GRADIENTS = 3.0
# Logits of a forward pass alone are those of so many tokens of the vocabulary: the whole head would be read into memory
# at load, a quarter of a small base.
_LOGITS = 1024


class LoadTrial:
    """Short prompts and transformers' results for them, made before any layer is replaced. An architecture that is
    `known` has only its forward pass compared."""

    def __init__(self, path: Path, base: Any, *, known: bool):
        self._kind, self._path, self._known = base.config.get_text_config().model_type, path, known
        size = base.get_input_embeddings().weight.shape[0]
        # The first ids are skipped: they are seldom words.
        drawn = torch.randint(size // 100, size, (sum(_PROMPTS),), generator=torch.Generator().manual_seed(0))
        self._prompts: list[list[int]] = [part.tolist() for part in drawn.split(sum(_PROMPTS) if known else _PROMPTS)]
        exact = base.dtype == torch.float32 and not getattr(base, "is_loaded_in_8bit", False)
        self._tolerance = _TOLERANCE if exact else _TOLERANCE_IN_HALF
        self._read = _some_logits if known else _logits
        with self.refusing("transformers' own forward pass"), torch.no_grad():
            self._logits = [self._read(base, ids) for ids in self._prompts]
            if not all(each.isfinite().all() for each in self._logits):
                raise self._refusal("its own logits are not finite")
            if known:
                row_cache(base).get_seq_length()  # needs one layer of attention among those with states
                return
            halves = [_logits(base, ids[: len(ids) // 2]) for ids in self._prompts]
            first = [whole[: len(half)] for whole, half in zip(self._logits, halves, strict=True)]
            self._require("a token's logits depend on later tokens", halves, first)

    @contextlib.contextmanager
    def refusing(self, what: str) -> Iterator[None]:
        """A context that turns errors of the model's code, except out of memory, into a refusal of the model."""
        try:
            yield
        except (LiteSelfPlayError, MemoryError):
            raise
        except Exception as error:  # of any model's code
            if is_out_of_memory(error):
                raise
            why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise self._refusal(f"{what} ended in {why}") from error

    def compare(self, backend: Any, seat: str, generate: Callable[[GenerationRequest], list[list[Generation]]]) -> None:
        """Raises ModelNotFoundError if a backend's forward pass, samples or updates differ. `generate` samples too few
        rows at once for all, so that some join later."""
        adapters = backend.adapters
        with self.refusing("its forward pass"), adapters.inference(BASE), torch.no_grad(), backend.autocast():
            found = [self._read(adapters.model.get_base_model(), ids) for ids in self._prompts]
        share = min(1.0, _TOLERANCE_OF_FORWARD / self._tolerance) if backend.device.type == "cpu" else 1.0
        self._require("the forward pass differs from transformers' own", found, self._logits, share)
        if self._known:
            return
        with self.refusing("sampling"):
            rows, logprobs = self._sampled(seat, generate)
            with adapters.inference(seat), torch.no_grad(), backend.autocast():
                right = [_logprobs(adapters.model, row) for row in rows]
        self._require("sampled tokens have other log-probabilities than the forward pass", logprobs, right)
        with self.refusing("an update"), backend.updating(), backend.autocast():
            adapters.activate(seat)
            read, _ = backend.token_logprobs(Batch.of(rows, backend.way()))
            ours = self._gradient(adapters, seat, read)
            plain = torch.cat([_logprobs(adapters.model, row) for row in rows])
            theirs = self._gradient(adapters, seat, plain)
        self._require(
            "an update reads other log-probabilities than the forward pass", [read.detach()], [plain.detach()]
        )
        self._require("an update has another gradient than the forward pass", ours, theirs, _TOLERANCE_OF_GRADIENTS)

    def _sampled(
        self, seat: str, generate: Callable[[GenerationRequest], list[list[Generation]]]
    ) -> tuple[list[Row], list[Tensor]]:
        """Sampled rows (prompt, completion) of different lengths, and their tokens' log-probabilities."""
        seeds = [[_EACH * i + k for k in range(_EACH)] for i in range(len(self._prompts))]
        request = GenerationRequest(
            *(seat, self._prompts, _EACH, Sampling(max_tokens=_TOKENS), seeds),
            hear=lambda prompt, k, number, token: number < 2 + (3 * prompt + 2 * k) % (_TOKENS - 1),
        )
        made = generate(request)
        pairs = [(ids, one) for ids, several in zip(self._prompts, made, strict=True) for one in several]
        return [(ids, one.token_ids) for ids, one in pairs], [torch.tensor(one.logprobs) for _, one in pairs]

    def _gradient(self, adapters: Any, seat: str, logprobs: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(logprobs.sum(), [*adapters.parameters(seat).values()], allow_unused=True)
        return [gradient.float() for gradient in found if gradient is not None]

    def _require(self, what: str, found: Sequence[Tensor], right: Sequence[Tensor], share: float = 1.0) -> None:
        ours, theirs = (torch.cat([x.flatten().float().cpu() for x in each]) for each in (found, right))
        far = float((ours - theirs).norm() / (theirs - theirs.mean()).norm()) if len(ours) == len(theirs) else torch.inf
        if not far < share * self._tolerance:
            raise self._refusal(f"{what} (they differ by {far:.1g} of their spread)")

    def _refusal(self, why: str) -> ModelNotFoundError:
        if self._known:
            return ModelNotFoundError(
                f"the {self._kind} model in {self._path} is not computed right here: {why}. Use another --precision, "
                "or another repository of this base"
            )
        return ModelNotFoundError(
            f"{self._path} is a {self._kind} model, an architecture that was tried just now and cannot be trained "
            f"here: {why}. Use a base that `lite-selfplay list models` names"
        )


def _logits(model: Any, ids: Sequence[int]) -> Tensor:
    """Logits (T, V) of one row, by a plain forward pass."""
    return model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0].float()


def _some_logits(base: Any, ids: Sequence[int]) -> Tensor:
    """Logits (T, n) of one row for n tokens of the vocabulary, before any scale or cap; `_logits` if the head is not a
    plain matrix."""
    head = base.get_output_embeddings()
    if not is_frozen(head):
        return _logits(base, ids)
    hidden = base.base_model(input_ids=torch.tensor([ids], device=base.device), use_cache=False).last_hidden_state[0]
    some = head.weight[len(head.weight) // 2 :][:_LOGITS]
    return torch.nn.functional.linear(hidden.to(some.dtype), some).float()


def _logprobs(model: Any, row: Row) -> Tensor:
    """Log-probabilities of a completion's tokens after its prompt."""
    prompt, rest = row
    logits = _logits(model, [*prompt, *rest])[len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(rest, device=logits.device)[:, None])[:, 0]
