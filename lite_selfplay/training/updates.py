"""What a step's updates take and what they did: a stream while it is learned from, and the step's report."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from lite_selfplay.config import RoleConfig, RunConfig
from lite_selfplay.data import Episode, Stream
from lite_selfplay.models.adapters import Adapters
from lite_selfplay.training.microbatches import LossRow, MicroBatch, left_out, moving, over_the_kept, parts, rows_of
from lite_selfplay.training.on_policy import (
    Advantages,
    NotFinite,
    finite_advantages,
    require_fresh,
    require_policy,
)
from lite_selfplay.training.sampler_check import Agreement, Read


@dataclass
class Done:
    """A microbatch that went through the model, and what was computed of it, which is read later.

    `numbers` hold `logprobs` (N,), and where there are such: `reference` (N,), `loss`, `kl` and `clipped`.
    """

    micro: MicroBatch
    learner: str
    numbers: dict[str, Tensor]
    read: dict[str, list[float]] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, float]:
        """What it adds to the figures of its part."""
        micro, read = self.micro, self.read
        logprob = sum(read["logprobs"]) / micro.stream_tokens
        ratios = micro.row_share if micro.role.one_ratio else micro.token_share
        shares = {"kl": micro.token_share, "clipped": ratios}
        return {
            "rows": len(micro.rows),
            "tokens": micro.tokens,
            "loss": read["loss"][0],
            "logprob": logprob,
            **{name: read[name][0] * share for name, share in shares.items() if name in read},
        }

    @property
    def rows(self) -> list[Read]:
        """Each row with its log-probabilities."""
        return list(zip(self.micro.rows, self.micro.batch.split(self.read["logprobs"]), strict=True))

    def require_finite(self) -> None:
        """Raises NotFinite, naming who learns."""
        for name in ("reference", "logprobs"):
            if not all(map(math.isfinite, self.read.get(name, ()))):
                raise NotFinite(f"a log-probability of {self.learner} is not finite")
        for value in self.read.get("loss", ()):
            if not math.isfinite(value):
                raise NotFinite(f"the loss of {self.learner} is {value}")


@dataclass
class StreamUpdate:
    """What a step's updates did with a stream: the loss they minimised, the mean log-probability of a token before it
    moved anything (both None where no row was trained on), the mean KL per token, the rows and tokens.

    Of several updates, loss, log-probability and KL are means, weighted by their rows and tokens. `clipped` is the
    share of tokens (of completions, where each has one ratio) that the clip cuts off; None where every ratio is 1
    because nothing has moved yet. `sampler_gap`, `base_gap` and `step_gap` are mean differences in nats a token: see
    `sampler_check.Agreement` and `SamplerCheck.step_gap`.
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
        """Add to figures by their names."""
        for name, value in figures.items():
            setattr(self, name, (getattr(self, name) or 0) + value)

    def nothing_moved(self) -> "StreamUpdate":
        """The same of a step that was skipped: what was compared stays, what was learned does not."""
        return StreamUpdate(self.role, self.seat, sampler_gap=self.sampler_gap, base_gap=self.base_gap)


@dataclass
class StepReport:
    """A finished step: the episode, the advantages of each stream, and what the update did.

    `seats` maps every seat to its learning rate, gradient norm before clipping (of the last update it took part in,
    None where it did not move) and number of updates so far. `nonfinite` says which number was not finite, in a step
    that was skipped for it, `foreign` whose completions came from other weights.
    """

    step: int
    episode: Episode
    advantages: list[Advantages]
    streams: list[StreamUpdate]
    seats: dict[str, dict[str, Any]] = field(default_factory=dict)
    update_s: float = 0.0
    nonfinite: str | None = None
    foreign: str | None = None

    @classmethod
    def of(cls, step: int, episode: Episode, streams: list[StreamUpdate]) -> "StepReport":
        """Of a step that has not been learned from yet."""
        return cls(
            step, episode, [[[None] * len(group.samples) for group in x.groups] for x in episode.streams], streams
        )

    @property
    def trained(self) -> bool:
        """Whether any row reached the model, so that there is a gradient."""
        return any(update.rows for update in self.streams)


@dataclass
class Learning:
    """A stream while it is learned from: its rows, cut into one part an update, and what is noted of them.

    `compared`: its rows are held to what the sampler noted, since only the seat's own, sampled as it is now, were
    admitted; a replay and examples may come from anywhere.
    """

    stream: Stream
    role: RoleConfig
    parts: list[list[LossRow]]
    update: StreamUpdate
    compared: bool

    def __post_init__(self) -> None:
        self.agreement = Agreement(self.stream.role, self.update.seat)

    def moves(self, part: int) -> bool:
        """Whether a part has a row that can give a gradient."""
        return bool(moving(self.parts[part], self.role))

    def remember(self, part: int, read: Sequence[Read]) -> None:
        """Put beside the rows of a part what the ratio is to."""
        old = {id(row): values for row, values in read}
        self.parts[part] = [replace(row, old=old.get(id(row))) for row in self.parts[part]]

    def compare(self, read: Sequence[Read]) -> None:
        """Hand rows that were read before anything moved to the sampler's check."""
        self.agreement.rows += read
        if self.compared:
            self.agreement.noted += read

    def figures(self, part: int, done: Sequence[Done]) -> dict[str, float]:
        """What the microbatches of a part add to the figures of the stream, by their share of it."""
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
    """The streams of a step, cut into one part an update. Puts their advantages into the report.

    `elsewhere`: see `rows_of`. Raises GameError for samples that would train a seat wrongly, NotFinite for a number
    that is not finite.
    """
    pairs = list(zip(report.episode.streams, report.streams, strict=True))
    for stream, update in pairs:
        require_policy(stream, update.seat)
        require_fresh(stream, update.seat, adapters.version(update.seat))
    report.advantages = [
        [
            [None if left_out(s, config.roles[stream.role]) else a for s, a in zip(group.samples, row, strict=True)]
            for group, row in zip(stream.groups, finite_advantages(stream, update.seat), strict=True)
        ]
        for stream, update in pairs
    ]
    count = config.run.minibatches
    return [
        Learning(
            part,
            role,
            [over_the_kept(rows, role) for rows in parts(rows_of(part, own, role, elsewhere=elsewhere), count)],
            update,
            compared,
        )
        for (stream, update), values in zip(pairs, report.advantages, strict=True)
        for part, own, role, compared in _apart(stream, values, config.roles[stream.role])
    ]


def _apart(stream: Stream, values: Advantages, role: RoleConfig) -> list[tuple[Stream, Advantages, RoleConfig, bool]]:
    """A stream's paid samples and its examples, where it has any, with how each are learned from, and whether they
    are compared.

    Each is a mean of its own, so the loss is `mean over the paid + mean over the examples of weight * (-log p)`. Of an
    example nothing but its likelihood counts: no ratio, no KL, no entropy.
    """
    examples = [[sample.is_example for sample in group.samples] for group in stream.groups]
    if not any(map(any, examples)):
        return [(stream, values, role, not stream.replay)]
    found = []
    for wanted in (False, True):
        groups, own = [], []
        for group, row, marks in zip(stream.groups, values, examples, strict=True):
            places = [i for i, mark in enumerate(marks) if mark is wanted]
            groups.append(replace(group, samples=[group.samples[i] for i in places]))
            own.append([row[i] for i in places])
        found.append((replace(stream, groups=groups, replay=stream.replay and not wanted), own))
    (paid, earned), (taught, weights) = found
    loss = "grpo" if role.own_loss else role.loss
    plain = role.model_copy(update={"beta": 0.0, "entropy": 0.0, "loss": loss})
    return [(paid, earned, role, not stream.replay), (taught, weights, plain, False)]
