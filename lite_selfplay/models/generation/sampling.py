"""Choosing the next token of many rows at once, each row by its own seed, and where a row ends.

All of that is here: the loops of `generate`, `fixed` and Unsloth's backend hand over logits and ask which rows are
over.
A row's text depends on its seed and its own logits alone: not on its neighbours, the chunk it is in, or a global
generator. Shapes: `R` rows, `V` vocabulary.
"""

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lite_selfplay.data import Sampling, StopReason
from lite_selfplay.models.generation.layout import LOOK_EVERY
from lite_selfplay.models.generation.loops import loop_end
from lite_selfplay.models.transfers import placed

Loop = Literal["plain", "fixed", "graphs"]
"""How tokens follow each other: `plain` looks at every token on the host, so that rows leave as they end; `fixed` runs
the same operations for each token and looks every few; `graphs` replays the model's part of those as CUDA graphs."""

BLOCK = 256
"""Tokens that are added up together when a cumulative sum over the vocabulary is inverted."""


@dataclass(frozen=True)
class GenerationRequest:
    """`n` completions of each prompt by a seat, a snapshot or `base`.

    `seeds[p][k]` decides completion k of prompt p; a prompt with fewer seeds gets as many completions as it has.
    `hear(p, k, number, token)` is told the tokens of completion k as they are drawn, numbered from 1 (some twice,
    where work begins anew); where it answers False, the completion ends there. A backend that samples elsewhere tells
    nothing.
    """

    seat: str
    prompts: Sequence[Sequence[int]]
    n: int
    sampling: Sampling
    seeds: Sequence[Sequence[int]]
    hear: Callable[[int, int, int, int], bool] | None = None

    def empty(self) -> "list[list[Generation]]":
        """The completions before anything is sampled: `empty()[p][k]`."""
        hear = self.hear
        return [
            [Generation(hear=None if hear is None else functools.partial(hear, p, k)) for k in range(len(seeds))]
            for p, seeds in enumerate(self.seeds)
        ]

    def rows(self, outs: "Sequence[Sequence[Generation]]") -> "list[SampledRow]":
        """A row for each of the completions in `empty()`, ordered by the lengths of their prompts."""
        rows = [
            SampledRow(p, prompt, out, seed)
            for p, (prompt, group, seeds) in enumerate(zip(self.prompts, outs, self.seeds, strict=True))
            for out, seed in zip(group, seeds, strict=True)
        ]
        return sorted(rows, key=lambda row: (len(row.prompt), row.group))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """How many completions are asked for, and the most tokens of a prompt and of a completion."""
        return sum(map(len, self.seeds)), max(map(len, self.prompts), default=0), self.sampling.max_tokens

    @property
    def longest(self) -> int:
        """The most tokens that a prompt and its completion may take."""
        return sum(self.sizes[1:])


@dataclass
class Generation:
    """One completion: the sampled ids (with the end-of-sequence token where it ended) and their log-probabilities.

    `hear(number, token)`: see `GenerationRequest`.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop: StopReason = "length"
    hear: Callable[[int, int], bool] | None = field(default=None, repr=False, compare=False)


@dataclass
class SampledRow:
    """A completion while it is sampled: rows with one `group` have the same prompt. `over`: it is whole."""

    group: int
    prompt: Sequence[int]
    out: Generation
    seed: int
    over: bool = False
    looked: int = 0
    """Tokens among which a loop was looked for."""

    @property
    def said(self) -> int:
        """How many tokens were drawn for it."""
        return len(self.out.token_ids)

    @property
    def read(self) -> int:
        """How many tokens the model has read of it: all but the last."""
        return len(self.prompt) + self.said - 1


@dataclass
class KeptArena:
    """What a card keeps from one call to the next: the arena in which rows have their places, with the graphs that were
    recorded in it. Whoever wants the memory, or moves a tensor that the graphs read, lets go of it."""

    arena: Any = None
    stream: Any = None
    """On which graphs are recorded, and what goes before: libraries set memory aside for every stream they meet."""

    def let_go(self) -> None:
        if self.arena is not None:
            self.arena.forget()
        self.arena = None


@dataclass(frozen=True)
class Decoding:
    """How a backend decodes, whatever is asked of it.

    A completion ends at one of `eos_ids`. At most `cache_tokens` keys and values are held at once (a single row may
    exceed it). `decode` turns ids into text; only stop strings need it. `poll` is called once a token and may raise
    to stop; `give_back` by the plain loop once prompts were read, which takes memory of other sizes than tokens do.
    `loop` is wished for: a model whose cache does not hold every token is sampled by the plain one. `end_loops` ends
    completions that repeat themselves. `warn` takes a sentence for the user. `weights` names the tensors that the model
    computes from: while it is the same, graphs may be `kept` from call to call; with None they go with the call.
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
    """Whether attention can be told where each row's keys are: see `attention.Places`."""
    lookup: bool = False
    """Whether the last rows of a call read several tokens at once: see `lookup`."""
    warn: Callable[[str], None] = lambda sentence: None
    refusals: list[str] = field(default_factory=list)
    """Why CUDA graphs could not be recorded, where they could not."""
    weights: Hashable = None
    kept: KeptArena = field(default_factory=KeptArena)

    def end_loop(self, out: Generation, looked: int = 0) -> Generation:
        """The same completion, cut where it has become a loop, which is looked for among the tokens after `looked`. An
        end at the very token of the loop's comes first."""
        end = loop_end(out.token_ids, looked) if self.end_loops else None
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
    """Uniform numbers in [0, 1), shape (R, length), float64: number t of a row follows from its seed and t alone. The
    first is that after `begin`, a number or one for each row.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) over seed + t; the top 53 bits become the number.
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
    """Logits (R, V) in float32 after penalty, temperature, top-k, top-p and min-p, in transformers' order and sense.

    `seen` (R, V) bool marks the tokens a row's prompt and completion hold already, for the repetition penalty.
    """
    logits = logits.float()
    if sampling.repetition_penalty != 1.0 and seen is not None:
        penalised = torch.where(logits < 0, logits * sampling.repetition_penalty, logits / sampling.repetition_penalty)
        logits = torch.where(seen, penalised, logits)
    if sampling.temperature not in (0.0, 1.0):
        logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        kth = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if sampling.top_p < 1.0:
        logits = logits.masked_fill(~_nucleus(logits.softmax(-1), sampling.top_p), -torch.inf)
    if sampling.min_p > 0.0:
        probabilities = logits.softmax(-1)
        floor = sampling.min_p * probabilities.amax(-1, keepdim=True)
        logits = logits.masked_fill(probabilities < floor, -torch.inf)
    return logits


def _nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """The most likely tokens (R, V) bool that reach `top_p` together: those with less than `top_p` before them.

    The vocabulary is sorted only as far as the widest row needs, for which the host waits.
    """
    vocabulary, size = probabilities.shape[-1], 64
    while True:
        largest, order = probabilities.topk(min(size, vocabulary), dim=-1)
        reached = largest.cumsum(-1)
        if size >= vocabulary or bool((reached[..., -1] >= top_p).all()):
            break
        size *= 8
    return torch.zeros_like(probabilities, dtype=torch.bool).scatter(-1, order, reached - largest < top_p)


def choose(logits: Tensor, uniform: Tensor, sampling: Sampling, seen: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The next token of each row and the log-probability it was drawn with.

    `logits` (R, V); `uniform` (R,) in [0, 1). Returns token ids (R,) int64 and log-probabilities (R,) float32 under the
    filtered, tempered distribution. Temperature 0 takes the most likely token; its log-probability is the one at
    temperature 1. `seen` (R, V), as in `filtered_logits`, is marked with what was drawn.
    """
    logits = filtered_logits(logits, sampling, seen)
    peak = logits.amax(-1, keepdim=True)
    weights = (logits - peak).exp_()
    if sampling.temperature == 0.0:
        token, total = logits.argmax(-1), weights.sum(-1)
    else:
        token, total = _invert(weights, uniform)
    logprob = (logits.gather(-1, token[:, None]) - peak)[:, 0] - total.log()
    if seen is not None:
        seen.scatter_(1, token[:, None], True)
    return token, logprob.float()


def _invert(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The token at which the cumulative sum of `weights` (R, V) passes a share `uniform` (R,) of it, and the sum.

    Sums in float64, over blocks first and then inside the one block that is passed: most of the vocabulary is only
    added up.
    """
    rows, vocabulary = weights.shape
    blocks = nn.functional.pad(weights, (0, -vocabulary % BLOCK)).view(rows, -1, BLOCK)
    reached = blocks.sum(-1).to(torch.float64).cumsum(-1)
    total = reached[:, -1]
    target = uniform.to(torch.float64)[:, None] * total[:, None]
    block = torch.searchsorted(reached, target, right=True).clamp(max=reached.shape[1] - 1)
    before = torch.where(block > 0, reached.gather(-1, (block - 1).clamp(min=0)), 0.0)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0]
    place = torch.searchsorted(inside.to(torch.float64).cumsum(-1), target - before, right=True).clamp(max=BLOCK - 1)
    # Rounding can point past the last token that has a weight; the likeliest of the block is taken then.
    impossible = inside.gather(-1, place) == 0
    place = torch.where(impossible, inside.argmax(-1, keepdim=True), place)
    return (block * BLOCK + place)[:, 0], total


class Sampler:
    """Draws the tokens of rows, each by a seed of its own, and ends a row at an end-of-sequence token, a stop string or
    the limit, as a loop, or where nobody wants more."""

    def __init__(self, sampling: Sampling, decoding: Decoding):
        self.sampling, self.decoding = sampling, decoding
        self._eos = frozenset(decoding.eos_ids)
        # How many tokens at the end of a row could hold a stop string that its last token completed.
        self._longest_stop = max((len(stop.encode()) for stop in sampling.stop), default=0) + 4

    def draw(self, rows: Sequence[SampledRow], logits: Tensor, seen: Tensor | None = None) -> Tensor:
        """Draw the next token (R,) of every row from its logits (R, V), and give it to those that are not over; `seen`
        as in `choose`. The host waits."""
        numbers = uniforms([row.seed for row in rows], 1, [row.said for row in rows])[:, 0]
        token, logprob = choose(logits, placed(torch.from_numpy(numbers), logits.device), self.sampling, seen)
        for row, one, its in zip(rows, *torch.stack([token.double(), logprob.double()]).tolist(), strict=True):
            if not row.over:
                self.take(row, [int(one)], [its])
        return token

    def seen(self, rows: Sequence[SampledRow], vocabulary: int) -> Tensor | None:
        """The tokens (R, V) bool that rows hold already; None where nothing asks for them."""
        if self.sampling.repetition_penalty == 1.0:
            return None
        seen = torch.zeros((len(rows), vocabulary), dtype=torch.bool)
        for i, row in enumerate(rows):
            seen[i, [*row.prompt, *row.out.token_ids]] = True
        return placed(seen, self.decoding.device)

    def ended(self, ids: np.ndarray, said: np.ndarray) -> np.ndarray:
        """Which rows (R,) an end-of-sequence token or the limit has ended, without a look at their text: `ids` (tokens,
        R) were drawn last, and `said` (R,) counts all."""
        return np.isin(ids, self.decoding.eos_ids).any(0) | (said >= self.sampling.max_tokens)

    def take(self, row: SampledRow, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Give a row the next tokens that were drawn for it, up to the one that ends it."""
        out, before = row.out, row.said
        out.token_ids += ids
        out.logprobs += logprobs
        for number in range(before + 1, row.said + 1):
            if stop := self._stop(out.token_ids, number):
                self._end(row, number, stop)
                break
        if row.over or row.said >= row.looked + LOOK_EVERY:
            row.looked, stop = row.said, self.decoding.end_loop(out, row.looked).stop
            row.over |= stop == "loop"
        self._tell(row, before)

    def _stop(self, ids: Sequence[int], number: int) -> StopReason | None:
        if ids[number - 1] in self._eos:
            return "eos"
        if self.sampling.stop and self._holds_stop(ids[max(0, number - self._longest_stop) : number]):
            return "string"
        return "length" if number == self.sampling.max_tokens else None

    def _holds_stop(self, ids: Sequence[int]) -> bool:
        assert self.decoding.decode is not None
        text = self.decoding.decode(ids)
        return any(stop in text for stop in self.sampling.stop)

    def _end(self, row: SampledRow, number: int, stop: StopReason) -> None:
        out = row.out
        del out.token_ids[number:], out.logprobs[number:]
        out.stop, row.over = stop, True

    def _tell(self, row: SampledRow, before: int) -> None:
        """Tell who listens the tokens after so many."""
        if row.out.hear is None:
            return
        for number in range(before + 1, row.said + 1):
            if not row.out.hear(number, row.out.token_ids[number - 1]):
                self._end(row, number, row.out.stop if number == row.said else "length")
                break
