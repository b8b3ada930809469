"""vLLM's HTTP interface: what a server is asked, and how its answers are read. An answer that is odd is not used.

Written to the sources of vLLM 0.33 and its OpenAI-compatible protocol. What it does without an error, and what is done
about it here:

- It fills in what a request leaves open from the model's own `generation_config.json`, such as top-k, or from how it
  was started, such as a watermark: every setting is sent.
- It ends completions at end-of-sequence tokens of its own choice: it is told to ignore them, and which ones end a
  completion.
- It draws the completions of one request from one seed: each completion is a request.
- It lowers `max_tokens` where its context is too short: lengths are compared.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import httpx

from lite_selfplay.data import Sampling, StopReason
from lite_selfplay.errors import RequestError
from lite_selfplay.models.backends.vllm import SEED_BITS
from lite_selfplay.models.generation.sampling import Generation

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
