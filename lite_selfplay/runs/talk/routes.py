"""What answers OpenAI's chat completions: routes, keys, bodies and errors.

A request becomes one reply a choice, all of them waiting at the `Desk`; what they say comes back through a queue of
events.
"""

import asyncio
import hmac
import json
import math
import secrets
import time
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lite_selfplay.data import Turn
from lite_selfplay.errors import RequestError
from lite_selfplay.evaluation.answers import key_of
from lite_selfplay.runs.talk.choices import Answer, Events, Gone
from lite_selfplay.runs.talk.desk import Desk, Refused
from lite_selfplay.runs.talk.reply import Question, Reply
from lite_selfplay.runs.talk.request import Asked, Unfit, read_request
from lite_selfplay.tasks.base import derived_seed

HOST = "127.0.0.1"
MOST_BODY = 1_000_000
"""Bytes of a request."""
PATIENCE_S = 30.0
"""Seconds that a client may take to send a request, and to take what it is sent."""

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
        except RequestError as error:
            raise Unfit(str(error), "model", "model_not_found", 404) from None

    async def completions(self, request: Request) -> Response:
        self._require_key(request)
        asked = read_request(await _body_of(request), self._desk.speakers.most_tokens)
        cascade = len(self._seats_of(asked.model)) > 1
        if cascade and [turn.role for turn in asked.turns] != ["user"]:
            raise Unfit(f"{asked.model} is asked one problem: a single message of the user's", "messages")
        events = Events(asyncio.get_running_loop())
        replies = [self._reply(asked, k, cascade, events) for k in range(asked.n)]
        try:
            self._desk.put(replies)
        except Refused as error:
            status = 429 if error.why == "full" else 503
            return _error(Unfit(str(error), code=f"queue_{error.why}", status=status), self._retry_after())
        answer = Answer(asked, replies, events, self._print, cascade)
        watching = asyncio.create_task(events.watch(request.receive))
        streaming = False
        try:
            await answer.first()
            if asked.stream:
                streaming = True
                return _Stream(answer, watching)
            return _json(await answer.whole())
        except Gone:
            return Response(status_code=499)  # which nobody reads
        finally:
            if not streaming:
                answer.cancel(watching)

    def _reply(self, asked: Asked, k: int, cascade: bool, events: Events) -> Reply:
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


class _Stream(Response):
    """An answer as server-sent events."""

    def __init__(self, answer: Answer, watching: "asyncio.Task[None]"):
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
        except Gone:
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
