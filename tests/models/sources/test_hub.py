"""The hub without a network: the messages, and that they come quickly."""

import json
import re
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from lite_selfplay.models.sources import resolve
from lite_selfplay.models.sources.tiny import build_tiny
from lite_selfplay.tasks import hub_data as reached

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def empty_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_ETAG_TIMEOUT", raising=False)
    monkeypatch.setattr(reached, "_answers", {constants.ENDPOINT: (float("inf"), None)})  # the hub answers
    return folder


def answer(monkeypatch: pytest.MonkeyPatch, reply: Any) -> None:
    """Let the hub answer every question about a model with `reply`, an exception or a list of files."""

    def model_info(self: Any, hub_id: str, timeout: float) -> Any:
        if isinstance(reply, Exception):
            raise reply
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in reply])

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)


def response(status: int) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "https://huggingface.co/api/models/x"))


def test_a_hub_that_stays_silent_and_a_look_up_that_never_returns(refused, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server, monkeypatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        patch.setenv("HF_HUB_ETAG_TIMEOUT", "0.5")
        begun = time.perf_counter()
        text = refused("someone/something")
        assert time.perf_counter() - begun < 3.0
    assert "someone/something is neither a local folder nor" in text
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.2")
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *args, **options: time.sleep(5))
    begun = time.perf_counter()
    assert "no answer within 0.2 s" in refused("someone/something")
    assert time.perf_counter() - begun < 2.0


def test_what_is_known_without_asking(refused, monkeypatch):
    answer(monkeypatch, AssertionError("the hub was asked"))
    assert "valid hub id" in refused("some--one/some..thing")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refused("someone/something")


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (httpx.ConnectError("Not known"), ["Not known", "tiny", "smollm2-135m", ".gguf", "folder", "{cache}"]),
        (errors.GatedRepoError("gated", response=response(403)), ["is gated: accept its licence"]),
        (errors.RepositoryNotFoundError("none", response=response(404)), ["nor a model that the hub knows"]),
        (errors.HfHubHTTPError("busy", response=response(503)), ["HTTP 503"]),
        (OSError(28, "No space left on device"), ["could not be stored"]),
        (["README.md", "model-Q4_0.gguf", "onnx/model.safetensors"], ["no safetensors", "model-Q4_0.gguf"]),
    ],
    ids=["no network", "gated", "unknown", "busy", "no space", "GGUF files"],
)
def test_refusals(refused, monkeypatch, empty_hub_cache, reply, expected):
    answer(monkeypatch, reply)
    text = refused("qwen3-0.6b")
    assert [part for part in expected if part.format(cache=empty_hub_cache) not in text] == []
    assert "Qwen/Qwen3-0.6B" in text


def snapshot(cache: Path, owner: str, name: str) -> Path:
    """The hub library's cache entry, with the random model as content."""
    repository = cache / f"models--{owner}--{name}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(REVISION)
    folder = repository / "snapshots" / REVISION
    build_tiny(folder)
    return folder


def test_a_cached_snapshot_needs_no_network(refused, monkeypatch, empty_hub_cache):
    folder = snapshot(empty_hub_cache, "Qwen", "Qwen3-0.6B")
    answer(monkeypatch, AssertionError("the hub was asked"))
    resolved = resolve("QWEN/qwen3-0.6b")
    assert resolved.path == folder
    assert resolved.identity == f"hub:Qwen/Qwen3-0.6B@{REVISION}"
    # An incomplete one is not used.
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    answer(monkeypatch, httpx.ConnectError("no route"))
    assert "no route" in refused("Qwen3-0.6B")


def test_download(monkeypatch, empty_hub_cache):
    answer(monkeypatch, ["config.json", "model.safetensors"])
    asked, said = [], []

    def download(hub_id, **options):
        asked.append(options)
        if options.get("local_files_only"):
            raise errors.LocalEntryNotFoundError("not cached")
        return str(snapshot(empty_hub_cache, "someone", "something"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    resolved = resolve("someone/something", say=said.append)
    assert resolved.path.name == REVISION
    assert said == ["fetching someone/something from the hub, once"]
    patterns = asked[-1]["allow_patterns"]
    assert "*.safetensors" in patterns
    assert not re.search("bin|pth", " ".join(patterns))
