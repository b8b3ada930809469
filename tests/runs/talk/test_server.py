"""OpenAI's chat completions over a real socket, asked by the official client and by clients that do it wrong."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from lite_selfplay.data import Sampling, Turn
from lite_selfplay.errors import ConfigError
from lite_selfplay.runs.talk import routes
from lite_selfplay.runs.talk.choices import Answer
from lite_selfplay.runs.talk.desk import Desk
from lite_selfplay.runs.talk.reply import Question, Reply
from lite_selfplay.runs.talk.server import Server
from lite_selfplay.runs.talk.speakers import Speakers

KEY = "a-key"
HI: Any = [{"role": "user", "content": "Which letter?"}]


@contextmanager
def serving(speakers: Speakers, most_waiting: int = 64) -> Iterator[tuple[Server, Desk]]:
    with Desk(speakers, most_waiting) as desk:
        server = Server(desk, KEY)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server, desk
        finally:
            server.stop()
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def served(speakers: Speakers) -> Iterator[tuple[Server, Desk]]:
    with serving(speakers) as found:
        yield found


@pytest.fixture(scope="module")
def client(served: tuple[Server, Desk]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served[0].url, api_key=KEY, max_retries=0) as found:
        yield found


@pytest.fixture
def ask(served: tuple[Server, Desk]) -> Callable[..., httpx.Response]:
    """`ask(model="A", ...)` posts those fields over a good request; `ask(content=b"...")` posts these bytes."""

    def ask(content: bytes | None = None, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        body = {"model": "A", "messages": HI, "max_tokens": 4, **fields}
        with_key = {"Authorization": f"Bearer {KEY}", **(headers or {})}
        sent = json.dumps(body).encode() if content is None else content
        return httpx.post(f"{served[0].url}/chat/completions", content=sent, headers=with_key, timeout=60)

    return ask


@pytest.fixture
def slowly(speakers: Speakers, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Make every token take so many seconds."""

    def slow(seconds: float) -> None:
        real = Reply.heard

        def heard(self: Reply, number: int, token: int) -> bool:
            time.sleep(seconds)
            return real(self, number, token)

        monkeypatch.setattr(Reply, "heard", heard)

    return slow


def idle(desk: Desk, within_s: float = 20.0) -> bool:
    end = time.monotonic() + within_s
    while desk.waiting and time.monotonic() < end:
        time.sleep(0.02)
    return not desk.waiting


def directly(speakers: Speakers, name: str, text: str, **sampling: Any) -> Reply:
    asked: Any = text if "->" in name else (Turn("user", text),)
    reply = speakers.reply(Question(name, asked, Sampling(**sampling)))
    speakers.answer([reply])
    return reply


# The official client


def test_the_models(client: openai.OpenAI):
    assert [model.id for model in client.models.list()] == ["base", "A", "B", "A->B", "B->A"]
    assert client.models.retrieve("A->B").id == "A->B"
    with pytest.raises(openai.NotFoundError, match="did you mean"):
        client.models.retrieve("AA")


@pytest.mark.parametrize("name", ["base", "A", "B", "A->B"])
def test_a_completion_is_what_the_speaker_says(client: openai.OpenAI, speakers: Speakers, served: Any, name: str):
    found = client.chat.completions.create(model=name, messages=HI, temperature=0, max_tokens=8)
    assert idle(served[1])
    reply = directly(speakers, name, "Which letter?", temperature=0.0, max_tokens=8)
    (choice,) = found.choices
    assert (choice.message.content, choice.finish_reason) == (reply.text, reply.finish)
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (reply.prompt_tokens, reply.completion_tokens)
    assert found.usage.total_tokens == reply.prompt_tokens + reply.completion_tokens
    stages = (choice.model_extra or {}).get("stages", [])
    assert [stage["seat"] for stage in stages] == (["A", "B"] if name == "A->B" else [])


@pytest.mark.parametrize("name", ["A", "A->B"])
def test_a_stream_adds_up_to_the_completion(client: openai.OpenAI, name: str):
    whole = client.chat.completions.create(model=name, messages=HI, temperature=0.7, max_tokens=20, seed=5, n=2)
    stream = client.chat.completions.create(
        model=name, messages=HI, temperature=0.7, max_tokens=20, seed=5, n=2, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    texts, finishes, chunks = ["", ""], ["", ""], list(stream)
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
        finishes[choice.index] = choice.finish_reason or finishes[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert finishes == [choice.finish_reason for choice in whole.choices]
    assert len(chunks) > 8
    assert chunks[-1].usage == whole.usage
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_seeds_decide_and_choices_differ(client: openai.OpenAI):
    def texts(seed: int | None) -> list[str | None]:
        found = client.chat.completions.create(
            model="A", messages=HI, temperature=1.5, max_tokens=20, n=3, seed=seed if seed is not None else openai.omit
        )
        return [choice.message.content for choice in found.choices]

    assert texts(1) == texts(1)
    assert len({*texts(1), *texts(2), *texts(None), *texts(None)}) == 12


def test_stop_strings(client: openai.OpenAI):
    asked: Any = {"model": "A", "messages": HI, "temperature": 0, "max_tokens": 12}
    text = client.chat.completions.create(**asked).choices[0].message.content or ""
    stop = text[3:5]
    (choice,) = client.chat.completions.create(**asked, stop=[stop, "never"]).choices
    assert (choice.message.content, choice.finish_reason) == (text[: text.index(stop)], "stop")


def test_clients_at_the_same_time_share_generations(client: openai.OpenAI, served: tuple[Server, Desk]):
    asked = [(name, f"Which letter comes {n}th?") for n in range(4) for name in ("A", "B")]

    def one(each: tuple[str, str]) -> str | None:
        messages: Any = [{"role": "user", "content": each[1]}]
        found = client.chat.completions.create(model=each[0], messages=messages, temperature=0, max_tokens=16)
        return found.choices[0].message.content

    single = [one(each) for each in asked]
    before = served[1].generations
    with ThreadPoolExecutor(len(asked)) as pool:
        assert list(pool.map(one, asked)) == single
    assert served[1].generations - before < len(asked)


# Who does it wrong


@pytest.mark.parametrize(
    ("fields", "status", "sentence"),
    [
        ({"model": "Aa"}, 404, "did you mean A?"),
        ({"model": "A->C"}, 404, "did you mean A->B"),
        ({"model": 3}, 400, "model must be a speaker's name"),
        ({"messages": []}, 400, "at least one message"),
        ({"messages": "hi"}, 400, "messages must be a list"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages[0].role must be"),
        ({"messages": [{"role": "user", "content": None}]}, 400, "messages[0].content must be a text"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, 400, "half of a surrogate pair"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "only text is read here"),
        ({"messages": [*HI, {"role": "assistant", "content": "I"}]}, 400, "last message must be the user's"),
        ({"messages": [{"role": "user", "content": ""}], "model": "A->B", "n": 17}, 400, "n must be"),
        ({"messages": [{"role": "system", "content": "x"}, *HI], "model": "A->B"}, 400, "asked one problem"),
        ({"messages": [{"role": "user", "content": "x" * 20_000}]}, 400, "there is room for 4,096 together"),
        ({"messages": [{"role": "user", "content": "x" * 20_000}], "stream": True}, 400, "room for 4,096"),
        ({"max_tokens": 100_000}, 400, "there is room for 4,096 together"),
        ({"max_tokens": 0}, 400, "max_tokens must be"),
        ({"max_tokens": 1.5}, 400, "max_tokens must be a whole number"),
        ({"temperature": -1}, 400, "temperature must be"),
        ({"temperature": float("nan")}, 400, "temperature must be"),
        ({"top_p": 0}, 400, "top_p must be more than 0"),
        ({"stop": [""]}, 400, "stop must be"),
        ({"stop": ["x"] * 5}, 400, "stop must be"),
        ({"stream": "yes"}, 400, "stream must be true or false"),
        ({"stream_options": {"include_usage": True}}, 400, "goes with stream"),
        ({"tools": [{"type": "function"}]}, 400, "tools is not supported here"),
        ({"logprobs": True}, 400, "logprobs is not supported here"),
        ({"temprature": 1}, 400, "did you mean temperature?"),
    ],
)
def test_a_wrong_request_is_refused_with_a_sentence(
    ask: Callable[..., httpx.Response], fields: dict[str, Any], status: int, sentence: str
):
    answer = ask(**fields)
    assert answer.status_code == status
    assert sentence in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400), (b"{", 400), (b"[1]", 400), (b"\xff\xfe", 400), (b"nul\0", 400), (b"[" * 100_000, 400),
        (b'{"n": 1e999}', 400), (b" " * 1_000_001, 413),
    ],
)  # fmt: skip
def test_a_body_that_is_no_request(ask: Callable[..., httpx.Response], content: bytes, status: int):
    answer = ask(content)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_neutral_fields_and_parts_of_text_are_taken(ask: Callable[..., httpx.Response]):
    parts = [{"role": "developer", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    fields: Any = {"messages": parts, "user": "me", "logprobs": False, "presence_penalty": 0.0, "tools": None}
    assert ask(**fields, max_completion_tokens=2).json()["usage"]["completion_tokens"] == 2


def test_only_who_knows_the_key_is_answered(served: tuple[Server, Desk], ask: Callable[..., httpx.Response]):
    for wrong in ("", "Bearer", "Bearer wrong", f"Basic {KEY}"):
        assert ask(headers={"Authorization": wrong}).status_code == 401
    for wrong in ("Bearer", "Bearer \u00e9"):
        assert httpx.get(f"{served[0].url}/models", headers={"Authorization": wrong.encode()}).status_code == 401
    assert ask(headers={"Host": "elsewhere.example"}).status_code == 403
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=served[0].url, api_key="wrong", max_retries=0).models.list()


def test_other_places(served: tuple[Server, Desk]):
    root, key = served[0].url, {"Authorization": f"Bearer {KEY}"}
    assert httpx.post(f"{root}/completions", headers=key).status_code == 404
    assert httpx.get(f"{root}/chat/completions", headers=key).status_code == 405
    assert httpx.get(root.removesuffix("/v1"), headers=key).status_code == 404


def test_what_is_no_http_is_refused_and_the_next_is_answered(
    served: tuple[Server, Desk], ask: Callable[..., httpx.Response]
):
    port = served[0].socket.getsockname()[1]
    for said in (b"\x16\x03\x01\x02\x00", b"NONSENSE\r\n\r\n", b"POST /v1 HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), 10) as wrong:
            wrong.sendall(said + b"\r\n\r\n")
            assert b"400" in wrong.recv(1000)
    assert ask().status_code == 200


# Many, slow and gone


def test_a_full_queue_refuses_and_says_when_to_come_again(speakers: Speakers, slowly: Callable[[float], None]):
    slowly(0.05)
    with serving(speakers, most_waiting=2) as (server, desk):
        client = openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0)
        stream = client.chat.completions.create(model="A", messages=HI, max_tokens=100, n=2, stream=True)
        with pytest.raises(openai.RateLimitError, match="2 questions wait already") as refused:
            client.chat.completions.create(model="B", messages=HI, max_tokens=2)
        assert int(refused.value.response.headers["retry-after"]) >= 1
        stream.close()
        assert idle(desk)  # long before 100 tokens of 0.05 s would be over, for both
        assert client.chat.completions.create(model="B", messages=HI, max_tokens=2).usage is not None


def test_who_goes_away_frees_the_place(served: tuple[Server, Desk], slowly: Callable[[float], None]):
    slowly(0.05)
    server, desk = served
    body = json.dumps({"model": "A", "messages": HI, "max_tokens": 400}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.socket.getsockname()[1])) as gone:
        gone.sendall(head.encode() + body)
        end = time.monotonic() + 10
        while not desk.waiting and time.monotonic() < end:
            time.sleep(0.01)
        assert desk.waiting == 1
    assert idle(desk, 10)  # 400 tokens of 0.05 s take twice as long


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/comp", "head", "part of the body"])
def test_who_is_too_slow_is_left(served: tuple[Server, Desk], monkeypatch: pytest.MonkeyPatch, sent: bytes | str):
    monkeypatch.setattr(routes, "PATIENCE_S", 0.3)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 9\r\n"
    )
    said = {"head": head.encode(), "part of the body": f"{head}\r\n{{".encode()}.get(str(sent), sent)
    with socket.create_connection(("127.0.0.1", served[0].socket.getsockname()[1]), 10) as slow:
        assert isinstance(said, bytes)
        slow.sendall(said)
        answer = b"".join(iter(lambda: slow.recv(1000), b""))  # up to the end of the connection
    assert answer.startswith(b"HTTP/1.1 408") if sent == "part of the body" else answer == b""


def test_who_takes_nothing_is_cut_off(speakers: Speakers, monkeypatch: pytest.MonkeyPatch):
    """A stream that fills every buffer on its way: the connection ends, and the server goes on."""
    monkeypatch.setattr(routes, "PATIENCE_S", 0.5)
    monkeypatch.setattr(Answer, "_chunk", lambda self, k, delta, end=None: {"filling": "x" * 2_000_000})
    with serving(speakers) as (server, desk):
        body = json.dumps({"model": "A", "messages": HI, "max_tokens": 60, "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", server.socket.getsockname()[1]), 10) as slow:
            slow.sendall(
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            time.sleep(3)
            taken = sum(map(len, iter(lambda: slow.recv(1 << 20), b"")))
        assert 0 < taken < 50_000_000  # what was on its way, of 120 MB
        assert idle(desk)


def test_what_fails_while_it_is_said_is_an_error_in_the_stream(
    client: openai.OpenAI, speakers: Speakers, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as broken:
        broken.setattr(speakers.table._backend, "generate", lambda request: 1 // 0)
        with pytest.raises(openai.InternalServerError, match="A could not answer"):
            client.chat.completions.create(model="A", messages=HI)
    assert client.chat.completions.create(model="A", messages=HI, max_tokens=2).usage is not None


# Beginning and ending


def test_a_port_that_is_taken_and_a_key_that_no_header_holds(served: tuple[Server, Desk], speakers: Speakers):
    with pytest.raises(ConfigError, match="cannot serve on port"):
        Server(Desk(speakers), KEY, served[0].socket.getsockname()[1])
    for key in ("two words", "schlüssel", "line\n"):
        with pytest.raises(ConfigError, match="printable ASCII"):
            Server(Desk(speakers), key)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly_in_the_middle_of_an_answer(agon: Path, number: signal.Signals):
    command = [sys.executable, "-m", "lite_selfplay_cli", "serve", str(agon), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        key = process.stdout.readline().strip().removeprefix("key: ")
        client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
        # Four at once: one alone may come to its end before the signal arrives.
        stream = client.chat.completions.create(model="A", messages=HI, max_tokens=4000, n=4, seed=1, stream=True)
        next(iter(stream))
        process.send_signal(number)
        with pytest.raises(openai.APIError, match="stopping"):
            list(stream)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err.strip().endswith("closed")
    assert "Traceback" not in err
