"""Speakers over HTTP, for this machine alone: a server of `routes` that waits for no client for ever.

Starlette and uvicorn are the extra `serve`.
"""

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lite_selfplay.errors import ConfigError
from lite_selfplay.runs.talk import routes
from lite_selfplay.runs.talk.desk import Desk

MOST_CONNECTIONS = 512
ENDING_S = 5
"""Seconds that answers have to come to an end when the server stops."""


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
        self._taking = self._taking or self.loop.call_later(routes.PATIENCE_S, self.transport.abort)

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
            self._asking = self.loop.call_later(routes.PATIENCE_S, self._hang_up)

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
                routes.app(desk, key),
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
            self.socket.bind((routes.HOST, port))
            self.socket.listen(128)
        except (OSError, OverflowError) as error:
            self.socket.close()
            raise ConfigError(f"cannot serve on port {port}: {getattr(error, 'strerror', None) or error}") from None

    @property
    def url(self) -> str:
        return f"http://{routes.HOST}:{self.socket.getsockname()[1]}/v1"

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        super().run(sockets or [self.socket])

    def stop(self) -> None:
        """End as after a signal. Called in any thread."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._desk.close()  # answers in the making end with what they have
        await super().shutdown(sockets)
