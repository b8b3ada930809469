"""What is read of a server's answers, whatever they hold, and of its connections, however they end."""

import copy
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
from lite_selfplay.models.backends import vllm_server
from lite_selfplay.models.backends.vllm_server import ServerFailed, VllmServer, Wanted, read_completion

WANTED = Wanted("A-v1", [5, 6], Sampling(max_tokens=3), seed=-1, eos_ids=[2], vocabulary=10)
ANSWER: dict[str, Any] = {
    "model": "A-v1",
    "choices": [
        {
            "finish_reason": "length",
            "prompt_token_ids": [5, 6],
            "token_ids": [3, 4, 9],
            "logprobs": {"token_logprobs": [-1, -0.5, 1e-7], "tokens": ["token_id:3", "token_id:4", "token_id:9"]},
        }
    ],
}
PLACES = [
    ("model",),
    ("choices",),
    ("choices", 0),
    *(("choices", 0, key) for key in ANSWER["choices"][0]),
    *(("choices", 0, key, i) for key in ("token_ids", "prompt_token_ids") for i in (0, 1)),
    *(("choices", 0, "logprobs", key) for key in ("token_logprobs", "tokens")),
    *(("choices", 0, "logprobs", key, i) for key in ("token_logprobs", "tokens") for i in (0, 2)),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just(-(10**400)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_a_whole_answer():
    found = read_completion(ANSWER, WANTED)
    assert (found.token_ids, found.logprobs, found.stop) == ([3, 4, 9], [-1.0, -0.5, 0.0], "length")


@given(place=st.sampled_from(PLACES), value=JSON)
def test_any_answer_is_read_or_refused(place: tuple[Any, ...], value: Any):
    answer = copy.deepcopy(ANSWER)
    inner = answer
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    try:
        found = read_completion(answer, WANTED)
    except ServerFailed:
        return
    assert len(found.token_ids) == len(found.logprobs) <= 3
    assert all(type(token) is int and 0 <= token < 10 for token in found.token_ids)
    assert all(type(value) is float and math.isfinite(value) and value <= 0 for value in found.logprobs)


@given(answer=JSON)
def test_any_json_is_refused(answer: Any):
    with pytest.raises(ServerFailed):
        read_completion(answer, WANTED)


@pytest.mark.parametrize(
    ("ids", "reason", "stop"),
    [
        ([3, 2], "stop", "eos"),
        ([3, 4, 2], "length", "eos"),
        ([3, 4], "stop", "string"),
        ([3, 4, 5], "length", "length"),
    ],
)
def test_how_a_completion_ends(ids: list[int], reason: str, stop: str):
    wanted = Wanted("A-v1", [5, 6], Sampling(max_tokens=3, stop=("x",)), 0, [2], 10)
    assert read_completion(ending(ids, reason), wanted).stop == stop


@pytest.mark.parametrize(
    ("ids", "reason"),
    [([3, 4], "stop"), ([3, 4], "length"), ([2, 3, 4], "length"), ([3, 4, 5], "abort"), ([3, 4, 5], None)],
)
def test_how_none_ends(ids: list[int], reason: str | None):
    with pytest.raises(ServerFailed, match=r"ends a completion of up to 3|goes on behind the end"):
        read_completion(ending(ids, reason), WANTED)


def ending(ids: list[int], reason: str | None) -> dict[str, Any]:
    logprobs = {"token_logprobs": [-1.0] * len(ids), "tokens": [f"token_id:{token}" for token in ids]}
    choice = {"finish_reason": reason, "prompt_token_ids": [5, 6], "token_ids": ids, "logprobs": logprobs}
    return {"model": "A-v1", "choices": [choice]}


# Connections


@pytest.fixture
def saying() -> Iterator[Callable[[Callable[[socket.socket], None]], VllmServer]]:
    """A server of one's own that does with each connection what it is given."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve(speak: Callable[[socket.socket], None]) -> VllmServer:
            def accept() -> None:
                try:
                    line, _ = listening.accept()
                    with line:
                        line.recv(1 << 16)
                        speak(line)
                except OSError:
                    pass  # hung up, as it should be

            threading.Thread(target=accept, daemon=True).start()
            return VllmServer(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout_s=1)

        yield serve


def body(text: bytes, length: int | None = None) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text) if length is None else length, text)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (b"", "cannot be reached, or hung up"),
        (b"SSH-2.0-OpenSSH\r\n", "cannot be reached, or hung up"),
        (body(b'{"data": [', 500), "cannot be reached, or hung up"),
        (body(b"<html>"), "not JSON"),
        (body(b"\xff\xfe\x00"), "not JSON"),
        (body(b"[" * 100_000), "not JSON"),
        (body(b'{"data": 1e}'), "not JSON"),
        (body(b'{"data": [{"id": 7}]}'), "does not list its models"),
        (body(b"[]"), "does not list its models"),
        (body(b" " * (vllm_server.SMALL + 1)), "more than 1,048,576 bytes"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere\r\nContent-Length: 0\r\n\r\n", "HTTP status 302"),
        (b'HTTP/1.1 404 \x1b[31m\r\nContent-Length: 24\r\n\r\n{"detail": "\\u001b[31m "}', "HTTP status 404"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_odd_answer_is_a_sentence(saying: Callable[..., VllmServer], said: bytes, sentence: str):
    with pytest.raises(ServerFailed, match=sentence) as failed:
        saying(lambda line: line.sendall(said)).models()
    assert str(failed.value).isprintable()


def test_an_answer_that_drips_takes_no_longer_than_it_may(saying: Callable[..., VllmServer]):
    def drip(line: socket.socket) -> None:
        line.sendall(body(b"", 1000))
        for _ in range(100):
            line.sendall(b" ")
            time.sleep(0.1)

    began = time.monotonic()
    with pytest.raises(ServerFailed, match="did not answer within 1 s") as failed:
        saying(drip)._ask("GET", "/v1/models")
    assert failed.value.lasting
    assert time.monotonic() - began < 5


def test_what_is_being_asked_can_be_hung_up(saying: Callable[..., VllmServer]):
    server = saying(lambda line: time.sleep(3))
    server._timeout_s = 60
    threading.Timer(0.3, server.hang_up).start()
    began = time.monotonic()
    with pytest.raises(ServerFailed, match="hung up"):
        server._ask("GET", "/v1/models")
    assert time.monotonic() - began < 2.5


def test_a_key_is_sent_where_the_environment_has_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            line, _ = listening.accept()
            with line:
                heard.append(line.recv(1 << 16))
                line.sendall(body(b'{"data": []}'))

        threading.Thread(target=accept, daemon=True).start()
        assert VllmServer(f"http://127.0.0.1:{listening.getsockname()[1]}/x", 1).models() == []
    assert b"GET /x/v1/models" in heard[0]
    assert b"Authorization: Bearer secret" in heard[0]
