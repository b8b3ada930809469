"""The library's data types: frozen dataclasses that games, tables and trainers exchange.

A `Problem` is asked, a `Completion` comes back, a `Verdict` judges it, a `Sample` has its reward, a `Group` holds the
samples that share a baseline, a `Stream` is what one role produced in a step, an `Episode` the whole step. No tensors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lite_selfplay.errors import GameError

Advantage = float | tuple[float, ...]  # a completion's, or one for each of its tokens
Credit = Literal["group", "group_mean", "reinforce", "batch", "baseline"]
# The name of the base model, sampled with every adapter off.
BASE = "base"
# The reason of a verdict if the check got almost no CPU time, so the answer was not judged.
NOT_JUDGED = "not_judged"

# Why a completion ended; `loop`: degenerate repetition, which would have continued to the limit.
StopReason = Literal["eos", "length", "string", "prompt_too_long", "loop"]


@dataclass(frozen=True)
class Problem:
    """A task to solve. `answer` is None if there is no reference answer; `kind` names the checker (`math`, `program`,
    `call`, `letters`, `reasoning-gym`); `extra` keeps a data file's other columns."""

    id: str
    text: str
    answer: Any = None
    kind: str = "math"
    extra: Mapping[str, Any] = field(default_factory=dict)


# Settings that filter or reweight tokens during sampling: for evaluations only, refused for training.
FILTERS = ("top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class Sampling:
    """How a completion is sampled, as transformers defines each term. `temperature` 0 is greedy decoding. `top_k` 0,
    `top_p` 1, `min_p` 0 and `repetition_penalty` 1 switch the respective filter off. A completion ends after the token
    that completes one of the strings in `stop`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 512
    stop: tuple[str, ...] = ()

    @property
    def off_policy(self) -> list[str]:
        """The settings, as `key=value`, that make samples deviate from the policy at its temperature."""
        keys = [key for key in FILTERS if getattr(self, key) != getattr(Sampling, key)]
        keys += ["temperature"] * (self.temperature == 0)
        return [f"{key}={getattr(self, key):g}" for key in keys]


@dataclass(frozen=True)
class Completion:
    """A seat's completion, with everything training needs: it is never tokenised again.

    `prompt` is the user's text before the chat template. `prefill` is the beginning of the assistant's turn that was
    not sampled: the template's part (such as `<think>`), then the requested beginning. `token_ids` ends with the
    end-of-sequence token if `stop` is "eos". `logprobs[t]` is the natural log-probability of `token_ids[t]` under
    `sampling`. `weights_version` counts the changes of the seat's weights so far, by updates and actions; -1 marks a
    seat that is never updated.
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
        """Whether it was stopped, by the token limit or for repetition."""
        return self.stop in ("length", "loop")


@dataclass(frozen=True)
class Verdict:
    """A judgement of a completion. `correct`: a right answer or a valid proposal (`Game.accuracy` says which, by role).
    `score` is in [0, 1] (for programs the share of tests passed); `answer` is the one extracted from the completion,
    None if there is none; `reason` says why a completion was not correct, or NOT_JUDGED."""

    correct: bool
    score: float
    answer: str | None = None
    well_formed: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Sample:
    """A completion and its reward. A `masked` sample counts neither in its group's baseline nor in the loss.

    A sample that was not judged, or whose prompt was too long, is masked. An `advantage` replaces the one computed from
    the rewards: a number, or a tuple with one for each token. A sample without a `reward` is either masked, and then
    only recorded, or an example with a number as `advantage`, trained on by likelihood: the mean negative
    log-likelihood of a stream's examples, weighted with their advantages, is added to its loss. `info` goes into
    `episodes.jsonl`. Raises GameError for other combinations.
    """

    completion: Completion
    reward: float | None
    verdict: Verdict | None = None
    advantage: Advantage | None = None
    masked: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.reward is None and self.masked == (self.advantage is not None):
            record, example = "only recorded (masked, no advantage)", "an example to learn from (advantage, not masked)"
            raise GameError(f"a sample without a reward must be either {record} or {example}")
        if isinstance(self.advantage, tuple) and (
            self.is_example or len(self.advantage) != len(self.completion.token_ids)
        ):
            raise GameError("advantages by token need a reward, and a number for each of the completion's tokens")
        object.__setattr__(self, "masked", self.masked or not self.judged)

    @property
    def judged(self) -> bool:
        """Whether its prompt was asked, and its check not starved."""
        return self.completion.stop != "prompt_too_long" and getattr(self.verdict, "reason", "") != NOT_JUDGED

    @property
    def is_example(self) -> bool:
        """Whether it is trained on by likelihood only."""
        return self.reward is None and not self.masked


@dataclass(frozen=True)
class Group:
    """Samples that share a baseline, and their problem. The credit `baseline` subtracts `baseline` from rewards."""

    samples: Sequence[Sample]
    problem: Problem | None = None
    baseline: float | None = None


@dataclass(frozen=True)
class Stream:
    """What one role produced in one step.

    `drop_zero_variance`: groups without variance do not count in the mean of the policy terms, but a KL term still
    applies to them. `replay`: the update uses the ratio to the stored log-probabilities; the completions may come from
    any seat and be of any age. Raises GameError for credit `baseline` if a group has none.
    """

    role: str
    groups: Sequence[Group]
    credit: Credit = "group"
    drop_zero_variance: bool = False
    replay: bool = False

    def __post_init__(self) -> None:
        if self.credit == "baseline" and any(group.baseline is None for group in self.groups):
            raise GameError(f"the {self.role}'s stream has the credit `baseline`, but a group without a baseline")


# Suffix of the snapshot of a seat at the start of training, the reference of its KL term: `SEAT@start`.
START = "@start"


@dataclass(frozen=True)
class Snapshot:
    """An action after the update: keep a copy of a seat, which can be sampled as `name` from then on. Raises GameError
    for a name that ends in `START`, which the library reserves."""

    seat: str
    name: str

    def __post_init__(self) -> None:
        if self.name.endswith(START):
            raise GameError(f"a game's snapshot cannot be named {self.name!r}: the library reserves such names")


@dataclass(frozen=True)
class Restore:
    """An action after the update: restore a seat from a kept copy."""

    seat: str
    name: str
    reset_optimizer: bool = False


@dataclass(frozen=True)
class Blend:
    """An action after the update: overwrite a seat with the mean product (up times down) of `parents`, which are seats,
    cut to its rank, and normal noise drawn from `seed`, of `noise` times each matrix's root mean square. Its optimizer
    starts anew."""

    seat: str
    parents: tuple[str, ...]
    noise: float
    seed: int


@dataclass(frozen=True)
class Episode:
    """One step of a game. Without streams no seat is updated and no scheduler ticks. `log` goes into `metrics.jsonl`.
    `record`: samples that are not trained on; they are written into `episodes.jsonl` and count in no mean. `save` asks
    for a checkpoint after the step, because it was costly; `measure` asks for an evaluation, if the run has held-out
    problems."""

    streams: Sequence[Stream] = ()
    actions: Sequence[Snapshot | Restore | Blend] = ()
    log: Mapping[str, Any] = field(default_factory=dict)
    save: bool = False
    measure: bool = False
    record: Sequence[Stream] = ()


@dataclass(frozen=True)
class Example:
    """A prompt and the completion that a seat should learn, for cold start."""

    prompt: str
    completion: str


@dataclass(frozen=True)
class EvalSpec:
    """How to evaluate a game's seats: the name of a mode (see `lite_selfplay.games.modes`), and its seats."""

    mode: str
    seats: tuple[str, ...]


@dataclass(frozen=True)
class TokenScores:
    """Per-token natural log-probabilities and entropies (nats) of a completion under a seat."""

    logprobs: Sequence[float]
    entropies: Sequence[float]
