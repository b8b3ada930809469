"""Stand-ins for vLLM's server, in a process of their own, that sample with `tiny`."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.config import ModelSection, RolloutsSection
from lite_selfplay.extras import servers as served
from lite_selfplay.extras.servers import ServedBackend
from lite_selfplay.models.backends.backend import Rollouts
from lite_selfplay.models.chat_template import Chat
from tests.conftest import SEATS

STAND_IN = Path(__file__).with_name("stand_in.py")


class StandIn:
    """A server in another process. `fault` makes it fail, `log` is what it was asked for."""

    def __init__(self, port: str):
        self.address = f"http://127.0.0.1:{port}"

    def fault(self, kind: str, times: int = -1, **more: Any) -> None:
        """What goes wrong with the next completions; all of them without `times`."""
        self._call("/test/fault", {"kind": kind, "times": times, **more})

    def start(self, **options: Any) -> None:
        """Start it anew with other options; whole again without any."""
        self.fault("", 0)
        self._call("/test/start", options)

    @property
    def log(self) -> list[dict[str, Any]]:
        return self._call("/test/log")

    @property
    def served(self) -> list[str]:
        return [card["id"] for card in self._call("/v1/models")["data"]][1:]

    @property
    def completions(self) -> list[dict[str, Any]]:
        return [body for body in self.log if body["path"] == "/v1/completions"]

    @property
    def loads(self) -> list[dict[str, Any]]:
        return [body for body in self.log if body.get("lora_name")]

    def _call(self, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"{self.address}{path}", content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)


@pytest.fixture(scope="session")
def started(tiny_path: Path) -> Iterator[list[StandIn]]:
    command = [sys.executable, str(STAND_IN), str(tiny_path), "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield [StandIn(port) for port in process.stdout.readline().split()[2:]]
        process.kill()


@pytest.fixture
def servers(started: list[StandIn]) -> Iterator[list[StandIn]]:
    """Two servers over `tiny`, new for every test."""
    for server in started:
        server.start()
    yield started
    for server in started:
        server.start()


@pytest.fixture
def backend_over(tiny_path: Path, tmp_path: Path) -> Iterator[Callable[..., ServedBackend]]:
    """A backend whose completions come from servers: `backend_over(servers, longest=..., timeout_s=...)`."""
    made = []

    def make(servers: list[StandIn], **options: Any) -> ServedBackend:
        chat = Chat.load(tiny_path)
        told = {key: options.pop(key) for key in ("longest", "warn", "poll") if key in options}
        section = RolloutsSection(servers=tuple(server.address for server in servers), **options)
        rollouts = Rollouts(section, tmp_path / "rollouts", told.pop("longest", 100))
        model = ModelSection(name="tiny", precision="fp32")
        ends = {"eos_ids": chat.eos_ids, "decode": chat.decode}
        made.append(ServedBackend(tiny_path, model, SEATS, seed=0, rollouts=rollouts, **ends, **told))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is tried again soon."""
    monkeypatch.setattr(served, "RESTS_S", (0.0, 0.05, 0.1, 0.2))
