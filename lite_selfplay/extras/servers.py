"""A backend whose completions come from servers that have the same base, and the seats as LoRA adapters.

What computes (updates, scores, references) is the transformers backend in this process. A seat is loaded anew by every
server, under another name, whenever its weights have changed. Rows are spread over the servers, and each is asked for
until an answer to it is whole, by another server where one fails. That a server serves the run's base and the seats'
newest weights is for the sampler's check to find out, before the first step and in every one.

Its HTTP interface is that of the sources of vLLM 0.33 and its OpenAI-compatible protocol; an answer that is odd is
not used. What it does without an error, and what is done about it here:

- It fills in what a request leaves open from the model's own `generation_config.json`, such as top-k, or from how it
  was started, such as a watermark: every setting is sent.
- It ends completions at end-of-sequence tokens of its own choice: it is told to ignore them, and which ones end a
  completion.
- It draws the completions of one request from one seed: each completion is a request.
- It lowers `max_tokens` where its context is too short: lengths are compared.
"""

import json
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import anyio
import httpx
from anyio.from_thread import start_blocking_portal

from lite_selfplay.data import Sampling, StopReason
from lite_selfplay.errors import RequestError, RolloutsLost
from lite_selfplay.models.backends.backend import REMEDY, Rollouts
from lite_selfplay.models.backends.transformers import TransformersBackend
from lite_selfplay.models.backends.vllm import SEED_BITS, LoraRequests, lora_limits, require_temperature
from lite_selfplay.models.generation.sampling import Generation, GenerationRequest
from lite_selfplay.tasks.files import write_errors

KEY_VARIABLE = "VLLM_API_KEY"
"""The environment variable that vLLM takes its own key from, and this library the key to send."""
CONNECT_S = 10.0
"""Seconds that a server may take to accept a connection."""
LEAST, MOST = -1e4, 1e-3
"""Between which log-probabilities lie: vLLM says -9,999 in place of less, and rounding may bring one above 0."""

T = TypeVar("T")
Adapter = tuple[str, str]
"""A state of a seat or a snapshot: the name that stands for it alone, and its folder as servers see it."""


class ServerFailed(RequestError):
    """A server did not give what it was asked for; the message begins with its address."""

    def __init__(self, address: str, clause: str):
        # What a server says may be anything, and is shown on a terminal.
        super().__init__(f"{address} {''.join(c if c.isprintable() else ' ' for c in clause)[:1000]}")


class Server:
    """A server by its address. Its methods are called in one event loop, and raise ServerFailed.

    `timeout_s` bounds the time for an answer. `base` is the base's name on it, `busy` counts the completions that it is
    asked for, `failures` are those since its last completion.
    """

    def __init__(self, address: str, timeout_s: float):
        self.address, self.base, self.busy = address, "", 0
        self.failures: list[str] = []
        self._client = httpx.AsyncClient(
            base_url=address,
            headers={"Authorization": f"Bearer {os.environ[KEY_VARIABLE]}"} if os.environ.get(KEY_VARIABLE) else {},
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def ask(self, path: str, body: Mapping[str, Any] | None, read: Callable[[bytes], T]) -> T:
        """What `read` makes of its answer to a POST, or to a GET where there is no body."""
        try:
            answer = await self._client.request("POST" if body else "GET", path, json=body)
        except httpx.HTTPError as error:
            why = f"{type(error).__name__} {error}".strip()
            raise ServerFailed(self.address, f"cannot be reached, or did not answer ({why})") from None
        if answer.status_code != 200:
            said = " ".join(answer.text.split())[:300]
            raise ServerFailed(self.address, f"answers with HTTP status {answer.status_code}: {said}")
        try:
            return read(answer.content)
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise ServerFailed(self.address, f"answers what cannot be used: {error}") from None

    async def bases(self) -> dict[str, int]:
        """The names of its base, and how many tokens each reads."""
        return await self.ask(
            "/v1/models",
            None,
            lambda content: {
                str(card["id"]): int(card["max_model_len"])
                for card in json.loads(content)["data"]
                if not card["parent"]
            },
        )

    async def load(self, adapter: Adapter) -> None:
        """Have it serve an adapter, unless it does. What goes wrong is among its `failures`."""
        try:
            await self.ask("/v1/load_lora_adapter", {"lora_name": adapter[0], "lora_path": adapter[1]}, bytes)
        except ServerFailed as failed:
            if "has already been loaded" not in str(failed):
                self.failures.append(str(failed))

    async def complete(self, adapter: Adapter | None, request: Mapping[str, Any], vocabulary: int) -> Generation:
        """The completion that `request_of` asks for, by an adapter or by the base, which has so many tokens."""
        asked = {**request, "model": self.base if adapter is None else adapter[0]}
        self.busy += 1
        try:
            if adapter is not None and self.failures:  # it may have been started anew
                await self.load(adapter)
            found = await self.ask(
                "/v1/completions", asked, lambda content: read_completion(content, asked, vocabulary)
            )
        except ServerFailed as failed:
            self.failures.append(str(failed))
            raise
        finally:
            self.busy -= 1
        self.failures.clear()
        return found


def request_of(prompt: Sequence[int], sampling: Sampling, seed: int, eos_ids: Sequence[int]) -> dict[str, Any]:
    """The body of `POST /v1/completions` for one completion, without the `model`."""
    return {
        "prompt": list(prompt),
        "n": 1,
        "seed": seed & SEED_BITS,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "watermarking": False,
        "stop": list(sampling.stop),
        "include_stop_str_in_output": True,
        "stop_token_ids": sorted(set(eos_ids)),
        "ignore_eos": True,
        "skip_special_tokens": True,
        "logprobs": 0,  # of the sampled token alone
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": False,
    }


def read_completion(content: bytes, request: Mapping[str, Any], vocabulary: int) -> Generation:
    """The completion in an answer to `request`, of a base with so many tokens.

    Raises LookupError, TypeError, ValueError or RecursionError where anything about it is odd.
    """
    answer = json.loads(content)
    (choice,) = answer["choices"]
    ids, logprobs, names = choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["logprobs"]["tokens"]
    reason, most, ends = choice["finish_reason"], request["max_tokens"], request["stop_token_ids"]
    stop: StopReason = "eos" if ids[-1] in ends else "string" if reason == "stop" else "length"
    ended = {
        "eos": reason in ("stop", "length") and len(ids) <= most,
        "string": bool(request["stop"]) and len(ids) <= most,
        "length": reason == "length" and len(ids) == most,
    }
    fits = {
        f"{answer['model']!s:.100} speaks, not {request['model']}": answer["model"] == request["model"],
        "another prompt": choice["prompt_token_ids"] == request["prompt"],
        f"tokens that are not of the base's {vocabulary:,}": all(
            type(token) is int and 0 <= token < vocabulary for token in ids
        ),
        "log-probabilities of other tokens": len(logprobs) == len(ids)
        and names == [f"token_id:{token}" for token in ids],
        "log-probabilities that are not finite numbers of at most 0": all(
            type(value) in (int, float) and LEAST <= value <= MOST for value in logprobs
        ),
        "a completion that goes on behind its end": not any(token in ends for token in ids[:-1]),
        f"a completion of up to {most:,} tokens that ends after {len(ids):,} ({reason!s:.40})": ended[stop],
    }
    for what in (what for what, fine in fits.items() if not fine):
        raise ValueError(what)
    return Generation(ids, [min(float(value), 0.0) for value in logprobs], stop)


RESTS_S: tuple[float, ...] = (0.0, 0.5, 2.0, 8.0)
"""Seconds to wait before each time that a completion is asked for; it is given up after the last."""
LOOK_EVERY_S = 0.05
"""Seconds between two calls of `poll` while servers are waited for."""
MOST_ADAPTERS = 16
"""States of seats and snapshots that lie on the disk for servers at a time."""


class ServedBackend(TransformersBackend):
    """The transformers backend, with completions that come from servers.

    The servers are asked at once whether they can serve the run: raises RequestError where one cannot.
    """

    samples_elsewhere = True

    def __init__(self, *arguments: Any, rollouts: Rollouts, **options: Any):
        super().__init__(*arguments, **options)
        self._section, self._longest = rollouts.section, rollouts.longest
        self._servers = [Server(address, self._section.timeout_s) for address in self._section.servers]
        self._room = anyio.Semaphore(self._section.rows_at_once * len(self._servers))
        base: Any = self.adapters.model.get_base_model()
        self._vocabulary = int(base.config.get_text_config().vocab_size)
        self._root = Path(self._section.folder or rollouts.folder).resolve()
        # Another one at every start: a resumed run has other weights under the numbers that a killed one had reached.
        folder = self._root / f"lite-selfplay-{secrets.token_hex(4)}"
        self._undoing.callback(shutil.rmtree, folder if self._section.folder else self._root, ignore_errors=True)
        self._requests = LoraRequests(self.adapters, folder, self._adapter, most=MOST_ADAPTERS)
        self._portal = self._undoing.enter_context(start_blocking_portal())
        try:
            self._flags = "--enable-lora --max-loras {max_loras} --max-lora-rank {max_lora_rank}".format(
                **lora_limits(self.adapters.ranks())
            )
            for server in self._servers:
                self._meet(server)
        except BaseException:
            self.close()
            raise

    def _meet(self, server: Server) -> None:
        bases = self._run(server.bases)
        server.base = self._section.model or next(iter(bases), "")
        if server.base not in bases:
            raise RequestError(f"{server.address} has no base {server.base!r}: it serves {', '.join(bases) or 'none'}")
        if bases[server.base] < self._longest:
            raise RequestError(
                f"{server.address} reads up to {bases[server.base]:,} tokens, and a prompt and its completion may take "
                f"{self._longest:,}: start it with a larger --max-model-len, or lower run.max_prompt_tokens or "
                "max_completion_tokens"
            )
        try:
            self._run(server.ask, "/v1/load_lora_adapter", {"lora_name": "", "lora_path": ""}, bytes)
        except ServerFailed as failed:
            if "must be provided" not in str(failed):  # as is said where adapters are taken
                raise RequestError(
                    f"{failed}: start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and vllm serve ... {self._flags}"
                ) from None

    def generate(self, request: GenerationRequest) -> list[list[Generation]]:
        """What `Backend.generate` gives: each row asked for by itself, with its seed.

        Raises RequestError for a temperature that vLLM samples at otherwise, RolloutsLost where no server gives a
        completion, or an adapter cannot be written for them.
        """
        require_temperature(request.sampling.temperature, REMEDY)
        self._decoding.check(request)
        with write_errors(f"an adapter for the servers to {self._root}", RolloutsLost):
            adapter: Adapter | None = self._requests.of(request.seat)
        rows = [
            request_of(prompt, request.sampling, seed, self._decoding.eos_ids)
            for prompt, seeds in zip(request.prompts, request.seeds, strict=True)
            for seed in seeds
        ]
        known = [server for server in self._servers if server.failures]
        found = iter(self._run(self._sample, adapter, rows))
        for server in self._servers:
            if server.failures and server not in known:
                self._warn(f"rollouts: {server.failures[0]}; it is asked again once all others have failed as often")
        return [[self._decoding.end_loop(next(found)) for _ in seeds] for seeds in request.seeds]

    async def _sample(self, adapter: Adapter | None, rows: Sequence[Mapping[str, Any]]) -> list[Generation]:
        async with anyio.create_task_group() as loading:
            for server in self._servers:
                if adapter is not None and not server.failures:
                    loading.start_soon(server.load, adapter)
        found: dict[int, Generation] = {}
        failed: dict[int, str] = {}
        async with anyio.create_task_group() as sampling:
            for number, row in enumerate(rows):
                sampling.start_soon(self._complete, adapter, row, number, found, failed)
        if len(found) < len(rows):
            # A server whose other completions went well has forgotten why this one did not.
            said = "; ".join(server.failures[0] for server in self._servers if server.failures)
            said = said or next(why for number, why in failed.items() if number not in found)
            raise RolloutsLost(
                f"no server of rollouts is left: {said} (vllm serve needs {self._flags}, and has to see {self._root}). "
                "--resume takes other --rollouts, or `none`"
            )
        return [found[number] for number in range(len(rows))]

    async def _complete(
        self,
        adapter: Adapter | None,
        row: Mapping[str, Any],
        number: int,
        found: dict[int, Generation],
        failed: dict[int, str],
    ) -> None:
        """Find a row's completion by an adapter, or by the base: that of the first answer that is whole. Note what last
        went wrong with it."""
        async with self._room:
            for rest in RESTS_S:
                await anyio.sleep(rest)
                server = min(self._servers, key=lambda one: (len(one.failures), one.busy))
                try:
                    found[number] = await server.complete(adapter, row, self._vocabulary)
                    return
                except ServerFailed as error:
                    failed[number] = str(error)

    def _run(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """What asynchronous work comes to. Signals are looked for meanwhile, and end it."""
        future = self._portal.start_task_soon(work, *arguments)
        try:
            while not wait([future], LOOK_EVERY_S).done:
                self._decoding.poll()
        finally:
            future.cancel()  # unless it is done
        return future.result()

    def _adapter(self, name: str, number: int, folder: Path) -> Adapter:
        seat, seen = name.partition("-")[2], self._section.seen_as
        place = PurePosixPath(seen, folder.relative_to(self._root)) if seen else folder
        return f"{folder.parent.name}-{name}-v{self.adapters.version(seat)}", str(place)
