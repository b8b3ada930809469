"""A vLLM server over HTTP: what it is asked, and how its answers are read. Nothing is used of an answer that is odd.

Written to the sources of vLLM 0.33 and its OpenAI-compatible protocol. What it does without an error, and what is done
about it here:

- It fills in what a request leaves open from the model's own `generation_config.json`, such as top-k: every setting is
  sent.
- It ends completions at end-of-sequence tokens of its own choice: it is told to ignore them, and which ones end a
  completion.
- It draws the completions of one request from one seed: each completion is a request.
- It lowers `max_tokens` where its context is too short: lengths are compared.
- It tells of a name that it does not know, and of a path that it does not have, by one status: the message is read.
"""

import contextlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from lite_selfplay.data import Sampling
from lite_selfplay.models.generation.sampling import Generation

KEY_VARIABLE = "VLLM_API_KEY"
"""The environment variable that vLLM takes its own key from, and this library the key to send."""
CONNECT_S = 10.0
"""Seconds that a server may take to accept a connection."""
SMALL = 1 << 20
"""Bytes of an answer that holds no completion, at most."""
TOKEN_BYTES = 1024
"""Bytes of an answer for each of its tokens, at most."""
LEAST, MOST = -1e4, 1e-3
"""Between which log-probabilities lie: vLLM says -9,999 in place of less, and rounding may bring one above 0."""
_SEED_BITS = 0x7FFF_FFFF_FFFF_FFFF


class ServerFailed(Exception):
    """A server did not give what it was asked for: a clause says why, to follow its address.

    `lasting`: there is no use in asking again. `status` is that of its answer, where it gave one.
    """

    def __init__(self, clause: str, *, lasting: bool = False, status: int | None = None):
        # What a server says may be anything, and is shown on a terminal.
        super().__init__("".join(c if c.isprintable() else " " for c in clause)[:1000])
        self.lasting, self.status = lasting, status

    @property
    def not_served(self) -> bool:
        """Whether it has no model of the name that was asked, as after a restart."""
        return self.status == 404 and "does not exist" in str(self)


@dataclass(frozen=True)
class Served:
    """A model that a server names: a base, or an adapter over its `parent`."""

    name: str
    parent: str | None
    longest: int | None


@dataclass(frozen=True)
class Wanted:
    """One completion: of which model, after which prompt, ended by which ids, within a vocabulary of so many tokens."""

    model: str
    prompt: Sequence[int]
    sampling: Sampling
    seed: int
    eos_ids: Sequence[int]
    vocabulary: int


class VllmServer:
    """A server by its address. Its methods may be called from several threads, and raise ServerFailed.

    `timeout_s` bounds the time for a completion, or for loading an adapter.
    """

    def __init__(self, address: str, timeout_s: float):
        self.address, self._timeout_s = address, timeout_s
        parts = urlsplit(address)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connect = lambda: kind(parts.hostname or "", parts.port, timeout=CONNECT_S)
        self._path = parts.path
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()

    def models(self) -> list[Served]:
        """The models it serves."""
        answer = self._ask("GET", "/v1/models", timeout_s=CONNECT_S)
        try:
            cards = [(card["id"], card.get("parent"), card.get("max_model_len")) for card in answer["data"]]
        except (AttributeError, LookupError, TypeError):
            raise ServerFailed("does not list its models as vLLM does", lasting=True) from None
        fits = all(isinstance(n, str) and isinstance(p, str | None) and isinstance(m, int | None) for n, p, m in cards)
        if not fits:
            raise ServerFailed("does not list its models as vLLM does", lasting=True)
        return [Served(*card) for card in cards]

    def tokenize(self, model: str, text: str) -> list[int]:
        """The ids of plain text under its tokenizer, without special tokens."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        answer = self._ask("POST", "/tokenize", body, timeout_s=CONNECT_S)
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise ServerFailed("does not say how it divides a text into tokens")
        return tokens

    def takes_adapters(self) -> bool:
        """Whether adapters can be loaded while it runs: it is asked to load one without a name, which it refuses."""
        try:
            self._ask("POST", "/v1/load_lora_adapter", {"lora_name": "", "lora_path": ""}, timeout_s=CONNECT_S)
        except ServerFailed as failed:
            if failed.status in (404, 405):
                return False
            if failed.status != 400:
                raise
        return True

    def load(self, name: str, folder: str) -> None:
        """Have it serve the adapter in a folder, as it sees it, by a name."""
        try:
            self._ask("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder}, answers=False)
        except ServerFailed as failed:
            if "has already been loaded" not in str(failed):  # a name stands for one state of the weights
                raise

    def unload(self, name: str) -> None:
        """Have it serve that adapter no longer."""
        body = {"lora_name": name}
        self._ask("POST", "/v1/unload_lora_adapter", body, timeout_s=CONNECT_S, answers=False)

    def complete(self, wanted: Wanted) -> Generation:
        """A completion with the log-probabilities that the server gave its tokens."""
        most = SMALL + TOKEN_BYTES * (len(wanted.prompt) + wanted.sampling.max_tokens)
        return read_completion(self._ask("POST", "/v1/completions", request_of(wanted), most=most), wanted)

    def hang_up(self) -> None:
        """End whatever it is being asked: it fails for whoever asked."""
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    # HTTP

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        most: int = SMALL,
        answers: bool = True,
    ) -> Any:
        """A request, and the JSON of its answer: None without `answers`."""
        limit = timeout_s or self._timeout_s
        until = time.monotonic() + limit
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        content = None if body is None else json.dumps(body).encode()
        try:
            with self._connected() as (connection, line):
                line.settimeout(limit)
                connection.request(method, self._path + path, content, headers)
                response = connection.getresponse()
                raw = _read(response, line, until, most)
        except TimeoutError:
            raise ServerFailed(f"did not answer within {limit:g} s", lasting=True) from None
        except (OSError, http.client.HTTPException) as error:
            raise ServerFailed(f"cannot be reached, or hung up ({error or type(error).__name__})") from None
        if response.status != 200:
            raise _refusal(response.status, raw)
        if not answers:
            return None
        try:
            return json.loads(raw, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise ServerFailed(f"answers with what is not JSON ({error})") from None

    @contextlib.contextmanager
    def _connected(self) -> Iterator[tuple[http.client.HTTPConnection, socket.socket]]:
        connection = self._connect()
        try:
            connection.connect()
        except TimeoutError:
            raise ConnectionError(f"no connection within {CONNECT_S:g} s") from None
        line = connection.sock
        assert line is not None
        with self._lock:
            self._sockets.add(line)
        try:
            yield connection, line
        finally:
            with self._lock:
                self._sockets.discard(line)
            connection.close()


def _read(response: http.client.HTTPResponse, line: socket.socket, until: float, most: int) -> bytes:
    """The body of an answer. Raises TimeoutError, ServerFailed where it is too long, IncompleteRead where it ends."""
    parts, size = [], 0
    while part := response.read1(1 << 16):
        parts.append(part)
        size += len(part)
        if size > most:
            raise ServerFailed(f"answers with more than {most:,} bytes")
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        line.settimeout(left)
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(parts)


def _refusal(status: int, raw: bytes) -> ServerFailed:
    """What an answer that is none says."""
    message = ""
    with contextlib.suppress(ValueError, RecursionError, LookupError, TypeError):
        found = json.loads(raw)
        message = str(found["error"]["message"] if "error" in found else found.get("detail", ""))
    said = " ".join(message.split())[:300]
    clause = f"answers with HTTP status {status}" + (f": {said}" if said else "")
    failed = ServerFailed(clause, status=status)
    # Asked again, a server that is overloaded, starting or restarting may do it; one that takes no such request not.
    failed.lasting = 300 <= status < 500 and status not in (408, 425, 429) and not failed.not_served
    return failed


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


# Completions


def request_of(wanted: Wanted) -> dict[str, Any]:
    """The body of `POST /v1/completions` for one completion."""
    sampling = wanted.sampling
    return {
        "model": wanted.model,
        "prompt": list(wanted.prompt),
        "n": 1,
        "seed": wanted.seed & _SEED_BITS,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": list(sampling.stop),
        "include_stop_str_in_output": True,
        "stop_token_ids": sorted(set(wanted.eos_ids)),
        "ignore_eos": True,
        "skip_special_tokens": True,
        "logprobs": 0,  # of the sampled token alone
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": False,
    }


def read_completion(answer: Any, wanted: Wanted) -> Generation:
    """The completion in an answer to `request_of(wanted)`. Raises ServerFailed where anything about it is odd."""
    try:
        (choice,) = answer["choices"]
        model, reason, prompt = answer["model"], choice["finish_reason"], choice["prompt_token_ids"]
        ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        spelled = choice["logprobs"]["tokens"]
        lengths = len(ids), len(logprobs), len(spelled)
    except (LookupError, TypeError, ValueError):
        raise ServerFailed("answers without the tokens of one completion, or their log-probabilities") from None
    if model != wanted.model:
        raise ServerFailed(f"answers as {str(model)[:100]!r} where {wanted.model!r} was asked")
    if prompt != list(wanted.prompt):
        raise ServerFailed("answers to another prompt than it was sent")
    if len(set(lengths)) != 1 or not 0 < len(ids) <= wanted.sampling.max_tokens:
        raise ServerFailed("answers with {} tokens, {} log-probabilities and {} names of tokens".format(*lengths))
    if not all(type(token) is int and 0 <= token < wanted.vocabulary for token in ids):
        raise ServerFailed(f"answers with tokens that are not of the base's {wanted.vocabulary:,}")
    if spelled != [f"token_id:{token}" for token in ids]:
        raise ServerFailed("answers with log-probabilities of other tokens than it sampled")
    if not all(type(x) in (int, float) and LEAST <= x <= MOST for x in logprobs):  # no NaN is
        raise ServerFailed("answers with log-probabilities that are not finite numbers of at most 0")
    return Generation(ids, [min(float(x), 0.0) for x in logprobs], _stop(reason, ids, wanted))


def _stop(reason: Any, ids: Sequence[int], wanted: Wanted) -> Any:
    """Why a completion ended. Raises ServerFailed where it should not have, or should have before."""
    sampling, ends = wanted.sampling, frozenset(wanted.eos_ids)
    if any(token in ends for token in ids[:-1]):
        raise ServerFailed("goes on behind the end of a completion")
    if reason in ("stop", "length") and ids[-1] in ends:
        return "eos"
    if reason == "stop" and sampling.stop:
        return "string"
    if reason == "length" and len(ids) == sampling.max_tokens:
        return "length"
    raise ServerFailed(f"ends a completion of up to {sampling.max_tokens:,} tokens after {len(ids):,} ({reason!s:.40})")
