"""Stand-ins for vLLM's server, each a process of its own that samples with `tiny`."""

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.models.backends import fleet

STAND_IN = Path(__file__).with_name("stand_in.py")


class StandIn:
    """A server in another process. `fault(kind, times)` makes it fail; `log` is what it was asked for."""

    def __init__(self, model: Path, *options: str):
        command = [sys.executable, str(STAND_IN), str(model), "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.address = f"http://127.0.0.1:{line.split()[-1]}"

    def fault(self, kind: str, times: int = -1, **more: Any) -> None:
        body = json.dumps({"kind": kind, "times": times, **more}).encode()
        asked = urllib.request.Request(f"{self.address}/test/fault", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=20):
            pass

    def heal(self) -> None:
        self.fault("", 0)

    @property
    def log(self) -> list[dict[str, Any]]:
        return self._get("/test/log")

    @property
    def served(self) -> list[str]:
        return [card["id"] for card in self._get("/v1/models")["data"]][1:]

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.address}{path}", timeout=20) as answer:
            return json.load(answer)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session")
def _shared(tiny_path: Path) -> Iterator[list[StandIn]]:
    servers = [StandIn(tiny_path), StandIn(tiny_path)]
    yield servers
    for server in servers:
        server.kill()


@pytest.fixture
def servers(_shared: list[StandIn]) -> Iterator[list[StandIn]]:
    """Two servers over `tiny`, whole again for every test."""
    for server in _shared:
        server.heal()
    yield _shared
    for server in _shared:
        server.heal()


@pytest.fixture
def start(tiny_path: Path) -> Iterator[Callable[..., StandIn]]:
    """Start a server of one's own: `start("--raw", model=...)`."""
    with contextlib.ExitStack() as stack:

        def begin(*options: str, model: Path = tiny_path) -> StandIn:
            server = StandIn(model, *options)
            stack.callback(server.kill)
            return server

        yield begin


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is tried again soon."""
    monkeypatch.setattr(fleet, "RESTS_S", (0.05, 0.1, 0.2))
