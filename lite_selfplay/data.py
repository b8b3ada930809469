"""The nouns of the library: frozen dataclasses that games, tables and trainers hand to each other.

Reading order: a `Problem` is asked, a `Completion` comes back, a `Verdict` judges it, a `Sample` is a completion with
its reward, a `Group` holds the samples that share a baseline, a `Stream` is what one role produced in one step, and an
`Episode` is the whole step. Nothing here knows a tensor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lite_selfplay.errors import GameError

Credit = Literal["group", "group_mean", "reinforce", "batch", "baseline"]
BASE = "base"
"""The name under which the base speaks, every adapter off."""
NOT_JUDGED = "not_judged"
"""The reason of a verdict that could not be made: the machine gave the check next to no time."""

StopReason = Literal["eos", "length", "string", "prompt_too_long", "loop"]
"""What ended a completion; `loop`: it said the same again and again, and would have gone on to the limit."""


@dataclass(frozen=True)
class Problem:
    """A task to solve.

    `kind` names the checker (`math`, `program`, `letters`, `reasoning-gym`); `extra` keeps the columns of a data file
    that the library does not use itself. `answer` is None where a task has no reference answer.
    """

    id: str
    text: str
    answer: Any = None
    kind: str = "math"
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Turn:
    """What somebody says in a conversation."""

    role: Literal["system", "user", "assistant"]
    text: str


FILTERS = ("top_p", "top_k", "min_p", "repetition_penalty")
"""What leaves out or reweighs tokens as they are sampled: for evaluations; refused where a role would train on it."""


@dataclass(frozen=True)
class Sampling:
    """How a completion is sampled, as transformers defines each term. `temperature` 0 is greedy decoding.

    `top_k` 0, `top_p` 1, `min_p` 0 and `repetition_penalty` 1 switch the respective filter off. A completion ends after
    the token that completes one of the strings in `stop`.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 512
    stop: tuple[str, ...] = ()

    @property
    def off_policy(self) -> list[str]:
        """The settings, as `key=value`, by which samples follow other probabilities than the tempered policy's."""
        keys = [key for key in FILTERS if getattr(self, key) != getattr(Sampling, key)]
        keys += ["temperature"] * (self.temperature == 0)
        return [f"{key}={getattr(self, key):g}" for key in keys]


@dataclass(frozen=True)
class Completion:
    """A seat's completion, with everything training needs: it is never tokenised again.

    `prompt` is the user's text before the chat template, `prefill` what was there already of the assistant's turn: what
    the template wrote (some open `<think>` there), then the beginning that was asked for. `token_ids` ends with the
    end-of-sequence token where `stop` is "eos". `logprobs[t]` is the natural log-probability with which `token_ids[t]`
    was sampled, under `sampling`. `weights_version` counts the changes of the seat's weights until then (updates, and
    snapshots put back); -1 marks a seat that never moves.
    """

    prompt: str
    text: str
    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    stop: StopReason
    seat: str
    weights_version: int
    sampling: Sampling
    prefill: str = ""

    @property
    def cut_off(self) -> bool:
        """Whether it did not end by itself: at the limit, or as a loop."""
        return self.stop in ("length", "loop")


@dataclass(frozen=True)
class Verdict:
    """A judgement of a completion. `correct`: a right answer or a valid proposal (`Game.accuracy` says which, by role).

    `score` is in [0, 1] (a share of tests passed, for programs); `answer` is what was read out of the completion, None
    where nothing could be; `reason` says why a completion was not correct, or NOT_JUDGED.
    """

    correct: bool
    score: float
    answer: str | None = None
    well_formed: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Sample:
    """A completion and its reward. A `masked` sample leaves both its group's baseline and the loss.

    A sample that was not judged is masked. `reward` None is in no mean of rewards: masked, such a sample is
    for the record alone; with an `advantage` it is an example from anywhere, learned from by its likelihood: the mean
    loss of a stream's examples, weighted with their advantages, is added to that of its other samples. An `advantage`
    beside a reward replaces what the credit gives. `info` goes into `episodes.jsonl`. Raises GameError for any other.
    """

    completion: Completion
    reward: float | None
    verdict: Verdict | None = None
    advantage: float | None = None
    masked: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.reward is None and self.masked == (self.advantage is not None):
            record, example = "masked and without an advantage", "to learn from, with an advantage and not masked"
            raise GameError(f"a sample without a reward is for the record alone, {record}, or an example {example}")
        object.__setattr__(self, "masked", self.masked or getattr(self.verdict, "reason", "") == NOT_JUDGED)

    @property
    def is_example(self) -> bool:
        """Whether it is learned from by its likelihood alone."""
        return self.reward is None and not self.masked


@dataclass(frozen=True)
class Group:
    """Samples that share a baseline, and their problem. `baseline` is what the credit `baseline` takes off rewards."""

    samples: Sequence[Sample]
    problem: Problem | None = None
    baseline: float | None = None


@dataclass(frozen=True)
class Stream:
    """What one role produced in one step.

    `drop_zero_variance`: groups without variance leave the mean of the policy's terms; a KL term holds for their rows
    as for all others. `replay`: the update uses the ratio to the stored log-probabilities; the completions may be of
    any seat and any age. Raises GameError for credit `baseline` where a group has none.
    """

    role: str
    groups: Sequence[Group]
    credit: Credit = "group"
    drop_zero_variance: bool = False
    replay: bool = False

    def __post_init__(self) -> None:
        if self.credit == "baseline" and any(group.baseline is None for group in self.groups):
            raise GameError(f"the {self.role}'s stream has the credit `baseline`, and a group of it no baseline")


START = "@start"
"""What follows a seat's name in that of its snapshot as it entered training, which a KL term pulls it towards."""


@dataclass(frozen=True)
class Snapshot:
    """An action after the update: keep a copy of a seat under a name; it can speak as `name` from then on.

    Raises GameError for a name that ends in `START`: those are the library's own.
    """

    seat: str
    name: str

    def __post_init__(self) -> None:
        if self.name.endswith(START):
            raise GameError(f"a game keeps no snapshot as {self.name!r}: that is a seat as it entered training")


@dataclass(frozen=True)
class Restore:
    """An action after the update: put a kept copy back into its seat."""

    seat: str
    name: str
    reset_optimizer: bool = False


@dataclass(frozen=True)
class Episode:
    """One step of a game. Without streams nothing moves and no scheduler ticks. `log` goes into `metrics.jsonl`.

    `record`: what was said in vain, of which nothing is learned; it is written into `episodes.jsonl` and is in no mean.
    `save` asks for a checkpoint after the step, whose work would be dear to repeat; `measure` for an evaluation, where
    the run has held-out problems.
    """

    streams: Sequence[Stream] = ()
    actions: Sequence[Snapshot | Restore] = ()
    log: Mapping[str, Any] = field(default_factory=dict)
    save: bool = False
    measure: bool = False
    record: Sequence[Stream] = ()


@dataclass(frozen=True)
class Example:
    """A prompt and the completion a seat should learn to give, for cold start."""

    prompt: str
    completion: str


@dataclass(frozen=True)
class EvalSpec:
    """How a game's seats are measured: a mode by its name (see `lite_selfplay.games.modes`), and the seats in it."""

    mode: str
    seats: tuple[str, ...]


@dataclass(frozen=True)
class TokenScores:
    """Per-token natural log-probabilities and entropies (nats) of a completion under a seat."""

    logprobs: Sequence[float]
    entropies: Sequence[float]
