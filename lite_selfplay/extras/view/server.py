"""A server of the page, for this machine alone: it answers GET under a token that nobody can guess, and only reads."""

import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from lite_selfplay.errors import ConfigError, LiteSelfPlayError
from lite_selfplay.extras.view.answers import NotAsked, answer
from lite_selfplay.extras.view.overview import ViewedRun

HOST = "127.0.0.1"
PATIENCE_S = 30.0
"""Seconds that a browser may take to say what it wants."""

PAGE = {
    "": ("page.html", "text/html"),
    "style.css": ("style.css", "text/css"),
    "charts.js": ("charts.js", "text/javascript"),
    "page.js": ("page.js", "text/javascript"),
}
"""The files of the page by their name in the URL, with what they are."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Server(ThreadingHTTPServer):
    """Serves runs at `url` from when it is made; `serve_forever` answers, `server_close` ends it.

    `port` 0 takes a free one. Raises ConfigError where a port cannot be had.
    """

    daemon_threads = True

    def __init__(self, runs: Sequence[ViewedRun], port: int = 0):
        self.runs, self.token = runs, secrets.token_urlsafe(24)
        try:
            super().__init__((HOST, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot serve on port {port}: {getattr(error, 'strerror', None) or error}") from None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is nobody's fault."""


class Handler(BaseHTTPRequestHandler):
    """Answers one browser. Anything but GET and HEAD is refused, as is every name of this machine but its own."""

    server: Server
    timeout = PATIENCE_S
    server_version, sys_version = "lite-selfplay", ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        if self.headers.get("Host") not in (
            f"{HOST}:{self.server.server_port}",
            f"localhost:{self.server.server_port}",
        ):
            return self._refuse(403, "this page is for this machine alone")  # a name that was made to lead here
        _, token, *rest = (place.path + "/").split("/")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            return self._refuse(404, "open the address that lite-selfplay view printed: it ends with a token")
        name = "/".join(rest[:-1])
        if name in PAGE:
            file, kind = PAGE[name]
            return self._send(200, kind, page_file(file).encode())
        if name.startswith("api/"):
            return self._answer(name.removeprefix("api/"), dict(parse_qsl(place.query, errors="replace")))
        return self._refuse(404, "there is no such page")

    do_HEAD = do_GET

    def _answer(self, question: str, about: Mapping[str, str]) -> None:
        try:
            found = answer(self.server.runs, question, about)
        except NotAsked as error:
            return self._refuse(404, str(error))
        except (LiteSelfPlayError, OSError) as error:
            return self._refuse(409, str(error))
        # In ASCII alone: halves of surrogate pairs, which a text may hold, have no UTF-8.
        return self._send(200, "application/json", json.dumps(found, allow_nan=False).encode())

    def _refuse(self, status: int, sentence: str) -> None:
        self._send(status, "application/json", json.dumps({"error": sentence}).encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the library itself refuses: other methods, broken requests. The connection ends there."""
        self.close_connection = True
        self._refuse(405 if code == 501 else code, "only GET is answered here: this page writes nothing")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is for the address."""


def page_file(name: str) -> str:
    """A file of the page, as text."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
