"""From streams to microbatches: rows of one seat, sorted by length, a bounded number of tokens at a time.

What a stream's loss is a mean over is decided here, so that any number of microbatches gives the gradient of one: its n
rows (grpo, dr_grpo, sequence, and a loss of a user's own that has a term a row) or its tokens (dapo, and one that has a
term a token). TRL takes the mean over the k rows it is handed, so advantages and beta are scaled by k/n, which is exact
because the clipped objective is positively homogeneous in the advantage; for dapo it is handed the stream's token count
instead. Of terms that are computed here, `part_of_mean` takes the part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from torch import Tensor

from lite_selfplay.config import RoleConfig
from lite_selfplay.data import Completion, Sample, Stream
from lite_selfplay.errors import TrainingError
from lite_selfplay.models.logprobs.batch import Batch, Way, cut
from lite_selfplay.training.ranks import ALONE, Ranks


@dataclass(frozen=True)
class LossRow:
    """A completion in the loss, with its advantage.

    `old`, where given, are the log-probabilities that the ratio is to: those before the first of a step's updates.
    `to_sampler`: the ratio is to those noted while sampling instead, by another program than the one that learns.
    `dropped`: it is of a group that left the policy's terms, and is here for the KL term alone.
    """

    completion: Completion
    advantage: float
    old: Sequence[float] | None = None
    to_sampler: bool = False
    dropped: bool = False

    @property
    def tokens(self) -> int:
        return len(self.completion.token_ids)


@dataclass(frozen=True)
class MicroBatch:
    """Rows for one forward and backward under one seat, and the `batch` in which the model reads them.

    `row_share` and `token_share` are this microbatch's shares (0, 1] of its stream's rows and tokens, `stream_tokens`
    the stream's completion tokens, those of rows without a gradient included. All rows were sampled at `temperature`
    with at most `max_tokens` tokens.
    """

    rows: Sequence[LossRow]
    batch: Batch
    seat: str
    role: RoleConfig
    temperature: float
    max_tokens: int
    row_share: float
    token_share: float
    stream_tokens: int
    replay: bool = False

    @property
    def scale(self) -> float:
        """What advantages and beta are multiplied by for TRL, so that the chunks of a stream add up to its loss."""
        return 1.0 if self.role.loss == "dapo" else self.row_share

    def scaled(self, advantages: Sequence[float]) -> list[float]:
        """The advantages of the rows as TRL is handed them.

        With `loss=sequence` a completion's one term stands at each of its tokens and is added up over them, so that
        each token carries its share of it.
        """
        whole = self.role.loss == "sequence"
        return [a * self.scale / (row.tokens if whole else 1) for a, row in zip(advantages, self.rows, strict=True)]

    def part_of_mean(self, terms: Tensor, mask: Tensor) -> Tensor:
        """What terms (B,) add to the mean over the stream's rows, or (B, T) to that over its tokens; `mask` (B, T)."""
        if terms.dim() == 1:
            return terms.mean() * self.row_share
        return terms.where(mask.bool(), 0.0).sum() / self.stream_tokens

    @property
    def tokens(self) -> int:
        return sum(row.tokens for row in self.rows)

    @property
    def has_old(self) -> bool:
        """Whether the ratio is to log-probabilities of another policy than the one that learns."""
        return self.replay or any(row.to_sampler or row.old is not None for row in self.rows)

    @property
    def old(self) -> list[Sequence[float]]:
        """Those log-probabilities, row by row: a replay's, and those of another sampler, as they were sampled."""
        return [
            row.completion.logprobs if self.replay or row.to_sampler or row.old is None else row.old
            for row in self.rows
        ]


class TokenBudget:
    """How many tokens a microbatch may hold: `tokens`, halved whenever memory runs out, which `warn` reports."""

    def __init__(self, tokens: int, warn: Callable[[str], None]):
        self.tokens, self._warn = tokens, warn
        self.in_flight = 0, ""  # the rows of the microbatch that is computed, and who learns from it

    def lower(self, tokens: int) -> None:
        """Keep to as few tokens as another process has to."""
        if tokens < self.tokens:
            self.tokens = tokens
            self._warn(f"out of memory in the update of another process: from now on at most {tokens:,} tokens at once")

    def halve(self) -> None:
        """Raises TrainingError, naming who learns, where the microbatch that was too large had one row."""
        rows, who = self.in_flight
        if rows == 1:
            raise TrainingError(
                f"out of memory in the update of one completion of {who}: lower max_completion_tokens or "
                "run.max_prompt_tokens, set model.gradient_checkpointing=true, or take a smaller model"
            )
        self.tokens //= 2
        self._warn(
            f"out of memory in the update: from now on at most {self.tokens:,} tokens at once. "
            f"--set run.microbatch_tokens={self.tokens} starts with that"
        )


def rows_of(
    stream: Stream, advantages: Sequence[Sequence[float | None]], role: RoleConfig, *, elsewhere: bool = False
) -> list[list[LossRow]]:
    """The samples of a stream that enter the loss, group by group: those with an advantage and at least one token, and
    where there is a KL term of the library's own those of dropped groups.

    Groups without any are left out. `elsewhere`: completions are sampled by another program than the one that learns,
    and the ratio is to its log-probabilities, except for samples that are learned from by their likelihood.
    """
    groups = [
        [
            LossRow(
                sample.completion,
                advantage or 0.0,
                to_sampler=elsewhere and not sample.is_example,
                dropped=advantage is None,
            )
            for sample, advantage in zip(group.samples, values, strict=True)
            if (advantage is not None or (role.beta and not role.own_loss))
            and sample.completion.token_ids
            and not left_out(sample, role)
        ]
        for group, values in zip(stream.groups, advantages, strict=True)
    ]
    return [group for group in groups if group]


def left_out(sample: Sample, role: RoleConfig) -> bool:
    """Whether a sample is in no term of its role's loss, whatever its group."""
    return sample.masked or (role.mask_truncated and sample.completion.cut_off and not sample.is_example)


def over_the_kept(rows: Sequence[LossRow], role: RoleConfig) -> list[LossRow]:
    """Rows whose advantages make a mean over all of them one over those that were not dropped.

    The clipped objective is positively homogeneous in the advantage, so what is left of the KL term is a mean over all.
    """

    def size(row: LossRow) -> int:
        return row.tokens if role.loss == "dapo" else 1

    kept = sum(size(row) for row in rows if not row.dropped)
    if not kept or not any(row.dropped for row in rows):
        return list(rows)
    return [replace(row, advantage=row.advantage * sum(map(size, rows)) / kept) for row in rows]


def parts(groups: Sequence[Sequence[LossRow]], count: int) -> list[list[LossRow]]:
    """A stream's rows in `count` parts, one an update, in their order and as equal as can be.

    Groups stay whole where there are at least as many of them; otherwise rows are dealt out by themselves, and where
    there are fewer even of those, some parts are empty. Advantages were worked out over the whole stream before, so a
    group that is cut keeps its baseline. (verl's `ppo_mini_batch_size` cuts rows in their order, wherever groups end.)
    """
    units = groups if len(groups) >= count else [[row] for group in groups for row in group]
    edges = [i * len(units) // count for i in range(count + 1)]
    return [[row for unit in units[a:b] for row in unit] for a, b in pairwise(edges)]


def moving(rows: Sequence[LossRow], role: RoleConfig) -> list[LossRow]:
    """The rows that can give a gradient: not those of advantage 0 where there is no KL and no entropy term.

    What a loss of a user's own makes of such a row is not known.
    """
    every_row_counts = role.beta != 0 or role.entropy != 0 or role.own_loss
    return [row for row in rows if every_row_counts or row.advantage != 0]


def microbatches(
    rows: Sequence[LossRow],
    seat: str,
    role: RoleConfig,
    token_budget: int,
    way: Way,
    *,
    replay: bool = False,
    ranks: Ranks = ALONE,
) -> list[MicroBatch]:
    """Cut a stream's rows into microbatches of at most `token_budget` tokens (one row at the least).

    Where the `way` that rows are read counts once what prompts share, rows are kept with those of their prompt if that
    is cheaper than keeping rows of one length together. Rows of different temperatures never share a microbatch. Rows
    that cannot give a gradient (see `moving`), such as those of a group in which all were rewarded alike, are counted
    in the shares and left out: they never reach the model. [] where none is left. Of several processes each gets its
    part of the rows, of about as many tokens as the others'; shares are of the whole stream all the same.
    """
    chosen = moving(rows, role)
    if not ranks.alone:
        chosen = ranks.part(sorted(chosen, key=_by_prompt), lambda row: len(row.completion.prompt_ids) + row.tokens)
    if not chosen:
        return []
    orders = [sorted(chosen, key=lambda row: (_kind(row), row.tokens, len(row.completion.prompt_ids)))]
    if way is not Way.WHOLE:
        orders.append(sorted(chosen, key=_by_prompt))
    cuts = [
        cut(order, lambda row: (row.completion.prompt_ids, row.completion.token_ids), token_budget, way, kind=_kind)
        for order in orders
    ]
    chunks = min(cuts, key=lambda found: sum(batch.cost for _, batch in found))
    tokens = sum(row.tokens for row in rows)
    return [
        MicroBatch(
            rows=chunk,
            batch=batch,
            seat=seat,
            role=role,
            temperature=_temperature(chunk[0]),
            max_tokens=max(row.completion.sampling.max_tokens for row in rows),
            row_share=len(chunk) / len(rows),
            token_share=sum(row.tokens for row in chunk) / tokens,
            stream_tokens=tokens,
            replay=replay,
        )
        for chunk, batch in chunks
    ]


def _temperature(row: LossRow) -> float:
    """What divides the logits: greedy completions, which have no temperature, are read at 1."""
    return row.completion.sampling.temperature or 1.0


def _kind(row: LossRow) -> tuple[float, bool]:
    return _temperature(row), row.to_sampler


def _by_prompt(row: LossRow) -> tuple[tuple[float, bool], Sequence[int], int]:
    return _kind(row), row.completion.prompt_ids, row.tokens
