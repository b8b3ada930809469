"""Choosing the next token of many rows at once, each row by its own seed, and keeping what was chosen.

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
from lite_selfplay.models.transfers import placed

Loop = Literal["plain", "fixed", "graphs", "compiled"]
"""How tokens follow each other: `plain` looks at every token on the host, so that rows leave as they end; `fixed` runs
the same operations for each token and looks every few; `graphs` replays those as CUDA graphs; `compiled` compiles the
model for them, and replays them where there is a card."""

MOST_KEPT = 8
"""Batches that a card keeps with their graphs: those of the roles of two steps, and of an evaluation."""

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

    @property
    def longest(self) -> int:
        """The most tokens that a prompt and its completion may take."""
        return max(map(len, self.prompts), default=0) + self.sampling.max_tokens


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
class Kept:
    """What a card keeps from one call to the next: places with their graphs, by what they are made for, the last one
    last. Whoever wants the memory, or moves a tensor that the graphs read, lets go of them.

    Only while the card is `roomy` are those kept that the present call has no use for.
    """

    roomy: Callable[[], bool] = lambda: False
    stream: Any = None
    """On which graphs are recorded, and what goes before: libraries set memory aside for every stream they meet."""
    places: dict[Hashable, Any] = field(default_factory=dict)

    def take(self, key: Hashable) -> Any:
        """The places that are made for `key`, or None."""
        found = self.places.pop(key, None)
        if not self.roomy():
            self.let_go()
        return found

    def keep(self, key: Hashable, places: Any) -> None:
        self.places[key] = places
        if len(self.places) > MOST_KEPT:
            self.places.pop(next(iter(self.places))).steps.forget()

    def let_go(self) -> None:
        while self.places:
            self.places.popitem()[1].steps.forget()


@dataclass(frozen=True)
class Decoding:
    """How a backend decodes, whatever is asked of it.

    A completion ends at one of `eos_ids`. At most `cache_tokens` keys and values are held at once (a single row may
    exceed it). `decode` turns ids into text; only stop strings need it. `poll` is called once a token and may raise
    to stop; `give_back` by the plain loop once prompts were read, which takes memory of other sizes than tokens do.
    `loop` is wished for: a model whose cache does not hold every token is sampled by the plain one. `warn` takes a
    sentence for the user. `weights` names the tensors that the model computes from: while it is the same, graphs
    may be `kept` from call to call; with None they go with the call.
    """

    eos_ids: Sequence[int]
    device: torch.device
    cache_tokens: int = 65536
    decode: Callable[[Sequence[int]], str] | None = None
    poll: Callable[[], None] = lambda: None
    give_back: Callable[[], None] = lambda: None
    loop: Loop = "plain"
    warn: Callable[[str], None] = lambda sentence: None
    refusals: list[str] = field(default_factory=list)
    """Why CUDA graphs could not be recorded, where they could not."""
    weights: Hashable = None
    kept: Kept = field(default_factory=Kept)

    @functools.cached_property
    def eos(self) -> Tensor:
        return torch.tensor(sorted(set(self.eos_ids)), device=self.device)

    def check(self, request: GenerationRequest) -> None:
        """Raises ValueError for an empty prompt, and for stop strings without `decode`."""
        if any(not prompt for prompt in request.prompts):
            raise ValueError("a prompt must hold at least one token")
        if request.sampling.stop and self.decode is None:
            raise ValueError("stop strings need a function that decodes ids")


def uniforms(seeds: Sequence[int], length: int) -> np.ndarray:
    """Uniform numbers in [0, 1), shape (R, length), float64: number t of a row follows from its seed and t alone.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) over seed + t; the top 53 bits become the number.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    state = np.asarray([s & 0xFFFFFFFFFFFFFFFF for s in seeds], dtype=np.uint64)[:, None]
    with np.errstate(over="ignore"):
        z = state + golden * np.arange(1, length + 1, dtype=np.uint64)[None, :]
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def filtered_logits(logits: Tensor, sampling: Sampling, seen: Tensor | None = None, *, waits: bool = True) -> Tensor:
    """Logits (R, V) in float32 after penalty, temperature, top-k, top-p and min-p, in transformers' order and sense.

    `seen` (R, V) bool marks the tokens a row's prompt and completion hold already, for the repetition penalty. With
    `waits` the host may wait for a tensor to save work.
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
        logits = logits.masked_fill(~_nucleus(logits.softmax(-1), sampling.top_p, waits), -torch.inf)
    if sampling.min_p > 0.0:
        probabilities = logits.softmax(-1)
        floor = sampling.min_p * probabilities.amax(-1, keepdim=True)
        logits = logits.masked_fill(probabilities < floor, -torch.inf)
    return logits


def _nucleus(probabilities: Tensor, top_p: float, waits: bool) -> Tensor:
    """The most likely tokens (R, V) bool that reach `top_p` together: those with less than `top_p` before them.

    The vocabulary is sorted only as far as the widest row needs. Where the host may not wait to know that, it is not
    sorted at all; tokens that are equally likely are then kept together.
    """
    if not waits:
        return probabilities >= _threshold(probabilities, top_p)
    vocabulary, size = probabilities.shape[-1], 64
    while True:
        largest, order = probabilities.topk(min(size, vocabulary), dim=-1)
        reached = largest.cumsum(-1)
        if size >= vocabulary or bool((reached[..., -1] >= top_p).all()):
            break
        size *= 8
    keep = reached - largest < top_p
    return torch.zeros_like(probabilities, dtype=torch.bool).scatter(-1, order, keep)


def _threshold(probabilities: Tensor, top_p: float) -> Tensor:
    """The least of all float32 numbers (R, 1) with less than `top_p` above it among a row's probabilities (R, V).

    Found by bisection between 0 and 1: the bits of positive numbers, read as integers, are in the numbers' own order.
    """
    low = torch.zeros(probabilities.shape[0], 1, dtype=torch.int32, device=probabilities.device)
    high = torch.ones_like(low, dtype=torch.float32).view(torch.int32)
    for _ in range(30):  # 1.0 has fewer than 2**30 positive numbers below it
        middle = (low + high) >> 1
        above = torch.where(probabilities > middle.view(torch.float32), probabilities, 0.0).sum(-1, keepdim=True)
        low, high = torch.where(above < top_p, low, middle), torch.where(above < top_p, middle, high)
    return high.view(torch.float32)


def choose(
    logits: Tensor, uniform: Tensor, sampling: Sampling, seen: Tensor | None = None, *, waits: bool = True
) -> tuple[Tensor, Tensor]:
    """The next token of each row and the log-probability it was drawn with.

    `logits` (R, V); `uniform` (R,) in [0, 1). Returns token ids (R,) int64 and log-probabilities (R,) float32 under the
    filtered, tempered distribution. Temperature 0 takes the most likely token; its log-probability is the one at
    temperature 1. `waits` as in `filtered_logits`.
    """
    logits = filtered_logits(logits, sampling, seen, waits=waits)
    peak = logits.amax(-1, keepdim=True)
    weights = (logits - peak).exp_()
    if sampling.temperature == 0.0:
        token, total = logits.argmax(-1), weights.sum(-1)
    else:
        token, total = _invert(weights, uniform)
    logprob = (logits.gather(-1, token[:, None]) - peak)[:, 0] - total.log()
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
    """The tokens of `R` rows, each drawn by a seed of its own, and which rows have ended.

    `tokens` and `logprobs` (R, max_tokens + 1) hold what was drawn for a row, `length` (R,) how much; what is drawn for
    a finished row goes into the last column. Where `waits` is off, no token makes the host wait for a tensor, and stop
    strings are for whoever looks at the tokens later.
    """

    waits = True

    def __init__(self, sampling: Sampling, decoding: Decoding, seeds: Sequence[int]):
        self.sampling, self.decoding, limit, device = sampling, decoding, sampling.max_tokens, decoding.device
        self.eos = decoding.eos
        self.uniform = torch.from_numpy(uniforms(seeds, limit)).to(device)
        self.tokens = torch.zeros((len(seeds), limit + 1), dtype=torch.long, device=device)
        self.logprobs = torch.zeros((len(seeds), limit + 1), device=device)
        self.length = torch.zeros(len(seeds), dtype=torch.long, device=device)
        self.ended, self.stopped, self.full = (torch.zeros_like(self.length, dtype=torch.bool) for _ in range(3))

    @property
    def finished(self) -> Tensor:
        return self.ended | self.stopped | self.full

    def draw(self, logits: Tensor, seen: Tensor | None = None) -> Tensor:
        """Draw the next token (R,) of every row from its logits (R, V) and keep it; `seen` as in `choose`."""
        limit, running = self.sampling.max_tokens, ~self.finished
        uniform = self.uniform.gather(1, self.length.clamp(max=limit - 1)[:, None])[:, 0]
        token, logprob = choose(logits, uniform, self.sampling, seen, waits=self.waits)
        place = torch.where(running, self.length, limit)[:, None]
        self.tokens.scatter_(1, place, token[:, None])
        self.logprobs.scatter_(1, place, logprob[:, None])
        self.length += running
        self.ended |= running & (token[:, None] == self.eos).any(1)
        self.full |= self.length == limit
        if self.sampling.stop and self.waits:
            self.stopped |= running & ~self.ended & self._meets_stop()
        return token

    def tell(self, outs: Sequence[Generation]) -> None:
        """Tell who listens the last token of each row; a row that nobody wants more of ends. `outs`: one for each."""
        if all(out.hear is None for out in outs):
            return
        last = self.tokens.gather(1, (self.length - 1).clamp(min=0)[:, None])[:, 0]
        for i, (out, number, token) in enumerate(zip(outs, self.length.tolist(), last.tolist(), strict=True)):
            if out.hear is not None and not out.hear(number, token):
                self.full[i] = True

    def _meets_stop(self) -> Tensor:
        """Which rows' last token completed a stop string; a card is waited for once."""
        begin = (self.length - self.longest_stop).clamp(min=0)[:, None]
        window = torch.arange(self.longest_stop, device=begin.device)
        latest = self.tokens.gather(1, (begin + window).clamp(max=self.sampling.max_tokens))
        lines = torch.cat([latest, self.length[:, None] - begin], dim=1).tolist()
        return placed([self.holds_stop(ids[:count]) for *ids, count in lines], begin.device)

    @property
    def longest_stop(self) -> int:
        """How many tokens at the end of a row could hold a stop string that its last token completed."""
        return max(len(stop.encode()) for stop in self.sampling.stop) + 4

    def holds_stop(self, ids: Sequence[int]) -> bool:
        """Whether the text of some tokens has a stop string in it."""
        assert self.decoding.decode is not None
        text = self.decoding.decode(ids)
        return any(stop in text for stop in self.sampling.stop)

    def hand_over(self, rows: Tensor, outs: Sequence[Generation]) -> None:
        """Put what was drawn for `rows` (R,) bool into `outs`, one for each of them in their order."""
        columns = (self.tokens, self.logprobs, self.length, self.ended, self.stopped)
        for out, ids, logprobs, length, ended, stopped in zip(
            outs, *(column[rows].tolist() for column in columns), strict=True
        ):
            out.token_ids, out.logprobs = ids[:length], logprobs[:length]
            out.stop = "eos" if ended else "string" if stopped else "length"
