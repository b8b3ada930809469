"""Choosing the next tokens of many sequences, each by its own seed, and where a sequence ends.

The loops of `generate`, `fixed` and Unsloth's backend pass logits in and ask which rows are over. A sequence's text
depends only on its seed and its own logits, not on its neighbours, the chunk it is in, or a global generator. Shapes:
`R` rows, `V` vocabulary.
"""

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lite_selfplay.data import Sampling, StopReason
from lite_selfplay.models.generation.layout import CHECK_EVERY
from lite_selfplay.models.generation.loops import loop_end
from lite_selfplay.models.transfers import placed

Loop = Literal["plain", "fixed", "graphs"]
"""The decoding loop: `plain` checks every token on the host, so that rows leave when they end; `fixed` runs the same
operations for each token and checks every 16; `graphs` replays their forward pass as CUDA graphs."""

BLOCK, BLOCK_ON_GPU = 256, 128
"""Tokens per block when a cumulative sum over the vocabulary is inverted: most vocabularies are multiples of 128, and
need no padding."""


@dataclass(frozen=True)
class GenerationRequest:
    """`n` completions of each prompt by a seat (a named LoRA adapter), a snapshot or `base`.

    `seeds[p][k]` decides completion k of prompt p; a prompt gets as many completions as it has seeds. `hear(p, k,
    number, token)` is called with the tokens of completion k as they are sampled, numbered from 1 (some twice, after a
    restart); if it returns False, the completion ends there. Backends that sample elsewhere do not call it.
    """

    seat: str
    prompts: Sequence[Sequence[int]]
    n: int
    sampling: Sampling
    seeds: Sequence[Sequence[int]]
    hear: Callable[[int, int, int, int], bool] | None = None

    def start(self) -> "tuple[list[list[Generation]], list[SampledRow]]":
        """Completion k of each prompt p before sampling, `[p][k]`, and a row for each, sorted by prompt length."""
        hear = self.hear
        outs = [
            [Generation(hear=None if hear is None else functools.partial(hear, p, k)) for k in range(len(seeds))]
            for p, seeds in enumerate(self.seeds)
        ]
        rows = [
            SampledRow(p, prompt, out, seed)
            for p, (prompt, group, seeds) in enumerate(zip(self.prompts, outs, self.seeds, strict=True))
            for out, seed in zip(group, seeds, strict=True)
        ]
        return outs, sorted(rows, key=lambda row: (len(row.prompt), row.group))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The number of completions, and the most tokens of a prompt and of a completion."""
        return sum(map(len, self.seeds)), max(map(len, self.prompts), default=0), self.sampling.max_tokens

    @property
    def longest(self) -> int:
        """The most tokens of a prompt and its completion together."""
        return sum(self.sizes[1:])


@dataclass
class Generation:
    """One completion: the sampled ids (including an end-of-sequence token) and their log-probabilities. `hear(number,
    token)`: see `GenerationRequest`."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop: StopReason = "length"
    hear: Callable[[int, int], bool] | None = field(default=None, repr=False, compare=False)


@dataclass
class SampledRow:
    """A completion while it is sampled. Rows with the same `group` share a prompt; `over` means finished."""

    group: int
    prompt: Sequence[int]
    out: Generation
    seed: int
    over: bool = False
    checked: int = 0
    """Tokens already checked for repetition."""

    @property
    def sampled(self) -> int:
        return len(self.out.token_ids)


@dataclass
class KeptPool:
    """What a GPU keeps between calls: the KV-cache pool with the graphs recorded over it. Release it before using its
    memory, or moving a tensor that the graphs read."""

    pool: Any = None
    stream: Any = None
    """The stream for recording graphs, because libraries allocate memory for every stream."""

    def release(self) -> None:
        self.pool = None


@dataclass(frozen=True)
class Decoding:
    """A backend's decoding settings, the same for all requests.

    A completion ends at one of `eos_ids`. At most `cache_tokens` keys and values are held at once (a single row may
    exceed it). `decode` turns ids into text, for stop strings only. `poll` is called once per token and may raise to
    stop; the plain loop calls `give_back` after reading prompts, whose memory has other sizes. `loop` is a preference:
    a model whose cache does not hold every token uses the plain one. `end_loops` ends completions that repeat
    themselves. `warn` takes a sentence for the user. `weights` identifies the tensors that the model computes from:
    while it stays the same, graphs may be `kept` between calls; None keeps none.
    """

    eos_ids: Sequence[int]
    device: torch.device
    cache_tokens: int = 65536
    decode: Callable[[Sequence[int]], str] | None = None
    poll: Callable[[], None] = lambda: None
    give_back: Callable[[], None] = lambda: None
    loop: Loop = "plain"
    end_loops: bool = True
    flash: bool = False
    """Whether attention can be told where each row's keys are: see `attention.Slots`."""
    lookup: bool = False
    """Whether the last sequences of a call sample several tokens per pass, by prompt lookup."""
    warn: Callable[[str], None] = lambda sentence: None
    refusals: list[str] = field(default_factory=list)
    """Why CUDA graphs could not be recorded, if so."""
    weights: Hashable = None
    kept: KeptPool = field(default_factory=KeptPool)

    def end_loop(self, out: Generation, checked: int = 0) -> Generation:
        """The same completion, cut where it begins to repeat itself, checked after the first `checked` tokens. An end
        of its own at the same token comes first."""
        end = loop_end(out.token_ids, checked) if self.end_loops else None
        if end is not None and (end < len(out.token_ids) or out.stop == "length"):
            del out.token_ids[end:], out.logprobs[end:]
            out.stop = "loop"
        return out

    def check(self, request: GenerationRequest) -> None:
        """Raises ValueError for an empty prompt, and for stop strings without `decode`."""
        if any(not prompt for prompt in request.prompts):
            raise ValueError("a prompt must hold at least one token")
        if request.sampling.stop and self.decode is None:
            raise ValueError("stop strings need a function that decodes ids")


def uniforms(seeds: Sequence[int], length: int, begin: Any = 0) -> np.ndarray:
    """Uniform numbers in [0, 1), shape (R, length), float64: number t of a row depends only on its seed and t.

    t begins at `begin` + 1, and `begin` is one integer or one for each row. SplitMix64 (Steele, Lea and Flood,
    OOPSLA 2014) over seed + t; the top 53 bits are used.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    state = np.asarray([s & 0xFFFFFFFFFFFFFFFF for s in seeds], dtype=np.uint64)[:, None]
    number = np.asarray(begin, dtype=np.uint64).reshape(-1, 1) + np.arange(1, length + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z: np.ndarray = state + golden * number
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def filtered_logits(logits: Tensor, sampling: Sampling, seen: Tensor | None = None) -> Tensor:
    """Logits (R, V) after penalty, temperature, top-k, top-p and min-p, as transformers applies them, in float32 if
    they are changed. `seen` (R, V) bool marks the tokens in a row's prompt and completion, for the repetition penalty.
    """
    if sampling.repetition_penalty != 1.0 and seen is not None:
        logits = logits.float()
        penalised = torch.where(logits < 0, logits * sampling.repetition_penalty, logits / sampling.repetition_penalty)
        logits = torch.where(seen, penalised, logits)
    if sampling.temperature not in (0.0, 1.0):
        logits = logits.float() / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        kth = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if sampling.top_p < 1.0:
        logits = logits.masked_fill(~_nucleus(logits.softmax(-1, torch.float32), sampling.top_p), -torch.inf)
    if sampling.min_p > 0.0:
        probabilities = logits.softmax(-1, torch.float32)
        floor = sampling.min_p * probabilities.amax(-1, keepdim=True)
        logits = logits.masked_fill(probabilities < floor, -torch.inf)
    return logits


def _nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """The most likely tokens (R, V) bool that reach `top_p` together: those with less than `top_p` before them. Sorts
    only as much of the vocabulary as the widest row needs, which makes the host wait."""
    vocabulary, size = probabilities.shape[-1], 64
    while True:
        largest, order = probabilities.topk(min(size, vocabulary), dim=-1)
        reached = largest.cumsum(-1)
        if size >= vocabulary or bool((reached[..., -1] >= top_p).all()):
            break
        size *= 8
    return torch.zeros_like(probabilities, dtype=torch.bool).scatter(-1, order, reached - largest < top_p)


def sample_tokens(
    logits: Tensor, uniform: Tensor, sampling: Sampling, seen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sample the next token of each row, with its log-probability.

    `logits` (R, V); `uniform` (R,) in [0, 1). Returns token ids (R,) int64 and log-probabilities (R,) float32 under the
    filtered, tempered distribution. Temperature 0 takes the most likely token, and its log-probability at temperature
    1. `seen` (R, V), as in `filtered_logits`, gets the sampled tokens.
    """
    logits = filtered_logits(logits, sampling, seen)
    # Reading logits is what takes time on a GPU: its softmax reads them once.
    peak = None if logits.is_cuda else logits.amax(-1, keepdim=True).float()
    weights = logits.softmax(-1, torch.float32) if peak is None else (logits - peak).exp_()
    if sampling.temperature == 0.0:
        token, total = logits.argmax(-1), weights.sum(-1)
    else:
        token, total = _invert(weights, uniform, BLOCK_ON_GPU if peak is None else BLOCK)
    of_token = (weights if peak is None else logits).gather(-1, token[:, None])
    logprob = (of_token.log() if peak is None else of_token - peak)[:, 0] - total.log()
    if seen is not None:
        seen.scatter_(1, token[:, None], True)
    return token, logprob.float()


def _invert(weights: Tensor, uniform: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The token at which the cumulative sum of `weights` (R, V) exceeds a share `uniform` (R,) of the total, and the
    total. Sums in float64, first over blocks of `size`, then inside the block that matters."""
    rows, vocabulary = weights.shape
    whole = nn.functional.pad(weights, (0, -vocabulary % size)) if vocabulary % size else weights  # which would copy
    blocks = whole.view(rows, -1, size)
    reached = blocks.sum(-1).to(torch.float64).cumsum(-1)
    total = reached[:, -1]
    target = uniform.to(torch.float64)[:, None] * total[:, None]
    block = torch.searchsorted(reached, target, right=True).clamp(max=reached.shape[1] - 1)
    before = torch.where(block > 0, reached.gather(-1, (block - 1).clamp(min=0)), 0.0)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, size))[:, 0]
    index = torch.searchsorted(inside.to(torch.float64).cumsum(-1), target - before, right=True).clamp(max=size - 1)
    # Rounding can point past the last token with a weight; then the likeliest of the block is taken.
    impossible = inside.gather(-1, index) == 0
    index = torch.where(impossible, inside.argmax(-1, keepdim=True), index)
    return (block * size + index)[:, 0], total


class Sampler:
    """Samples the tokens of rows and ends a row at an end-of-sequence token, a stop string, the limit, degenerate
    repetition, or if `hear` asks."""

    def __init__(self, sampling: Sampling, decoding: Decoding):
        self.sampling, self.decoding = sampling, decoding
        self._eos = frozenset(decoding.eos_ids)
        # Tokens at the end of a sequence that could hold a stop string completed by the last one.
        self._longest_stop = max((len(stop.encode()) for stop in sampling.stop), default=0) + 4

    def draw(self, rows: Sequence[SampledRow], logits: Tensor, seen: Tensor | None = None) -> Tensor:
        """Sample the next token (R,) of every row from logits (R, V), and append it to unfinished rows; `seen` as in
        `sample_tokens`. The host waits."""
        numbers = uniforms([row.seed for row in rows], 1, [row.sampled for row in rows])[:, 0]
        token, logprob = sample_tokens(logits, placed(torch.from_numpy(numbers), logits.device), self.sampling, seen)
        for row, one, its in zip(rows, *torch.stack([token.double(), logprob.double()]).tolist(), strict=True):
            if not row.over:
                self.take(row, [int(one)], [its])
        return token

    def seen(self, rows: Sequence[SampledRow], vocabulary: int) -> Tensor | None:
        """The tokens (R, V) bool in each row so far; None without a repetition penalty."""
        if self.sampling.repetition_penalty == 1.0:
            return None
        seen = torch.zeros((len(rows), vocabulary), dtype=torch.bool)
        for i, row in enumerate(rows):
            seen[i, [*row.prompt, *row.out.token_ids]] = True
        return placed(seen, self.decoding.device)

    def ended(self, ids: np.ndarray, sampled: np.ndarray) -> np.ndarray:
        """Which rows (R,) have reached an end-of-sequence token or the limit, ignoring their text: `ids` (tokens, R)
        are the newest, `sampled` (R,) counts all."""
        return np.isin(ids, self.decoding.eos_ids).any(0) | (sampled >= self.sampling.max_tokens)

    def take(self, row: SampledRow, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append sampled tokens to a row, up to the one that ends it."""
        out, before = row.out, row.sampled
        out.token_ids += ids
        out.logprobs += logprobs
        for number in range(before + 1, row.sampled + 1):
            if stop := self._stop(out.token_ids, number):
                self._end(row, number, stop)
                break
        if row.over or row.sampled >= row.checked + CHECK_EVERY:
            row.checked, stop = row.sampled, self.decoding.end_loop(out, row.checked).stop
            row.over |= stop == "loop"
        self._tell(row, before)

    def _stop(self, ids: Sequence[int], number: int) -> StopReason | None:
        if ids[number - 1] in self._eos:
            return "eos"
        if self.sampling.stop and self.decoding.decode is not None:
            text = self.decoding.decode(ids[max(0, number - self._longest_stop) : number])
            if any(stop in text for stop in self.sampling.stop):
                return "string"
        return "length" if number == self.sampling.max_tokens else None

    def _end(self, row: SampledRow, number: int, stop: StopReason) -> None:
        out = row.out
        del out.token_ids[number:], out.logprobs[number:]
        out.stop, row.over = stop, True

    def _tell(self, row: SampledRow, before: int) -> None:
        """Pass the tokens after the first `before` to `hear`."""
        if row.out.hear is None:
            return
        for number in range(before + 1, row.sampled + 1):
            if not row.out.hear(number, row.out.token_ids[number - 1]):
                self._end(row, number, row.out.stop if number == row.sampled else "length")
                break
