"""A backend whose completions come from servers that have the same base, and the seats as LoRA adapters.

What computes (updates, scores, references) is the transformers backend in this process. A seat is loaded anew by every
server, under another name, whenever its weights have changed.
"""

import contextlib
import hashlib
import secrets
import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError

from lite_selfplay.config import RolloutsSection
from lite_selfplay.data import BASE, Sampling
from lite_selfplay.errors import RequestError, RolloutsLost
from lite_selfplay.models.backends.fleet import Adapter, Fleet, Member, unload
from lite_selfplay.models.backends.lora_requests import LoraRequests
from lite_selfplay.models.backends.transformers import TransformersBackend
from lite_selfplay.models.backends.vllm import COLDEST, HOTTEST, lora_limits
from lite_selfplay.models.backends.vllm_server import Served, ServerFailed, VllmServer, Wanted
from lite_selfplay.models.generation.sampling import Generation, GenerationRequest

LAST_WORDS_S = 2.0
"""Seconds to wait, at the end, for a server to unload an adapter."""
MOST_ADAPTERS = 16
"""States of seats and snapshots that servers hold for a run at a time."""
PROBE = "The 12,345th row: naïve café, 你好, «±π²≈9.87»\n\tdef f(x): return x**2  # 🙂"
"""A text on which tokenizers differ."""
PROBES, PROBE_TOKENS = 4, 16
FAR = 0.5
"""Nats a token, in the middle, by which another base differs, and no rounding."""


@dataclass(frozen=True)
class Rollouts:
    """How a run samples on servers: its section, where adapters are written unless that says so, what divides a text
    into tokens, the temperatures that it learns at, and the tokens of its longest prompt and completion together."""

    section: RolloutsSection
    folder: Path
    tokens: Callable[[str], Sequence[int]]
    temperatures: Sequence[float]
    longest: int


class ServedBackend(TransformersBackend):
    """The transformers backend, with completions that come from servers.

    The servers are asked at once whether they serve the run's base: raises RequestError where one does not.
    """

    samples_elsewhere = True

    def __init__(self, *arguments: Any, rollouts: Rollouts, **options: Any):
        super().__init__(*arguments, **options)
        section, self._rollouts = rollouts.section, rollouts
        members = [Member(VllmServer(address, section.timeout_s)) for address in section.servers]
        self._fleet = Fleet(members, section.rows_at_once, self._decoding.poll, self._warn)
        base: Any = self.adapters.model.get_base_model()
        self._vocabulary = int(base.config.get_text_config().vocab_size)
        mark = hashlib.sha256(str(rollouts.folder.resolve()).encode()).hexdigest()[:8]
        self._prefix = f"lite-selfplay-{mark}-"
        # Another one at every start: a resumed run has other weights under the numbers that a killed one had reached.
        self._start = f"{self._prefix}{secrets.token_hex(4)}"
        self._root = (Path(section.folder) if section.folder else rollouts.folder).resolve()
        self._own = self._root / mark if section.folder else self._root
        self._folder = self._own / self._start
        self._names: dict[int, Adapter] = {}
        self._requests = LoraRequests(self.adapters, self._folder, self._adapter, self._forget, MOST_ADAPTERS)
        try:
            self._limits = lora_limits(self.adapters.ranks())
            for member in members:
                with self._refusing(member):
                    self._meet(member)
        except BaseException:
            super().close()
            raise

    # Sampling

    def generate(self, request: GenerationRequest) -> list[list[Generation]]:
        """What `Backend.generate` gives: each row asked for by itself, with its seed.

        Raises RequestError for a temperature that vLLM samples at otherwise, RolloutsLost once no server is left.
        """
        require_temperature(request.sampling.temperature)
        self._decoding.check(request)
        adapter = self._served(request.seat)
        pairs = zip(request.prompts, request.seeds, strict=True)
        rows = [self._row(prompt, request.sampling, seed) for prompt, seeds in pairs for seed in seeds]
        found = iter(self._fleet.sample(adapter, rows))
        return [[next(found) for _ in seeds] for seeds in request.seeds]

    def _row(self, prompt: Sequence[int], sampling: Sampling, seed: int) -> Callable[[str], Wanted]:
        eos_ids, vocabulary = self._decoding.eos_ids, self._vocabulary
        return lambda model: Wanted(model, prompt, sampling, seed, eos_ids, vocabulary)

    # Adapters

    def begin(self) -> None:
        """Have every server load a seat, once there is a run folder to read it from; what a former start left goes.

        Raises RequestError where one cannot.
        """
        shutil.rmtree(self._own, ignore_errors=True)
        adapter = self._served(self.adapters.seats[0])
        assert adapter is not None
        for member in self._fleet.members:
            with self._refusing(member, f" (vllm serve ... {self._flags}; it must see {adapter.folder})"):
                for left in member.server.models():
                    if left.name.startswith(self._prefix):
                        unload(member.server, left.name)
                member.server.load(adapter.name, adapter.folder)
                member.loaded.add(adapter.name)

    @property
    def _flags(self) -> str:
        ranks = f"--max-lora-rank {self._limits['max_lora_rank']}"
        return f"--enable-lora --max-loras {self._limits['max_loras']} {ranks}"

    def _served(self, seat: str) -> Adapter | None:
        """What serves a seat or a snapshot as it is now; None for the base. Raises RolloutsLost where it cannot be
        written."""
        try:
            found: Adapter | None = self._requests.of(seat)
        except (OSError, SafetensorError) as error:
            why = getattr(error, "strerror", None) or error
            raise RolloutsLost(f"rollouts: cannot write an adapter for the servers to {self._folder}: {why}") from None
        return found

    def _adapter(self, name: str, number: int, folder: Path) -> Adapter:
        seat, seen = name.partition("-")[2], self._rollouts.section.seen_as
        place = PurePosixPath(seen, folder.relative_to(self._root)) if seen else folder
        self._names[number] = Adapter(f"{self._start}-{number}-{seat}-v{self.adapters.version(seat)}", str(place))
        return self._names[number]

    def _forget(self, number: int) -> None:
        self._fleet.forget(self._names.pop(number).name)

    def close(self) -> None:
        for adapter in self._names.values():
            self._fleet.forget(adapter.name, LAST_WORDS_S)
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._own.rmdir()  # unless the run goes on elsewhere already
        super().close()

    # Whether a server serves the run's base

    @contextlib.contextmanager
    def _refusing(self, member: Member, hint: str = "") -> Iterator[None]:
        try:
            yield
        except ServerFailed as failed:
            raise RequestError(f"--rollouts: {member.server.address} {failed}{hint}") from None

    def _meet(self, member: Member) -> None:
        server, longest = member.server, self._rollouts.longest
        base = self._base_of(server)
        member.name = base.name
        if base.longest is not None and base.longest < longest:
            raise ServerFailed(
                f"reads up to {base.longest:,} tokens, and a prompt and its completion may take {longest:,}: start it "
                "with a larger --max-model-len, or lower run.max_prompt_tokens or max_completion_tokens"
            )
        if not server.takes_adapters():
            raise ServerFailed(
                "loads no adapters while it runs: start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and vllm serve ... "
                f"{self._flags}"
            )
        if server.tokenize(base.name, PROBE) != list(self._rollouts.tokens(PROBE)):
            raise ServerFailed(f"divides a text into other tokens than the run's base: {base.name} is another model")
        self._compare(member, 1.0)
        for temperature in sorted({*self._rollouts.temperatures} - {1.0}):
            self._compare(member, temperature)

    def _base_of(self, server: VllmServer) -> Served:
        """The base that a server serves."""
        asked = self._rollouts.section.model
        bases = [one for one in server.models() if one.parent is None]
        names = ", ".join(one.name for one in bases) or "none"
        if asked is not None:
            bases = [one for one in bases if one.name == asked]
        if len(bases) != 1:
            what = f"no base called {asked!r}" if asked else f"{len(bases)} bases, of which rollouts.model chooses one"
            raise ServerFailed(f"has {what}: it serves {names}")
        return bases[0]

    def _compare(self, member: Member, temperature: float) -> None:
        """Raises ServerFailed where the base's own completions are none of the run's base, or are noted otherwise."""
        require_temperature(temperature)
        sampling = Sampling(temperature=temperature, max_tokens=PROBE_TOKENS)
        prompt = list(self._rollouts.tokens(PROBE))
        rows = [self._row(prompt, sampling, seed) for seed in range(PROBES)]
        made = [member.server.complete(row(member.name)) for row in rows]
        noted = [value for one in made for value in one.logprobs]
        read = [(prompt, one.token_ids) for one in made]

        def distance(at: float) -> float:
            own = [value for scores in self.score(BASE, read, at) for value in scores.logprobs]
            return statistics.median(abs(a - b) for a, b in zip(noted, own, strict=True))

        gap = distance(temperature)
        if temperature != 1.0 and distance(1.0) < gap / 2:
            raise ServerFailed(
                f"notes log-probabilities before the temperature, which is {temperature:g} here: start it with "
                "--logprobs-mode processed_logprobs"
            )
        if gap > FAR:
            raise ServerFailed(
                f"does not serve the run's base: log-probabilities of {member.name} are {gap:.2g} nats a token from "
                "those computed here"
            )


def require_temperature(temperature: float) -> None:
    """Raises RequestError for a temperature that vLLM samples at otherwise."""
    if temperature > HOTTEST or 0 < temperature < COLDEST:
        raise RequestError(
            f"vLLM samples at temperatures from {COLDEST:g} to {HOTTEST:g}, and {temperature:g} is asked for: set the "
            "temperature of the role (or of eval, or cold_start), or leave out --rollouts"
        )
