"""A base model with its seats (LoRA adapters), and the live table, which samples and checks answers for a game."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from lite_selfplay.config import RunConfig, SeatConfig
from lite_selfplay.config.user_files import guarded
from lite_selfplay.data import BASE, NOT_JUDGED, Completion, Example, Problem, Sampling, TokenScores, Verdict
from lite_selfplay.errors import GameError, RewardError, UnknownNameError
from lite_selfplay.models.adapters import Adapters
from lite_selfplay.models.backends import choose_backend
from lite_selfplay.models.backends.backend import Backend, Rollouts, samples_elsewhere
from lite_selfplay.models.chat_template import Chat, EncodedPrompt, Turn
from lite_selfplay.models.generation.sampling import Generation, GenerationRequest
from lite_selfplay.models.sources import ResolvedModel
from lite_selfplay.tasks import Source
from lite_selfplay.tasks.task import derived_rng, derived_seed
from lite_selfplay.training import sharing
from lite_selfplay.training.interrupts import ending_at_once
from lite_selfplay.training.progress import Monitor
from lite_selfplay.training.sampler_check import at_own_temperature
from lite_selfplay.verify import Verifier
from lite_selfplay.verify.reward_functions import RewardFunction, call_reward, name_of

T = TypeVar("T")


@dataclass
class Loaded:
    """A base model's chat template, the backend with its seats, and the verifier; `close` releases them."""

    chat: Chat
    backend: Backend
    verifier: Verifier
    monitor: Monitor = field(default_factory=Monitor)

    @classmethod
    def of(
        cls,
        config: RunConfig,
        model: ResolvedModel,
        monitor: Monitor,
        *,
        seats: Mapping[str, SeatConfig] | None = None,
        rollouts: Rollouts | None = None,
    ) -> "Loaded":
        """Load a configuration's model with fresh `seats` (None: all of the configuration)."""
        chat, run, tasks = load_chat(config, model), config.run, config.tasks
        monitor.ranks.poll = monitor.poll
        backend = choose_backend(
            model.path,
            config.model,
            config.seats if seats is None else seats,
            seed=run.seed,
            eos_ids=chat.eos_ids,
            run=run,
            decode=chat.decode,
            poll=monitor.poll,
            warn=monitor.progress.warn,
            rollouts=rollouts,
        )
        backend.adapters.base_name = model.hub_id or model.name
        verifier = Verifier(
            deadline=run.verify_timeout_s,
            poll=monitor.poll,
            block_only=tasks.answer_from == "block",
            unsafe_code=tasks.unsafe_code,
        )
        return cls(chat, backend, verifier, monitor)

    @property
    def adapters(self) -> Adapters:
        return self.backend.adapters

    def close(self) -> None:
        """End the checking processes, and undo the backend's changes in this one."""
        self.verifier.close()
        self.backend.close()


def load_chat(config: RunConfig, model: ResolvedModel) -> Chat:
    """A model's chat template, with thinking as configured."""
    return Chat.load(model.path, config.model.thinking, trust_remote_code=config.model.trust_remote_code)


# Completions that a CPU samples between two reports of progress; 256 at a time were 1.4 times as fast as 64.
CPU_ROWS = 256
_PROMPT_TOKENS = 256  # a prompt's assumed length, to choose how many completions to request at a time


class LiveTable:
    """The table of a run: everything that a game may ask for. Opened anew for each step; the game may write to
    `folder`.

    A completion's seed depends on the run's seed, the step, the role and its index in the step, so that completions do
    not depend on how work is split into batches or over processes.
    """

    def __init__(
        self,
        loaded: Loaded,
        sources: Mapping[str, Source],
        config: RunConfig,
        *,
        max_completion_tokens: int,
        reward: RewardFunction | None = None,
        folder: Path | None = None,
    ):
        self._loaded, self._monitor, self._sources, self._folder = loaded, loaded.monitor, sources, folder
        self._config, self._reward = config, reward
        self.default_tokens = max_completion_tokens  # for roles without a limit of their own
        self.thinks = loaded.chat.thinks
        self.open(0, {})

    def open(self, step: int, seats: Mapping[str, str]) -> None:
        """Start a step: the seat of each role, fresh randomness, counters at zero."""
        self._step, self._seats, self.role = step, dict(seats), ""  # the last role that was asked
        self._asked: Counter[str] = Counter()
        self.rng = derived_rng(self._config.run.seed, step, "game")
        self.seconds = {"generate": 0.0, "verify": 0.0}
        self.tokens_generated = self.prompts = self.too_long = 0  # `too_long` counts the skipped prompts

    def rows_at_once(self, tokens: int) -> int:
        """How many completions of so many tokens to request at a time if progress is reported in between."""
        backend = self._loaded.backend
        rows = backend.rows_at_once(_PROMPT_TOKENS, tokens)
        return self._monitor.ranks.world * (min(CPU_ROWS, rows) if backend.device.type == "cpu" else rows)

    @property
    def policies(self) -> tuple[str, ...]:
        """The names that can be sampled: the base, the seats and the snapshots."""
        return (BASE, *self._loaded.backend.adapters.seats, *self._loaded.backend.adapters.snapshots)

    def draw(self, source: str, n: int) -> list[Problem]:
        return _known("source", source, self._sources).draw(n)

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise GameError("this table has no run, and so no folder to write to")
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def ask(
        self,
        role: str,
        prompts: Sequence[str],
        n: int = 1,
        sampling: Sampling | None = None,
        *,
        beginnings: Sequence[str] | None = None,
        seat: str | None = None,
    ) -> list[list[Completion]]:
        sampling, self.role = sampling or self._config.roles[role].sampling(self.default_tokens), role
        first = self._asked[role]
        self._asked[role] += len(prompts)
        numbers = range(first, first + len(prompts))
        seeds = [[derived_seed(self._config.run.seed, self._step, role, i, k) for k in range(n)] for i in numbers]
        seat = seat or self._seat(role)
        self._monitor.progress.activity(f"{seat} samples as {role}")
        return self.sample(seat, prompts, n, sampling, seeds, beginnings)

    def sample(
        self,
        seat: str,
        prompts: Sequence[str | Sequence[Turn]],
        n: int,
        sampling: Sampling,
        seeds: Sequence[Sequence[int]],
        beginnings: Sequence[str] | None = None,
        hear: Callable[[int, int, int, int], bool] | None = None,
    ) -> list[list[Completion]]:
        """`n` completions of each prompt by a seat, a snapshot or `base`; `seeds[p][k]` decides completion k of p.

        A prompt may be a conversation: see `Chat.encode`. `beginnings`: see `Table.ask`; `hear`: see
        `GenerationRequest`.
        """
        started = time.perf_counter()
        starts = beginnings or [""] * len(prompts)
        encoded = [self._loaded.chat.encode(*each) for each in zip(prompts, starts, strict=True)]
        fits = [i for i, prompt in enumerate(encoded) if len(prompt.ids) <= self._config.run.max_prompt_tokens]
        heard = None if hear is None else lambda p, *rest: hear(fits[p], *rest)
        request = GenerationRequest(seat, [encoded[i].ids for i in fits], n, sampling, [seeds[i] for i in fits], heard)
        completions = sharing.generate(self._monitor.ranks, self._step, request, partial(self._generate, request))
        generated = dict(zip(fits, completions, strict=True))
        skipped = Generation(stop="prompt_too_long")
        result = [
            [self._completion(prompts[i], encoded[i], out, request) for out in generated.get(i, [skipped] * n)]
            for i in range(len(prompts))
        ]
        self.prompts, self.too_long = self.prompts + len(prompts), self.too_long + len(prompts) - len(fits)
        self.tokens_generated += sum(len(c.token_ids) for row in result for c in row)
        self.seconds["generate"] += time.perf_counter() - started
        return result

    def _generate(self, whole: GenerationRequest, part: GenerationRequest) -> list[list[Generation]]:
        """Sample this process's part of a request. Each poll counts a token, unless servers sample."""
        backend = self._loaded.backend
        if samples_elsewhere(backend):
            return backend.generate(part)
        rows, *tokens = whole.sizes
        # Whether none waits for others to end.
        all_at_once = rows <= backend.rows_at_once(*tokens) * self._monitor.ranks.world
        with self._monitor.counting(whole.sampling.max_tokens if all_at_once else None):
            return backend.generate(part)

    def _completion(
        self, prompt: str | Sequence[Turn], encoded: EncodedPrompt, out: Generation, request: GenerationRequest
    ) -> Completion:
        return Completion(
            prompt=prompt if isinstance(prompt, str) else prompt[-1].text,
            text=self._loaded.chat.decode(out.token_ids),
            prompt_ids=tuple(encoded.ids),
            token_ids=tuple(out.token_ids),
            logprobs=tuple(out.logprobs),
            stop=out.stop,
            seat=request.seat,
            weights_version=self._loaded.backend.adapters.version(request.seat),
            sampling=request.sampling,
            prefill=encoded.prefill,
        )

    def completed(self, example: Example) -> Completion:
        return written(self._loaded.chat, example)

    def everything(self, source: str) -> Sequence[Problem]:
        return _known("source", source, self._sources).problems

    def evaluate(self, role: str, prompts: Sequence[str], problems: Sequence[Problem], n: int = 1) -> list[Verdict]:
        seat, seed, self.role = self._seat(role), self._config.run.seed, role
        self._monitor.progress.activity(f"{seat} is evaluated as {role}")
        seeds = [[derived_seed(seed, "evaluate", role, i, k) for k in range(n)] for i in range(len(prompts))]
        completions = self.sample(seat, prompts, n, self._config.roles[role].sampling(self.default_tokens), seeds)
        return self.verify([(c, problem) for problem, row in zip(problems, completions, strict=True) for c in row])

    def score(
        self, role: str, completions: Sequence[Completion], *, seat: str | None = None, after: Sequence[str] = ()
    ) -> list[TokenScores]:
        reader, limit = seat or self._seat(role), self._config.run.max_prompt_tokens
        if after:
            encoded = [tuple(self._loaded.chat.encode(prompt).ids) for prompt in after]
            completions = [replace(c, prompt_ids=ids) for c, ids in zip(completions, encoded, strict=True)]
        fit = [c for c in completions if not after or len(c.prompt_ids) <= limit]
        read = partial(at_own_temperature, partial(self._loaded.backend.score, reader))
        found = iter(sharing.score(self._monitor.ranks, self._step, reader, fit, read))
        return [next(found) if not after or len(c.prompt_ids) <= limit else TokenScores((), ()) for c in completions]

    def read_answer(self, completion: Completion) -> str | None:
        return self._loaded.verifier.read_answer(completion)

    def verify(self, pairs: Sequence[tuple[Completion, Problem]]) -> list[Verdict]:
        started = time.perf_counter()
        self._monitor.progress.activity("answers are checked")
        if self._reward is None:
            verdicts = sharing.verify(self._monitor.ranks, self._step, self._loaded.verifier, pairs, thinks=self.thinks)
        else:
            judge = partial(self._judge, self._reward, pairs)
            verdicts = sharing.judge(self._monitor.ranks, self._step, judge, len(pairs))
        self.seconds["verify"] += time.perf_counter() - started
        if unjudged := sum(verdict.reason == NOT_JUDGED for verdict in verdicts):
            self._monitor.progress.warn(f"{unjudged} answers were not judged: the machine is too busy to check them")
        return verdicts

    def _judge(self, reward: RewardFunction, pairs: Sequence[tuple[Completion, Problem]]) -> list[Verdict]:
        guard = guarded(name_of(reward), RewardError, self._monitor.progress.warn, judges=True)
        with ending_at_once(self._monitor.poll), guard:
            return call_reward(reward, pairs, thinks=self.thinks)

    def prompt_tokens(self, prompt: str | Sequence[Turn]) -> int:
        return len(self._loaded.chat.encode(prompt).ids)

    def tokenize(self, text: str) -> list[int]:
        return self._loaded.chat.tokens(text)

    def detokenize(self, ids: Sequence[int]) -> str:
        return self._loaded.chat.decode(ids)

    def _seat(self, role: str) -> str:
        return _known("role", role, self._seats)


def _known(kind: str, name: str, among: Mapping[str, T]) -> T:
    if name not in among:
        raise UnknownNameError(kind, name, among)
    return among[name]


def written(chat: Chat, example: Example) -> Completion:
    """An example as a completion of no seat, with its end-of-sequence token."""
    prompt, completion_ids = chat.conversation(example.prompt, example.completion)
    return Completion(
        prompt=example.prompt,
        text=example.completion,
        prompt_ids=tuple(prompt.ids),
        token_ids=tuple(completion_ids),
        logprobs=(),
        stop="eos",
        seat="",
        weights_version=-1,
        sampling=Sampling(),
        prefill=prompt.prefill,
    )
