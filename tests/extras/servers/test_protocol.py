"""What is read of a server's answers, whatever they hold, and of its connections, however they end."""

import asyncio
import contextlib
import copy
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_selfplay.data import Sampling
from lite_selfplay.extras import servers
from lite_selfplay.extras.servers import Server, ServerFailed, read_completion, request_of
from lite_selfplay.models.generation.sampling import Generation

WANTED = {"model": "A-v1", **request_of([5, 6], Sampling(max_tokens=3), -1, [2])}
LOGPROBS = {"token_logprobs": [-1, -0.5, 1e-7], "tokens": ["token_id:3", "token_id:4", "token_id:9"]}
CHOICE = {"finish_reason": "length", "prompt_token_ids": [5, 6], "token_ids": [3, 4, 9], "logprobs": LOGPROBS}
ANSWER: dict[str, Any] = {"model": "A-v1", "choices": [CHOICE]}
NOTED = ("choices", 0, "logprobs")
PLACES = [
    *[("model",), ("choices",), ("choices", 0)],
    *(("choices", 0, key) for key in CHOICE),
    *(("choices", 0, key, i) for key in ("token_ids", "prompt_token_ids") for i in (0, 1)),
    *((*NOTED, key) for key in ("token_logprobs", "tokens")),
    *((*NOTED, key, i) for key in ("token_logprobs", "tokens") for i in (0, 2)),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just(-(10**400)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NO_END = "a completion of up to 3 tokens that ends after"
UNUSABLE = (LookupError, TypeError, ValueError, RecursionError)
"""What `Server.ask` makes a sentence of."""


def read(answer: Any, wanted: dict[str, Any] = WANTED) -> Generation:
    return read_completion(json.dumps(answer).encode(), wanted, 10)


def changed(place: tuple[Any, ...], value: Any) -> Any:
    """The whole answer with another value at a place."""
    answer = copy.deepcopy(ANSWER)
    inner = answer
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return answer


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        (("model",), "another-model", "sampled by another-model, not A-v1"),
        (("choices", 0, "prompt_token_ids"), [6], "another prompt"),
        (("choices", 0, "token_ids", 0), 10, "tokens outside the base's 10"),
        ((*NOTED, "tokens", 0), "token_id:7", "log-probabilities of other tokens"),
        ((*NOTED, "token_logprobs"), [-1, -0.5], "log-probabilities of other tokens"),
        *(((*NOTED, "token_logprobs", 0), odd, "not finite numbers of at most 0") for odd in (math.nan, None, 0.5)),
    ],
)
def test_what_is_odd_is_named(place: tuple[Any, ...], value: Any, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        read(changed(place, value))


def test_a_whole_answer():
    found = read(ANSWER)
    assert (found.token_ids, found.logprobs, found.stop) == ([3, 4, 9], [-1.0, -0.5, 0.0], "length")


@given(place=st.sampled_from(PLACES), value=JSON)
def test_any_answer_is_read_or_refused(place: tuple[Any, ...], value: Any):
    try:
        found = read(changed(place, value))
    except UNUSABLE:
        return
    assert len(found.token_ids) == len(found.logprobs) <= 3
    assert all(type(token) is int and 0 <= token < 10 for token in found.token_ids)
    assert all(type(value) is float and math.isfinite(value) and value <= 0 for value in found.logprobs)


@pytest.mark.parametrize(
    ("ids", "reason", "stops", "found"),
    [
        ([3, 2], "stop", [], "eos"),
        ([3, 4, 2], "length", [], "eos"),
        ([3, 4], "stop", ["x"], "string"),
        ([3, 4, 5], "length", ["x"], "length"),
        ([3, 4], "stop", [], f"{NO_END} 2 (stop)"),
        ([3, 4, 5], None, [], f"{NO_END} 3 (None)"),
        ([2, 3, 4], "length", [], "a completion that continues after its end"),
    ],
)
def test_how_a_completion_ends(ids: list[int], reason: str | None, stops: list[str], found: str):
    logprobs = {"token_logprobs": [-1.0] * len(ids), "tokens": [f"token_id:{token}" for token in ids]}
    choice = {"finish_reason": reason, "prompt_token_ids": [5, 6], "token_ids": ids, "logprobs": logprobs}
    try:
        told: str = read({"model": "A-v1", "choices": [choice]}, {**WANTED, "stop": stops}).stop
    except ValueError as error:
        told = str(error)
    assert told == found


# Connections


@pytest.fixture
def saying() -> Iterator[Callable[..., str]]:
    """A server of one's own that does with each connection, and what it heard, what it is given: its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve(speak: Callable[[socket.socket, bytes], object]) -> str:
            def accept() -> None:
                line, _ = listening.accept()
                with line, contextlib.suppress(OSError):
                    speak(line, line.recv(1 << 16))

            threading.Thread(target=accept, daemon=True).start()
            return f"http://127.0.0.1:{listening.getsockname()[1]}"

        yield serve


def body(text: bytes, length: int | None = None) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text) if length is None else length, text)


def bases(address: str) -> dict[str, int]:
    return asyncio.run(Server(address, timeout_s=1).bases())


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (b"", "cannot be reached, or did not answer"),
        (body(b'{"data": [', 500), "cannot be reached, or did not answer"),
        (body(b"<html>"), "gave an invalid answer"),
        (body(b"[" * 100_000), "gave an invalid answer"),
        (body(b'{"data": [{"id": 7}]}'), "gave an invalid answer"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere\r\nContent-Length: 0\r\n\r\n", "HTTP status 302"),
        (b'HTTP/1.1 404 X\r\nContent-Length: 20\r\n\r\n{"detail": "\x1b[31m "}', "HTTP status 404"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_odd_answer_is_a_sentence(saying: Callable[..., str], said: bytes, sentence: str):
    with pytest.raises(ServerFailed, match=sentence) as failed:
        bases(saying(lambda line, _: line.sendall(said)))
    assert str(failed.value).isprintable()


def test_a_server_that_is_silent_is_not_waited_for_longer_than_it_may_take(saying: Callable[..., str]):
    began = time.monotonic()
    with pytest.raises(ServerFailed, match=r"did not answer .(Read)?Timeout"):
        bases(saying(lambda line, _: time.sleep(8)))
    assert time.monotonic() - began < 5


def test_a_server_that_drips_or_never_ends_is_not_waited_for_either(
    saying: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    def dripping(line: socket.socket, _: bytes) -> None:
        line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(80):
            time.sleep(0.1)
            line.sendall(b" ")

    began = time.monotonic()
    with pytest.raises(ServerFailed, match=r"did not answer .TimeoutError"):
        bases(saying(dripping))
    assert time.monotonic() - began < 5
    monkeypatch.setattr(servers, "ANSWER_LIMIT", 999)
    with pytest.raises(ServerFailed, match="gave an answer of more than 999 bytes"):
        bases(saying(lambda line, _: line.sendall(body(b" " * 1000))))


def test_a_key_is_sent_where_the_environment_has_one(saying: Callable[..., str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    heard: list[bytes] = []
    address = saying(lambda line, said: (heard.append(said), line.sendall(body(b'{"data": []}'))))
    assert bases(f"{address}/x") == {}
    assert b"GET /x/v1/models" in heard[0]
    assert b"Authorization: Bearer secret" in heard[0]
