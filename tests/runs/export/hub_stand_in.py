"""A stand-in for the hub on a real socket: as much of its API as a push asks for, and ways in which it may fail."""

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

TOKEN, READ_ONLY = "hf_of_a_test", "hf_read_only"


@dataclass
class StandIn:
    """Repositories by name, each with `private`, `files` and `commits`.

    `fault` is a part of the paths that fail, and the status they fail with; None breaks the connection off.
    """

    repositories: dict[str, dict[str, Any]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    fault: tuple[str, int | None] | None = None

    def __enter__(self) -> Self:
        stand_in = self

        class Handler(_Handler):
            hub = stand_in

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: StandIn

    def log_message(self, *arguments: object) -> None:
        """Nothing on the terminal."""

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def _answer(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        path = self.path.partition("?")[0]
        self.hub.asked.append(f"{method} {path}")
        if self.hub.fault is not None and self.hub.fault[0] in path:
            if self.hub.fault[1] is None:
                self.close_connection = True
                self.connection.close()
                return
            self._say(self.hub.fault[1], {"error": "the stand-in was told to fail"})
            return
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token not in (TOKEN, READ_ONLY) and not path.startswith("/blob/"):
            self._say(401, {"error": "Invalid username or password."})
        elif token == READ_ONLY and method != "GET":
            self._say(403, {"error": "You don't have the rights to create a model under this namespace"})
        else:
            self._say(*self._found(method, path, body))

    def _chunks(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _found(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        hub, parts = self.hub, path.strip("/").split("/")
        if path == "/api/whoami-v2":
            return 200, {"type": "user", "name": "somebody", "auth": {"type": "access_token"}, "orgs": []}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if parts[0] == "blob":
            if hashlib.sha256(body).hexdigest() != parts[1]:
                return 400, {"error": "other content than was announced"}
            hub.blobs[parts[1]] = body
            return 200, {}
        name = "/".join(parts[2:4]) if parts[0] == "api" else "/".join(parts[:2]).removesuffix(".git")
        if name not in hub.repositories:
            return 404, {"error": "Repository not found"}
        if method == "GET":
            return 200, {"id": name, "private": hub.repositories[name]["private"], "siblings": [], "sha": "0" * 40}
        if "preupload" in parts:
            return 200, {"files": [_mode(file) for file in json.loads(body)["files"]]}
        if path.endswith("/info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            upload = [{**each, "actions": {"upload": {"href": f"{hub.url}/blob/{each['oid']}"}}} for each in wanted]
            return 200, {"transfer": "basic", "objects": upload}
        if "commit" in parts:
            return self._commit(name, body)
        return 404, {"error": f"the stand-in knows no {path}"}

    def _create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        name = f"{asked.get('organization') or 'somebody'}/{asked['name']}"
        if name in self.hub.repositories:
            return 409, {"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"}
        private = asked.get("private") is True or asked.get("visibility") == "private"
        self.hub.repositories[name] = {"private": private, "files": {}, "commits": []}
        return 200, {"url": f"{self.hub.url}/{name}", "name": name}

    def _commit(self, name: str, body: bytes) -> tuple[int, Any]:
        found = self.hub.repositories[name]
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                found["commits"].append(value["summary"])
            elif line["key"] == "file":
                found["files"][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                found["files"][value["path"]] = self.hub.blobs[value["oid"]]
        url = f"{self.hub.url}/{name}/commit/{'0' * 40}"
        return 200, {"success": True, "commitUrl": url, "commitOid": "0" * 40, "pullRequestUrl": None}

    def _say(self, status: int, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status >= 400:
            self.send_header("X-Error-Message", str(value.get("error", "")))
            if status == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _mode(file: dict[str, Any]) -> dict[str, Any]:
    large = file["path"].endswith((".safetensors", ".gguf"))
    return {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
