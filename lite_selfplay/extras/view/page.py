"""Shows runs in the browser, by a server or as one HTML file. The server is for this machine only, never writes, and
answers only GET requests whose URL begins with a secret token. The HTML file contains the page with its code and data,
and can be opened without a server or network."""

import base64
import hashlib
import json
import math
import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from lite_selfplay.errors import ConfigError, LiteSelfPlayError
from lite_selfplay.extras.view.answers import NotAsked, ViewedRun, answer, cases_of, read_rows
from lite_selfplay.runs.folder import EPISODES, as_written
from lite_selfplay.tasks.files import write_errors, write_whole

HOST = "127.0.0.1"
PATIENCE_S = 30.0  # the time limit in seconds for a browser's request

PAGE = {
    "": ("page.html", "text/html"),
    "style.css": ("style.css", "text/css"),
    "charts.js": ("charts.js", "text/javascript"),
    "page.js": ("page.js", "text/javascript"),
}
"""The page's files and their MIME types, by their name in the URL."""

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class RunServer(ThreadingHTTPServer):
    """A web server that shows the runs `runs`, reachable only from this machine. It serves from the call of
    `serve_forever` until `server_close`. Its property `url` is the address to open. `port` 0 chooses a free port. The
    constructor raises ConfigError if the port is not available."""

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
        """Print an error of this program as the base class does; ignore a browser that disconnects too early."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers the GET requests of one connection to a RunServer. It refuses a request whose URL lacks the server's
    secret token, or that reaches this machine by another name than localhost or 127.0.0.1."""

    server: RunServer
    timeout = PATIENCE_S
    server_version, sys_version = "lite-selfplay", ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        try:
            url = urlsplit(self.path)
        except ValueError:
            return self._refuse(400, "this is not a URL")
        if self.headers.get("Host") not in [f"{name}:{self.server.server_port}" for name in (HOST, "localhost")]:
            return self._refuse(403, "this page is only for this machine")  # against DNS rebinding
        token, _, name = url.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            return self._refuse(404, "open the address that lite-selfplay view printed: it ends with a token")
        if name in PAGE:
            file, kind = PAGE[name]
            return self._send(200, kind, page_file(file).encode())
        if name.startswith("api/"):
            return self._answer(name.removeprefix("api/"), dict(parse_qsl(url.query, errors="replace")))
        return self._refuse(404, "there is no such page")

    def _answer(self, question: str, about: Mapping[str, str]) -> None:
        try:
            found = answer(self.server.runs, question, about)
        except NotAsked as error:
            return self._refuse(404, str(error))
        except (LiteSelfPlayError, OSError) as error:
            return self._refuse(409, str(error))
        # As ASCII: lone surrogates in a text have no UTF-8.
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
        self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Reply to a malformed request with the status `code`, then close the connection. A request with another method
        than GET gets the status 405 instead. The base class calls this. `message` and `explain` are ignored."""
        self.close_connection = True
        self._refuse(405 if code == 501 else code, "only GET is answered here: this page writes nothing")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, so that the terminal shows only the page's address; called by the base class."""


def page_file(name: str) -> str:
    """The text of one of the page's own files, such as `page.js`, which are in this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


NAME = "index.html"
LIMIT = 24_000_000  # about the most bytes of episodes in a file, for phones: a longer run keeps evenly spread steps


def write_bundle(runs: Sequence[ViewedRun], folder: Path) -> Path:
    """Write the page with the data of `runs` as `index.html` into `folder`, created if missing, and return the file's
    path. Raises ConfigError if the file exists or cannot be written, RunFolderError for damaged files of a run."""
    path = folder / NAME
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists already and is not overwritten: choose another --bundle")
    text = bundle(runs)
    with write_errors(path, ConfigError):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    return path


def bundle(runs: Sequence[ViewedRun], limit: int = LIMIT) -> str:
    """The page with the data of `runs` as the text of one HTML file. The file's content security policy allows only its
    own code and style, and no requests. The file holds at most approximately `limit` bytes of completions. Each run may
    use an equal part of these bytes; of a run with more completions, only those of evenly spread steps are kept."""
    style, scripts = page_file("style.css"), [page_file("charts.js"), page_file("page.js")]
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src {' '.join(repr(_hash(s)) for s in scripts)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    data = json.dumps([_held(run, limit // len(runs)) for run in runs], allow_nan=False, separators=(",", ":"))
    data = data.replace("<", "\\u003c")  # no text can close the script block
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    body = "\n".join(
        [f'<script type="application/json" id="held">{data}</script>', *(f"<script>{s}</script>" for s in scripts)]
    )
    page = re.sub(r"<link rel=\"stylesheet\"[^>]*>", lambda _: head, page_file("page.html"))
    return re.sub(r"(?:<script src=[^>]*></script>\s*)+", lambda _: body + "\n", page)


def _held(run: ViewedRun, limit: int) -> dict[str, Any]:
    """A run's data in the HTML file: its overview, and its cases (completions that belong together, such as a draft and
    its challenge). If the run's `episodes.jsonl` has more than `limit` bytes, only the cases of every n-th step are
    kept, counted back from the last step; n is chosen so that they take about `limit` bytes of `episodes.jsonl`."""
    overview = run.overview()
    size = sum(file.stat().st_size for file in run.path.glob(EPISODES))
    every = max(1, math.ceil(size / limit))
    steps, remarks = overview["steps"][::-every][::-1], overview["remarks"]
    if every > 1:
        sentence = f"This file holds the episodes of {len(steps)} of {len(overview['steps'])} steps, evenly spread."
        remarks = [sentence, *remarks]
    with as_written(run.path):
        cases = {step: cases_of(run.game, read_rows(run.index.of_step(step)), whole=True) for step, _ in steps}
    return {"overview": overview | {"steps": steps, "remarks": remarks}, "cases": cases}


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
