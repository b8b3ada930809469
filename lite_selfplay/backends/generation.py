"""Sampling completions from a causal language model, a whole step's prompts at once.

A prompt that a group shares is read once and its cache expanded to the group's rows; rows leave the batch when they
finish. Shapes: `P` prompts, `n` completions of each, `R` rows still running.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lite_selfplay.backends.logprobs import shares_prefixes
from lite_selfplay.backends.sampling import choose, uniforms
from lite_selfplay.data import Sampling, StopReason
from lite_selfplay.prefixes import Reading

LEAVE_AT = 1 / 8
"""Finished rows leave the batch once they are this share of it: each leaving copies the cache."""


@dataclass
class Generation:
    """One completion: the sampled ids (with the end-of-sequence token where it ended) and their log-probabilities."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop: StopReason = "length"


@torch.inference_mode()
def generate(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    n: int,
    sampling: Sampling,
    seeds: Sequence[Sequence[int]],
    *,
    eos_ids: Sequence[int],
    pad_id: int,
    device: torch.device,
    cache_tokens: int = 65536,
    poll: Callable[[], None] = lambda: None,
) -> list[list[Generation]]:
    """`n` completions of each prompt, in the order of the prompts.

    `seeds[p][k]` is the seed of completion k of prompt p. At most `cache_tokens` keys and values are held at once (a
    single prompt's group may exceed it by being split). `poll` is called once a token and may raise to stop.
    Raises ValueError for an empty prompt.
    """
    if any(not prompt for prompt in prompts):
        raise ValueError("a prompt must hold at least one token")
    results = [[Generation() for _ in range(n)] for _ in prompts]
    rows = [_Row(p, prompts[p], results[p][k], seeds[p][k]) for p in range(len(prompts)) for k in range(n)]
    for chunk in _chunks(rows, sampling.max_tokens, cache_tokens):
        _Batch(model, chunk, sampling, frozenset(eos_ids), pad_id, device).run(poll)
    return results


@dataclass
class _Row:
    group: int
    prompt: Sequence[int]
    out: Generation
    seed: int


def _chunks(rows: list[_Row], max_tokens: int, cache_tokens: int) -> Iterator[list[_Row]]:
    """Rows of similar prompt length together, as many as the cache holds; a group stays in one chunk if it can."""
    rows = sorted(rows, key=lambda row: (len(row.prompt), row.group))
    chunk: list[_Row] = []
    for row in rows:
        if chunk and (len(chunk) + 1) * (len(row.prompt) + max_tokens) > cache_tokens:
            yield chunk
            chunk = []
        chunk.append(row)
    if chunk:
        yield chunk


class _Batch:
    """The rows that are sampled together, and their cache."""

    def __init__(
        self,
        model: nn.Module,
        rows: list[_Row],
        sampling: Sampling,
        eos_ids: frozenset[int],
        pad_id: int,
        device: torch.device,
    ):
        self.model, self.rows, self.sampling, self.device = model, rows, sampling, device
        self.eos = torch.tensor(sorted(eos_ids), device=device)
        self.uniform = torch.from_numpy(uniforms([row.seed for row in rows], sampling.max_tokens)).to(device)
        self.cache: Any = None
        self.mask = self.position = torch.empty(0, dtype=torch.long)
        logits = self._read_prompts(pad_id)
        self.seen = self._seen(logits.shape[-1]) if sampling.repetition_penalty != 1.0 else None
        self.logits = logits

    def _read_prompts(self, pad_id: int) -> Tensor:
        """Read the distinct prompts, what several of them begin with only once; then repeat the cache row by row."""
        groups = dict(sorted({row.group: row.prompt for row in self.rows}.items(), key=lambda item: tuple(item[1])))
        reading = Reading.of((prompt, 0) for prompt in groups.values())
        if shares_prefixes(self.model) and reading.shares:
            prefixes = [prefix.prompt[: prefix.length] for prefix in reading.prefixes]
            self._read(prefixes, pad_id)
            owner = [i for i, prefix in enumerate(reading.prefixes) for _ in range(prefix.rows)]
            self._repeat(torch.tensor(owner, device=self.device))
            own = [p[len(prefixes[i]) :] for i, p in zip(owner, groups.values(), strict=True)]
        else:
            own = list(groups.values())
        logits = self._read(own, pad_id)
        index = {group: i for i, group in enumerate(groups)}
        rows = torch.tensor([index[row.group] for row in self.rows], device=self.device)
        self._repeat(rows)
        return logits[rows]

    def _read(self, rows: Sequence[Sequence[int]], pad_id: int) -> Tensor:
        """Read ids after what the cache holds already; the logits (R, V) of each row's last token."""
        width = max(map(len, rows))
        ids = torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in rows], device=self.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=self.device)
        self.mask = mask if self.cache is None else torch.cat([self.mask, mask], dim=1)
        positions = (self.mask.cumsum(-1) - 1).clamp(min=0)[:, -width:]
        out = self.model(
            input_ids=ids,
            attention_mask=self.mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.cache, self.position = out.past_key_values, positions[:, -1:]
        return out.logits[:, -1]

    def _repeat(self, rows: Tensor) -> None:
        """Rearrange what has been read so far: row i becomes a copy of row `rows[i]`."""
        self.cache.batch_select_indices(rows)
        self.mask, self.position = self.mask[rows], self.position[rows]

    def _seen(self, vocabulary: int) -> Tensor:
        seen = torch.zeros((len(self.rows), vocabulary), dtype=torch.bool)
        for i, row in enumerate(self.rows):
            seen[i, list(row.prompt)] = True
        return seen.to(self.device)

    def run(self, poll: Callable[[], None]) -> None:
        finished = torch.zeros(len(self.rows), dtype=torch.bool, device=self.device)
        for t in range(self.sampling.max_tokens):
            poll()
            token, logprob = choose(self.logits, self.uniform[:, t], self.sampling, self.seen)
            ended = torch.isin(token, self.eos)
            self._append(token, logprob, finished, ended)
            finished = finished | ended
            if t + 1 == self.sampling.max_tokens or bool(finished.all()):
                return
            if float(finished.float().mean()) >= LEAVE_AT:
                keep = (~finished).nonzero()[:, 0]
                self._keep(keep)
                token, finished = token[keep], finished[keep]
            self._advance(token)

    def _append(self, token: Tensor, logprob: Tensor, finished: Tensor, ended: Tensor) -> None:
        columns = (token.tolist(), logprob.tolist(), finished.tolist(), ended.tolist())
        for row, row_token, row_logprob, was_finished, has_ended in zip(self.rows, *columns, strict=True):
            if was_finished:
                continue
            row.out.token_ids.append(row_token)
            row.out.logprobs.append(row_logprob)
            if has_ended:
                row.out.stop = "eos"

    def _keep(self, keep: Tensor) -> None:
        self.rows = [self.rows[i] for i in keep.tolist()]
        self._repeat(keep)
        self.uniform = self.uniform[keep]
        if self.seen is not None:
            self.seen = self.seen[keep]

    def _advance(self, token: Tensor) -> None:
        self.position = self.position + 1
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.rows), 1)], dim=1)
        if self.seen is not None:
            self.seen.scatter_(1, token[:, None], True)
        out = self.model(
            input_ids=token[:, None],
            attention_mask=self.mask,
            position_ids=self.position,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.logits = out.logits[:, -1]
