"""A backend that samples on vLLM servers, which serve the same base model, and the seats as LoRA adapters.

The transformers backend in this process computes everything else, such as updates. Whenever a seat's weights have
changed, every server loads them under a new name. Completions are spread over the servers; a failed request is sent
again, to another server if there is one. Before the first step and in every step, the trainer compares the servers'
log-probabilities with its own. So a server with another base ends the run before its first step, and a step sampled
from older weights does not update the seats.

The HTTP interface is vLLM 0.33's OpenAI-compatible protocol; a request fails if its answer does not conform to it. vLLM
does the following silently, so the backend works around it:

- It takes settings missing in a request from the model's `generation_config.json` (such as top-k) or from its own
  command line (such as a watermark), so the backend sends every setting.
- It ends completions at end-of-sequence tokens of its choice, so the backend tells it to ignore them, and lists those
  that end a completion.
- It samples all completions of a request from one seed, so the backend sends one request per completion.
- It lowers `max_tokens` if its context is too short, so the backend rejects a completion that was cut off after fewer
  tokens than it requested.
"""

import asyncio
import json
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import httpx
from anyio.from_thread import start_blocking_portal

from lite_selfplay.data import Sampling, StopReason
from lite_selfplay.errors import RequestError, RolloutsLost
from lite_selfplay.models.backends.backend import REMEDY, Rollouts
from lite_selfplay.models.backends.transformers import TransformersBackend
from lite_selfplay.models.backends.vllm import SEED_BITS, LoraRequests, lora_limits, require_temperature
from lite_selfplay.models.generation.sampling import Generation, GenerationRequest
from lite_selfplay.tasks.files import JSON_LIMIT, write_errors

KEY_VARIABLE = "VLLM_API_KEY"  # the environment variable with the API key, for vLLM and for this library
ANSWER_LIMIT = JSON_LIMIT  # bytes of a server's answer
LEAST, MOST = -1e4, 1e-3
"""Bounds of valid log-probabilities: vLLM's lowest is -9,999, and rounding may bring one above 0."""

T = TypeVar("T")
Adapter = tuple[str, str]
"""(name, folder) of one version of a seat's or snapshot's weights: a unique name, and the folder as servers see it."""


class ServerFailed(RequestError):
    """A request to a vLLM server failed. The message is the server's URL `address`, followed by the reason `clause`."""

    def __init__(self, address: str, clause: str):
        # A server's text may hold anything, and is shown on a terminal.
        super().__init__(f"{address} {''.join(c if c.isprintable() else ' ' for c in clause)[:1000]}")


class Server:
    """A client of one vLLM server. Its methods must be called in one event loop. They raise ServerFailed if a request
    fails, except `load`, which only notes the failure in `failures`.

    - `address`: the server's URL
    - `timeout_s`: the seconds that a request may take
    - `base`: the base model's name on the server; empty until the backend sets it
    - `busy`: the number of completions in progress
    - `failures`: the messages of requests that failed since the last successful completion
    """

    def __init__(self, address: str, timeout_s: float):
        self.address, self.base, self.busy, self._timeout_s = address, "", 0, timeout_s
        self.failures: list[str] = []
        self._client = httpx.AsyncClient(
            base_url=address,
            headers={"Authorization": f"Bearer {os.environ[KEY_VARIABLE]}"} if os.environ.get(KEY_VARIABLE) else {},
            timeout=httpx.Timeout(timeout_s, connect=10.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def ask(self, path: str, body: Mapping[str, Any] | None, read: Callable[[bytes], T]) -> T:
        """Send a request to the URL path `path`, as a POST with `body` as JSON, or as a GET if `body` is None. Returns
        `read(content)` for the content of the answer. Raises ServerFailed if there is no answer, if its HTTP status is
        not 200, or if `read` cannot parse it."""
        content, method = bytearray(), "POST" if body else "GET"
        try:
            # httpx bounds only the wait for the next bytes.
            async with asyncio.timeout(self._timeout_s), self._client.stream(method, path, json=body) as answer:
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > ANSWER_LIMIT:
                        raise ServerFailed(self.address, f"gave an answer of more than {ANSWER_LIMIT:,} bytes")
        except (httpx.HTTPError, TimeoutError) as error:
            why = f"{type(error).__name__} {error}".strip()
            raise ServerFailed(self.address, f"cannot be reached, or did not answer ({why})") from None
        if answer.status_code != 200:
            said = " ".join(content.decode("utf-8", "replace").split())[:300]
            raise ServerFailed(self.address, f"answers with HTTP status {answer.status_code}: {said}")
        try:
            return read(bytes(content))
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise ServerFailed(self.address, f"gave an invalid answer: {error}") from None

    async def bases(self) -> dict[str, int]:
        """The context length in tokens of each base model (not of adapters) on the server, by its name."""
        return await self.ask(
            "/v1/models",
            None,
            lambda content: {
                str(model["id"]): int(model["max_model_len"])
                for model in json.loads(content)["data"]
                if not model["parent"]
            },
        )

    async def load(self, adapter: Adapter) -> None:
        """Let the server load the LoRA adapter `adapter`, a pair of its name and its folder as the server sees it,
        unless the server has loaded one of this name. An error is not raised; its message is added to `failures`."""
        try:
            await self.ask("/v1/load_lora_adapter", {"lora_name": adapter[0], "lora_path": adapter[1]}, bytes)
        except ServerFailed as failed:
            if "has already been loaded" not in str(failed):
                self.failures.append(str(failed))

    async def complete(self, adapter: Adapter | None, request: Mapping[str, Any], vocabulary: int) -> Generation:
        """Sample one completion. `adapter` is a pair of a LoRA adapter's name and its folder as the server sees it, or
        None for the base model alone. `request` comes from `request_of`. `vocabulary` is the base model's number of
        tokens; token ids must be below it. If a request has failed since the last completion, the adapter is loaded
        again first. Raises ServerFailed if the completion's request fails or its answer is invalid."""
        asked = {**request, "model": self.base if adapter is None else adapter[0]}
        self.busy += 1
        try:
            if adapter is not None and self.failures:  # the server may have been restarted
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
    """The JSON body of a request to `/v1/completions` of vLLM for one completion, with the settings `sampling` and the
    seed `seed`. The caller adds the key `model`. `prompt` has the prompt's token ids, and `eos_ids` are the ids of the
    tokens that end a completion."""
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
        "logprobs": 0,  # only of the sampled token
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": False,
    }


def read_completion(content: bytes, request: Mapping[str, Any], vocabulary: int) -> Generation:
    """Parse a server's JSON answer `content`, and check that it is a possible answer to the request body `request`.
    Token ids must be below `vocabulary`, the base model's number of tokens. Raises LookupError, TypeError, ValueError
    or RecursionError if a part is missing, malformed, or does not fit the request, such as another model's answer."""
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
        f"sampled by {answer['model']!s:.100}, not {request['model']}": answer["model"] == request["model"],
        "another prompt": choice["prompt_token_ids"] == request["prompt"],
        f"tokens outside the base's {vocabulary:,}": all(
            type(token) is int and 0 <= token < vocabulary for token in ids
        ),
        "log-probabilities of other tokens": len(logprobs) == len(ids)
        and names == [f"token_id:{token}" for token in ids],
        "log-probabilities that are not finite numbers of at most 0": all(
            type(value) in (int, float) and LEAST <= value <= MOST for value in logprobs
        ),
        "a completion that continues after its end": not any(token in ends for token in ids[:-1]),
        f"a completion of up to {most:,} tokens that ends after {len(ids):,} ({reason!s:.40})": ended[stop],
    }
    if odd := [what for what, fine in fits.items() if not fine]:
        raise ValueError(odd[0])
    return Generation(ids, [min(float(value), 0.0) for value in logprobs], stop)


RESTS_S = (0.0, 0.5, 2.0, 8.0)  # seconds to wait before each of the four attempts at a completion
MOST_ADAPTERS = 16  # the most versions of seats and snapshots kept on disk for servers


class ServedBackend(TransformersBackend):
    """The transformers backend, except that vLLM servers sample the completions. The servers are those of the
    configuration's section `rollouts`. The constructor raises RequestError if a server cannot be reached, lacks the
    run's base model, refuses adapters, or has too short a context for the run's prompts and completions."""

    samples_elsewhere = True

    def __init__(self, *arguments: Any, rollouts: Rollouts, **options: Any):
        super().__init__(*arguments, **options)
        self._section, self._longest = rollouts.section, rollouts.longest
        self._servers = [Server(address, self._section.timeout_s) for address in self._section.servers]
        self._room = asyncio.Semaphore(self._section.rows_at_once * len(self._servers))
        base: Any = self.adapters.model.get_base_model()
        self._vocabulary = int(base.config.get_text_config().vocab_size)
        self._root = Path(self._section.folder or rollouts.folder).resolve()
        # A new name at every start: a resumed run reuses a killed run's version numbers for other weights.
        folder = self._root / f"lite-selfplay-{secrets.token_hex(4)}"
        self._undoing.callback(shutil.rmtree, folder if self._section.folder else self._root, ignore_errors=True)
        self._requests = LoraRequests(self.adapters, folder, self._adapter, MOST_ADAPTERS)
        self._portal = self._undoing.enter_context(start_blocking_portal())
        limits = lora_limits(self.adapters.ranks())
        self._flags = "--enable-lora --max-loras {max_loras} --max-lora-rank {max_lora_rank}".format(**limits)
        try:
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
                f"{server.address} reads up to {bases[server.base]:,} tokens, but a prompt and its completion may take "
                f"{self._longest:,}: start it with a larger --max-model-len, or lower run.max_prompt_tokens or "
                "max_completion_tokens"
            )
        try:
            self._run(server.ask, "/v1/load_lora_adapter", {"lora_name": "", "lora_path": ""}, bytes)
        except ServerFailed as failed:
            if "must be provided" not in str(failed):  # the answer of a server that accepts adapters
                raise RequestError(
                    f"{failed}: start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and vllm serve ... {self._flags}"
                ) from None

    def generate(self, request: GenerationRequest) -> list[list[Generation]]:
        """Sample the completions of `request` on the servers, with one HTTP request per completion. Returns a list of
        completions for each prompt, in the order of the prompts. Raises RequestError for a temperature that vLLM would
        silently change (above 2, or between 0 and 0.01). Raises RolloutsLost if any completion failed in all of its
        four attempts, or if the adapter's files cannot be written."""
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
                self._warn(f"rollouts: {server.failures[0]}; it is used again once all others have failed as often")
        return [[self._decoding.end_loop(next(found)) for _ in seeds] for seeds in request.seeds]

    async def _sample(self, adapter: Adapter | None, rows: Sequence[Mapping[str, Any]]) -> list[Generation]:
        async with asyncio.TaskGroup() as group:
            for server in self._servers:
                if adapter is not None and not server.failures:
                    group.create_task(server.load(adapter))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._complete(adapter, row)) for row in rows]
        found = [task.result() for task in tasks]
        if lost := [each for each in found if isinstance(each, ServerFailed)]:
            # A server's later success has cleared its `failures`.
            said = "; ".join(server.failures[0] for server in self._servers if server.failures) or lost[0]
            raise RolloutsLost(
                f"no rollout server is left: {said} (vllm serve needs {self._flags}, and access to {self._root}). "
                "--resume accepts other --rollouts, or `none`"
            )
        return [each for each in found if isinstance(each, Generation)]

    async def _complete(self, adapter: Adapter | None, body: Mapping[str, Any]) -> Generation | ServerFailed:
        """Sample one completion in up to four attempts, with pauses between them. `adapter` is a pair of a LoRA
        adapter's name and its folder as servers see it, or None for the base model alone. `body` comes from
        `request_of`. Each attempt uses the server with the fewest failures since its last success. Returns the last
        error if every attempt fails."""
        async with self._room:
            for rest in RESTS_S:
                await asyncio.sleep(rest)
                server = min(self._servers, key=lambda one: (len(one.failures), one.busy))
                try:
                    return await server.complete(adapter, body, self._vocabulary)
                except ServerFailed as error:
                    failed = error
        return failed

    def _run(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run the coroutine function `work` in the event loop of a background thread. Returns its result or raises its
        exception. Meanwhile the backend's `poll` is called; if `poll` raises, as after a signal, the coroutine is
        cancelled and the exception of `poll` is passed on."""
        future = self._portal.start_task_soon(work, *arguments)
        try:
            while not wait([future], timeout=0.05).done:
                self._decoding.poll()
        finally:
            future.cancel()  # does nothing if it is done
        return future.result()

    def _adapter(self, name: str, number: int, folder: Path) -> Adapter:
        seat, seen = name.partition("-")[2], self._section.seen_as
        path = PurePosixPath(seen, folder.relative_to(self._root)) if seen else folder
        return f"{folder.parent.name}-{name}-v{self.adapters.version(seat)}", str(path)
