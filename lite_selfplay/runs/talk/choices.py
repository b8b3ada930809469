"""The choices of one request as OpenAI's objects, made of what replies say in another thread."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.types import Receive

from lite_selfplay.errors import RequestError
from lite_selfplay.runs.talk.reply import Reply
from lite_selfplay.runs.talk.request import Asked, Unfit


class Gone(Exception):
    """The client is not there any more."""


class Events:
    """What replies have to say, from the thread that answers to the loop that serves."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._queue: asyncio.Queue[tuple[int, str | None] | None] = asyncio.Queue()

    def put(self, k: int, piece: str | None) -> None:
        """Choice k has said something; with None it is over. Called in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (k, piece))

    async def get(self) -> tuple[int, str | None]:
        """The next event. Raises Gone."""
        event = await self._queue.get()
        if event is None:
            raise Gone
        return event

    async def watch(self, receive: Receive) -> None:
        """Notice that the client goes away."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._queue.put_nowait(None)


class Answer:
    """The choices of one request as OpenAI's objects."""

    def __init__(self, asked: Asked, replies: Sequence[Reply], events: Events, fingerprint: str, cascade: bool):
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
