"""Speakers over HTTP, as OpenAI's chat completions: for this machine alone, under a key.

`app` answers requests, `Server` serves it. A request becomes one reply a choice, all of them waiting at the `Desk`;
what they say comes back through a queue of events. Starlette and uvicorn are the extra `serve`.
"""

import asyncio
import contextlib
import hmac
import json
import math
import secrets
import socket
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from lite_selfplay.data import Turn
from lite_selfplay.errors import ConfigError, RequestError, UnknownNameError
from lite_selfplay.evaluation.answers import key_of
from lite_selfplay.runs.talk.desk import Desk, Refused
from lite_selfplay.runs.talk.reply import Question, Reply
from lite_selfplay.runs.talk.request import Asked, Unfit, read_request
from lite_selfplay.tasks.base import derived_seed

HOST = "127.0.0.1"
MOST_BODY = 1_000_000
"""Bytes of a request."""
PATIENCE_S = 30.0
"""Seconds that a client may take to send a request, and to take what it is sent."""
MOST_CONNECTIONS = 512
ENDING_S = 5
"""Seconds that answers have to come to an end when the server stops."""

_KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def app(desk: Desk, key: str) -> Starlette:
    """What answers requests: `/v1/chat/completions` and `/v1/models`, for whoever knows the key."""
    served = _Served(desk, key)
    return Starlette(
        routes=[
            Route("/v1/models", served.models, methods=["GET"]),
            Route("/v1/models/{name:path}", served.model, methods=["GET"]),
            Route("/v1/chat/completions", served.completions, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _refused_by_route, Unfit: _unfit, Exception: _broken},
    )


class _Served:
    """The routes, and whom they ask."""

    def __init__(self, desk: Desk, key: str):
        self._desk, self._key, self._created = desk, key.encode(), int(time.time())
        target = desk.speakers.target
        self._owner = target.name
        self._print = f"fp_{key_of(target.name, desk.speakers.checkpoint, target.weights())[:12]}"

    def _require_key(self, request: Request) -> None:
        host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
        if host not in (HOST, "localhost"):  # a name that was made to lead here
            raise Unfit("this server is for this machine alone", status=403)
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        known = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._key)
        if kind.lower() != "bearer" or not known:
            raise Unfit("wrong key: give the one that lite-selfplay serve printed", code="invalid_api_key", status=401)

    async def models(self, request: Request) -> Response:
        self._require_key(request)
        return _json({"object": "list", "data": [self._model(name) for name in self._desk.speakers.names]})

    async def model(self, request: Request) -> Response:
        self._require_key(request)
        name = request.path_params["name"]
        self._seats_of(name)
        return _json(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": self._owner}

    def _seats_of(self, name: str) -> tuple[str, ...]:
        try:
            return self._desk.speakers.seats_of(name)
        except UnknownNameError as error:
            raise Unfit(str(error), "model", "model_not_found", 404) from None
        except RequestError as error:
            raise Unfit(str(error), "model", "model_not_found", 404) from None

    async def completions(self, request: Request) -> Response:
        self._require_key(request)
        asked = read_request(await _body_of(request), self._desk.speakers.most_tokens)
        cascade = len(self._seats_of(asked.model)) > 1
        if cascade and [turn.role for turn in asked.turns] != ["user"]:
            raise Unfit(f"{asked.model} is asked one problem: a single message of the user's", "messages")
        events = _Events(asyncio.get_running_loop())
        replies = [self._reply(asked, k, cascade, events) for k in range(asked.n)]
        try:
            self._desk.put(replies)
        except Refused as error:
            status = 429 if error.why == "full" else 503
            return _error(Unfit(str(error), code=f"queue_{error.why}", status=status), self._retry_after())
        answer = _Answer(asked, replies, events, self._print, cascade)
        watching = asyncio.create_task(events.watch(request.receive))
        streaming = False
        try:
            await answer.first()
            if asked.stream:
                streaming = True
                return _Stream(answer, watching)
            return _json(await answer.whole())
        except _Gone:
            return Response(status_code=499)  # which nobody reads
        finally:
            if not streaming:
                answer.cancel(watching)

    def _reply(self, asked: Asked, k: int, cascade: bool, events: "_Events") -> Reply:
        seed = secrets.randbits(63) if asked.seed is None else derived_seed(asked.seed, "choice", k)
        prompt: str | tuple[Turn, ...] = asked.turns[0].text if cascade else asked.turns
        kind = self._desk.speakers.kind
        question = Question(asked.model, prompt, asked.sampling, seed, kind)
        return self._desk.speakers.reply(
            question,
            hear=lambda reply, piece: events.put(k, piece if reply.is_last else ""),
            done=lambda reply: events.put(k, None),
        )

    def _retry_after(self) -> dict[str, str]:
        return {"Retry-After": str(max(1, math.ceil(self._desk.pace_s)))}


class _Gone(Exception):
    """The client is not there any more."""


class _Events:
    """What replies have to say, from the thread that answers to the loop that serves."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._queue: asyncio.Queue[tuple[int, str | None] | None] = asyncio.Queue()

    def put(self, k: int, piece: str | None) -> None:
        """Choice k has said something; with None it is over. Called in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (k, piece))

    async def get(self) -> tuple[int, str | None]:
        """The next event. Raises _Gone."""
        event = await self._queue.get()
        if event is None:
            raise _Gone
        return event

    async def watch(self, receive: Receive) -> None:
        """Notice that the client goes away."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._queue.put_nowait(None)


class _Answer:
    """The choices of one request as OpenAI's objects."""

    def __init__(self, asked: Asked, replies: Sequence[Reply], events: _Events, fingerprint: str, cascade: bool):
        self.asked, self.replies, self.events, self.cascade = asked, replies, events, cascade
        self._about = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": asked.model,
            "system_fingerprint": fingerprint,
        }
        self._first: list[tuple[int, str | None]] = []

    def cancel(self, watching: "asyncio.Task[None]") -> None:
        """Nobody takes the answer any more: its places are free at the next token."""
        watching.cancel()
        for reply in self.replies:
            reply.cancel()

    async def first(self) -> None:
        """Wait until there is something to say: what is refused then still has a status of its own. Raises Unfit."""
        self._first.append(await self.events.get())
        self._require_well()

    async def whole(self) -> dict[str, Any]:
        """All choices, once they are complete. Raises Unfit."""
        async for _ in self._said():
            pass
        choices = [
            {"index": k, "message": {"role": "assistant", "content": reply.text}, **self._end(reply)}
            for k, reply in enumerate(self.replies)
        ]
        return {**self._about, "object": "chat.completion", "choices": choices, "usage": self._usage()}

    async def pieces(self) -> AsyncIterator[dict[str, Any]]:
        """Chunks, as they come."""
        begun = set[int]()
        async for k, piece in self._said():
            if k not in begun:
                begun.add(k)
                yield self._chunk(k, {"role": "assistant", "content": ""})
            if piece:
                yield self._chunk(k, {"content": piece})
            if piece is None:
                yield self._chunk(k, {}, self._end(self.replies[k]))
        if self.asked.with_usage:
            yield {**self._about, "object": "chat.completion.chunk", "choices": [], "usage": self._usage()}

    async def _said(self) -> AsyncIterator[tuple[int, str | None]]:
        """Events until all choices are over, those that were waited for first."""
        left = len(self.replies)
        while left:
            event = self._first.pop(0) if self._first else await self.events.get()
            self._require_well()
            left -= event[1] is None
            yield event

    def _require_well(self) -> None:
        for reply in self.replies:
            if isinstance(reply.error, RequestError):
                raise Unfit(str(reply.error), "messages", "context_length_exceeded")
            if reply.error is not None:
                raise Unfit(str(reply.error), code="generation_failed", status=500)
            if reply.finish == "cancelled":
                raise Unfit("the server is stopping", code="queue_closed", status=503)

    def _chunk(self, k: int, delta: dict[str, str], end: dict[str, Any] | None = None) -> dict[str, Any]:
        choice = {"index": k, "delta": delta, **(end or {"finish_reason": None, "logprobs": None})}
        usage = {"usage": None} if self.asked.with_usage else {}
        return {**self._about, "object": "chat.completion.chunk", "choices": [choice], **usage}

    def _end(self, reply: Reply) -> dict[str, Any]:
        stages = [{"seat": stage.seat, "text": stage.completion.text, "saw": stage.saw} for stage in reply.stages]
        return {
            "finish_reason": reply.finish,
            "logprobs": None,
            **({"stages": stages} if self.cascade else {}),
        }

    def _usage(self) -> dict[str, int]:
        # A prompt counts once, however many choices there are; a cascade reads one at each stage.
        read = self.replies[0].prompt_tokens if not self.cascade else sum(r.prompt_tokens for r in self.replies)
        said = sum(reply.completion_tokens for reply in self.replies)
        return {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said}


class _Stream(Response):
    """An answer as server-sent events."""

    def __init__(self, answer: _Answer, watching: "asyncio.Task[None]"):
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._answer, self._watching = answer, watching

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def say(text: str, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for chunk in self._answer.pieces():
                await say(f"data: {json.dumps(chunk)}\n\n")
            await say("data: [DONE]\n\n", more=False)
        except Unfit as error:
            await say(f"data: {json.dumps(_as_error(error))}\n\n", more=False)
        except _Gone:
            pass
        finally:
            self._answer.cancel(self._watching)


async def _body_of(request: Request) -> Any:
    """The JSON of a request. Raises Unfit for one that is too long, takes too long, or is no JSON."""
    too_long = Unfit(f"the body has more than {MOST_BODY:,} bytes", status=413)
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 12 or int(length) > MOST_BODY):
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BODY:
                    raise too_long
    except TimeoutError:
        raise Unfit(f"the body did not come within {PATIENCE_S:g} seconds", status=408) from None
    except ClientDisconnect:
        raise Unfit("the client went away", status=400) from None
    try:
        return json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise Unfit(f"the body is no JSON: {error}") from None


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    # In ASCII alone: halves of surrogate pairs have no UTF-8.
    content = json.dumps(value, allow_nan=False)
    return Response(content, status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


def _as_error(error: Unfit) -> dict[str, Any]:
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": _readable(str(error)), "type": kind, "param": error.param, "code": error.code}}


def _readable(sentence: str) -> str:
    return sentence if len(sentence) <= 1000 else f"{sentence[:500]}...{sentence[-400:]}"


def _error(error: Unfit, headers: dict[str, str] | None = None) -> Response:
    closing = {"Connection": "close"} if error.status in (408, 413) else {}
    asking = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    return _json(_as_error(error), error.status, {**closing, **asking, **(headers or {})})


async def _unfit(request: Request, error: Exception) -> Response:
    assert isinstance(error, Unfit)
    return _error(error, {"Retry-After": "1"} if error.status == 503 else None)


async def _refused_by_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    here = "GET /v1/models, GET /v1/models/NAME and POST /v1/chat/completions are answered here"
    return _error(Unfit(here, status=error.status_code), dict(error.headers or {}))


async def _broken(request: Request, error: Exception) -> Response:
    return _error(Unfit(f"the server failed: {type(error).__name__}", code="internal_error", status=500))


# Serving


class _Patient(H11Protocol):
    """HTTP for clients that may be slow, but not for ever: to send a request's head, and to take an answer."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._asking: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        self._is_asked()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._is_asked()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taking = self._taking or self.loop.call_later(PATIENCE_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop(self._taking)
        self._taking = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._asking)
        self._stop(self._taking)
        super().connection_lost(exc)

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _is_asked(self) -> None:
        if not self._is_idle:
            self._stop(self._asking)
            self._asking = None
        elif self._asking is None:
            self._asking = self.loop.call_later(PATIENCE_S, self._hang_up)

    def _hang_up(self) -> None:
        self._asking = None
        if self._is_idle:
            self.transport.close()

    def _stop(self, timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


class Server(uvicorn.Server):
    """Serves a desk at `url` from when it is made; `run` answers until a signal or `stop`.

    `port` 0 takes a free one. Raises ConfigError where a port cannot be had, and for a key that no header can hold.
    """

    def __init__(self, desk: Desk, key: str, port: int = 0):
        if not (key.isascii() and key.isprintable() and key and " " not in key):
            raise ConfigError("a key is made of printable ASCII characters without blanks")
        super().__init__(
            uvicorn.Config(
                app(desk, key),
                http=_Patient,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                limit_concurrency=MOST_CONNECTIONS,
                timeout_graceful_shutdown=ENDING_S,
            )
        )
        self._desk, self.socket = desk, socket.socket()
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind((HOST, port))
            self.socket.listen(128)
        except (OSError, OverflowError) as error:
            self.socket.close()
            raise ConfigError(f"cannot serve on port {port}: {getattr(error, 'strerror', None) or error}") from None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.socket.getsockname()[1]}/v1"

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        super().run(sockets or [self.socket])

    def stop(self) -> None:
        """End as after a signal. Called in any thread."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._desk.close()  # answers in the making end with what they have
        await super().shutdown(sockets)
