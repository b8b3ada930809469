"""The inputs and results of a step's updates.

A stream's rows (completions of one role) are cut into parts, one for each update, and these into microbatches, which
have a bounded number of tokens, sorted by length, of one seat (LoRA adapter).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from torch import Tensor

from lite_selfplay.config import RoleConfig, RunConfig
from lite_selfplay.data import Advantage, Episode, Stream
from lite_selfplay.errors import GameError
from lite_selfplay.models.adapters import Adapters
from lite_selfplay.models.logprobs.batch import Way, cut
from lite_selfplay.training.losses import LossRow, MicroBatch, over_the_kept, with_gradient
from lite_selfplay.training.on_policy import Advantages, finite_advantages, require_on_policy
from lite_selfplay.training.ranks import ALONE, Ranks
from lite_selfplay.training.sampler_check import Agreement, Read


@dataclass
class Done:
    """A microbatch after its pass through the model: its `numbers` on the device, later in `read`.

    `numbers` has `logprobs` (N,) and, if computed, `reference` (N,), `loss`, `kl` and `clipped`.
    """

    micro: MicroBatch
    learner: str
    numbers: dict[str, Tensor]
    read: dict[str, list[float]] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, float]:
        """Its contribution to the figures of its part."""
        micro, read = self.micro, self.read
        shares = {"kl": micro.token_share, "clipped": micro.row_share if micro.role.one_ratio else micro.token_share}
        return {
            "rows": len(micro.rows),
            "tokens": micro.tokens,
            "loss": read["loss"][0],
            "logprob": sum(read["logprobs"]) / micro.stream_tokens,
            **{name: read[name][0] * share for name, share in shares.items() if name in read},
        }

    @property
    def rows(self) -> list[Read]:
        return list(zip(self.micro.rows, self.micro.batch.split(self.read["logprobs"]), strict=True))


@dataclass
class StreamUpdate:
    """The results of a step's updates on one stream; None where there is nothing to report.

    `loss` is the minimised loss, `logprob` the mean log-probability of a token before the update, `kl` the mean KL per
    token; over several updates they are means weighted by rows and tokens. `clipped` is the share of clipped tokens (of
    completions, if each has one ratio); None if every ratio is 1 because nothing was updated yet. `sampler_gap`,
    `base_gap` and `step_gap` are mean differences in nats per token: see `sampler_check.Agreement` and
    `SamplerCheck.step_gap`.
    """

    role: str
    seat: str
    loss: float | None = None
    logprob: float | None = None
    kl: float | None = None
    clipped: float | None = None
    rows: int = 0
    tokens: int = 0
    sampler_gap: float | None = None
    base_gap: float | None = None
    step_gap: float | None = None

    def add(self, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            setattr(self, name, (getattr(self, name) or 0) + value)


@dataclass
class StepReport:
    """A finished step: the episode, the advantages of each stream, and the results of the update.

    `seats` maps every seat to its learning rate and gradient norm before clipping in its last update of the step (None
    without one), and its number of updates so far. If the step was skipped, `nonfinite` says which number was not
    finite, or `foreign` which completions came from other weights.
    """

    step: int
    episode: Episode
    advantages: list[Advantages]
    streams: list[StreamUpdate]
    seats: dict[str, dict[str, Any]] = field(default_factory=dict)
    update_s: float = 0.0
    nonfinite: str | None = None
    foreign: str | None = None

    @property
    def trained(self) -> bool:
        """Whether any row reached the model."""
        return any(update.rows for update in self.streams)


@dataclass
class Learning:
    """The rows of a stream during a step's updates, cut into one part for each.

    `replay`: the ratio is to stored log-probabilities. `before` holds the rows of later parts with their
    log-probabilities from before the first update.
    """

    role: RoleConfig
    parts: list[list[LossRow]]
    update: StreamUpdate
    replay: bool
    agreement: Agreement
    before: dict[int, list[Read]] = field(default_factory=dict)

    def has_gradient(self, part: int) -> bool:
        return bool(with_gradient(self.parts[part], self.role))

    def remember(self, part: int, read: Sequence[Read]) -> None:
        """Keep a part's log-probabilities from before the first update, for the ratio of rows without `old`."""
        found = {id(row): values for row, values in read}
        rows = self.parts[part]
        self.before[part] = [(row, found[id(row)]) for row in rows if id(row) in found]
        self.parts[part] = [replace(row, old=found.get(id(row))) if row.old is None else row for row in rows]

    def figures(self, part: int, done: Sequence[Done]) -> dict[str, float]:
        """The contribution of a part's microbatches to the figures of the stream."""
        if not done:
            return {}
        sizes = [(len(rows), sum(row.tokens for row in rows)) for rows in self.parts]
        rows, tokens = (own / sum(every) for own, every in zip(sizes[part], zip(*sizes, strict=True), strict=True))
        ratios = rows if self.role.one_ratio else tokens
        shares = {"loss": rows, "logprob": tokens, "kl": tokens, "clipped": ratios, "rows": 1, "tokens": 1}
        found = [one.figures for one in done]
        return {
            name: share * sum(each[name] for each in found if name in each)
            for name, share in shares.items()
            if any(name in each for each in found)
        }


def admit(report: StepReport, config: RunConfig, adapters: Adapters, *, elsewhere: bool = False) -> list[Learning]:
    """The rows of a step's streams, cut into one part for each update. Writes the advantages into the report.

    A stream's loss is `mean over rewarded rows + mean over examples of weight * (-log p)`: examples have no ratio, KL
    or entropy term. Only rows sampled by the seat's current weights are compared with the sampler's log-probabilities.
    `elsewhere`: see `rows_of`. Raises GameError for samples that would train a seat wrongly, NotFinite for a number
    that is not finite.
    """
    pairs = list(zip(report.episode.streams, report.streams, strict=True))
    for stream, update in pairs:
        require_on_policy(stream, update.seat, adapters.version(update.seat))
    advantages, learning = [], []
    for stream, update in pairs:
        role = config.roles[stream.role]
        values, groups = rows_of(stream, finite_advantages(stream, update.seat), role, elsewhere=elsewhere)
        advantages.append(values)
        loss = "grpo" if role.own_loss else role.loss
        likelihood = role.model_copy(update={"beta": 0.0, "entropy": 0.0, "loss": loss})
        for example, own in ((False, role), (True, likelihood)):
            of_kind = [[row for row in group if row.example is example] for group in groups]
            cut_up = [over_the_kept(rows, own) for rows in parts(list(filter(None, of_kind)), config.run.minibatches)]
            agreement = Agreement(stream.role, update.seat, compared=not (stream.replay or example))
            learning.append(Learning(own, cut_up, update, stream.replay and not example, agreement))
    report.advantages = advantages
    return learning


def rows_of(
    stream: Stream, advantages: Advantages, role: RoleConfig, *, elsewhere: bool = False
) -> tuple[Advantages, list[list[LossRow]]]:
    """The advantages of a stream's samples (None: in no policy term), and its rows, group by group.

    Rows are the samples with an advantage and at least one token and, if the role has a KL term of the library's own,
    those of dropped groups. Groups without rows are skipped. `elsewhere`: another program samples, so the ratio is to
    its log-probabilities, except for examples.
    """
    found, groups = Advantages(), list[list[LossRow]]()
    for group, values in zip(stream.groups, advantages, strict=True):
        earned, rows = list[Advantage | None](), list[LossRow]()
        for sample, advantage in zip(group.samples, values, strict=True):
            completion, example = sample.completion, sample.is_example
            masked = sample.masked or (role.mask_truncated and completion.cut_off and not example)
            earned.append(None if masked else advantage)
            in_a_term = advantage is not None or (role.beta and not role.own_loss)
            if in_a_term and completion.token_ids and not masked:
                old = completion.logprobs if (stream.replay or elsewhere) and not example else None
                if isinstance(advantage, tuple) and role.one_ratio:
                    raise GameError(
                        f"the {stream.role}'s advantages by token need a ratio for each token: roles.{stream.role} has "
                        f"loss={role.loss} and ratio={role.ratio}, one for the completion"
                    )
                rows.append(LossRow(completion, advantage or 0.0, old, advantage is None, example))
        found.append(earned)
        groups += [rows] if rows else []
    return found, groups


def parts(groups: Sequence[Sequence[LossRow]], count: int) -> list[list[LossRow]]:
    """A stream's rows in `count` parts of about equal size, one for each update, in their order.

    Groups stay whole if there are at least `count` of them; else rows are split individually, and with fewer rows than
    parts some parts are empty. Advantages come from whole groups. (verl's `ppo_mini_batch_size` ignores groups.)
    """
    units = groups if len(groups) >= count else [[row] for group in groups for row in group]
    edges = [i * len(units) // count for i in range(count + 1)]
    return [[row for unit in units[a:b] for row in unit] for a, b in pairwise(edges)]


def microbatches(
    rows: Sequence[LossRow], seat: str, role: RoleConfig, token_budget: int, way: Way, *, ranks: Ranks = ALONE
) -> list[MicroBatch]:
    """Cut a stream's rows into microbatches of at most `token_budget` tokens, or of a single row.

    If `way` computes shared prompts once, rows of one prompt stay together when that is cheaper than sorting by length.
    Rows of different temperatures never share a microbatch. Rows without a gradient (see `with_gradient`) count in the
    shares but do not reach the model. Each of several processes gets its part of the rows, of about equal tokens;
    shares are still of the whole stream.
    """
    chosen = with_gradient(rows, role)
    if not ranks.alone:
        chosen = ranks.part(sorted(chosen, key=_by_prompt), lambda row: len(row.completion.prompt_ids) + row.tokens)
    if not chosen:
        return []
    orders = [sorted(chosen, key=lambda row: (_temperature(row), row.tokens, len(row.completion.prompt_ids)))]
    if way is not Way.WHOLE:
        orders.append(sorted(chosen, key=_by_prompt))
    cuts = [cut(order, _ids, token_budget, way, kind=_temperature) for order in orders]
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
        )
        for chunk, batch in chunks
    ]


def _temperature(row: LossRow) -> float:
    """The divisor of the logits: 1 for greedy completions."""
    return row.completion.sampling.temperature or 1.0


def _ids(row: LossRow) -> tuple[Sequence[int], Sequence[int]]:
    return row.completion.prompt_ids, row.completion.token_ids


def _by_prompt(row: LossRow) -> tuple[float, Sequence[int], int]:
    return _temperature(row), row.completion.prompt_ids, row.tokens
