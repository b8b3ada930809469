"""`push`, against a stand-in of the hub on a real socket."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay import RunConfig, train
from lite_selfplay.errors import ConfigError, PushFailed, RequestError
from lite_selfplay.runs.export.hub import Push, push
from tests.runs.export.hub_stand_in import READ_ONLY, TOKEN, StandIn

MakeRun = Callable[..., Path]
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")  # huggingface_hub's own use of httpx


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A hub that huggingface_hub asks in this test, by plain HTTP and without its pauses between tries."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _http

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(_http.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with StandIn() as stand_in:
        monkeypatch.setenv("HF_ENDPOINT", stand_in.url)
        yield stand_in


@pytest.fixture
def send(make_run: MakeRun) -> Callable[..., Push]:
    """Push a seat that is not verified: that is tested with `export`."""

    def send(name: str = "somebody/agon-a", **options: Any) -> Push:
        return push(make_run(), name, "A", **{"verify": False, **options})

    return send


def test_a_push_is_private_and_whole(hub: StandIn, send: Callable[..., Push], make_run: MakeRun):
    done = send()
    assert done.url == f"{hub.url}/somebody/agon-a"
    found = hub.repositories["somebody/agon-a"]
    assert found["private"] is True
    assert found["commits"] == ["Seat A, by lite-selfplay"]
    assert {name: len(content) for name, content in found["files"].items()} == done.files
    weights = make_run() / "adapters" / "A" / "adapter_model.safetensors"
    assert found["files"]["adapter_model.safetensors"] == weights.read_bytes()
    assert found["files"]["README.md"].decode() == done.card


def test_a_public_one_of_ones_own_name(hub: StandIn, send: Callable[..., Push]):
    done = send("agon-a", private=False)
    assert done.repository == "somebody/agon-a"
    assert hub.repositories["somebody/agon-a"]["private"] is False


def test_one_that_exists_is_left_alone_unless_asked(hub: StandIn, send: Callable[..., Push]):
    send()
    with pytest.raises(RequestError, match=r"somebody/agon-a exists on http://127.* already: .*--update"):
        send()
    assert len(hub.repositories["somebody/agon-a"]["commits"]) == 1
    send(update=True, to="peft")
    assert len(hub.repositories["somebody/agon-a"]["commits"]) == 2


@pytest.mark.parametrize("form", ["peft", "merged", "gguf"])
def test_nothing_that_is_sent_names_a_folder_of_this_machine(hub: StandIn, tiny_path: Path, tmp_path: Path, form: Any):
    private = tmp_path / "of-nobody-else"
    base = private / "my-base"
    shutil.copytree(tiny_path, base)
    (private / "sums.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n{"question": "1 + 2", "answer": "3"}\n')
    (private / "taught.jsonl").write_text('{"prompt": "1 + 2", "completion": "3"}\n')
    run = train(
        RunConfig(
            game="grpo",
            model={"name": str(base), "precision": "fp32"},
            tasks=str(private / "sums.jsonl"),
            eval={"tasks": "letters", "limit": 1},
            cold_start={"enabled": True, "source": str(private / "taught.jsonl"), "steps": 1, "examples_per_step": 1},
            steps=1,
            group_size=2,
            problems_per_step=1,
            max_completion_tokens=8,
            run_dir=private / "run",
        )
    )
    push(run.path, "somebody/grpo", to=form, verify=False)
    files = hub.repositories["somebody/grpo"]["files"]
    assert [name for name, content in files.items() if b"of-nobody-else" in content] == []
    assert b"`sums.jsonl`" in files["README.md"]
    assert b"`taught.jsonl`" in files["README.md"]
    if form == "peft":
        assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == "my-base"


@pytest.mark.parametrize("how", ["no token", "asked for"])
def test_a_dry_run_sends_nothing_and_shows_everything(
    hub: StandIn, send: Callable[..., Push], monkeypatch, tmp_path, how
):
    if how == "no token":
        from huggingface_hub import constants

        monkeypatch.delenv("HF_TOKEN")
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    done = send(dry_run=how == "asked for")
    assert hub.asked == []
    assert done.url is None
    assert "adapter_model.safetensors" in done.files
    assert done.card.startswith("---\nlibrary_name: peft")
    assert ("HF_TOKEN" in done.why) == (how == "no token")
    assert done.to_json()["dry_run"] is True


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("hf_of_nobody", r"it does not know the token \(401.*hf auth login"),
        (READ_ONLY, r"the token may not write there \(403.*rights to create"),
    ],
)
def test_a_token_that_is_not_enough(hub: StandIn, send: Callable[..., Push], monkeypatch, token, words):
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(PushFailed, match=rf"nothing was pushed to somebody/agon-a on http://127.*: {words}"):
        send()
    assert hub.repositories == {}


@pytest.mark.parametrize(
    ("place", "status", "words"),
    [
        ("/create", 503, r"it failed \(503.*try again later"),
        ("/create", 409, r"there is a repository of that name \(409"),
        ("/create", 402, r"it answered 402"),
        ("/create", None, r"could not be reached, or broke off \(.*\): try again later"),
        ("/preupload", 500, r"it failed \(500.*The repository somebody/agon-a was made and is empty: .*--update"),
        ("/blob", 502, r"it failed \(502.*was made and is empty"),
        ("/commit", None, r"broke off .*was made and is empty"),
        ("/commit", 403, r"the token may not write there .*was made and is empty"),
    ],
)
def test_a_hub_that_fails_at_any_moment(hub: StandIn, send: Callable[..., Push], place, status, words):
    hub.fault = (place, status)
    with pytest.raises(PushFailed, match=words) as failed:
        send()
    assert "\n" not in str(failed.value)
    assert all(found["files"] == {} for found in hub.repositories.values())
    if hub.repositories:
        hub.fault = None
        assert send(update=True).url is not None


def test_a_hub_that_is_not_there_and_one_that_may_not_be_asked(hub: StandIn, send: Callable[..., Push], monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PushFailed, match=r"on http://127.0.0.1:9: it could not be reached"):
        send()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PushFailed, match="HF_HUB_OFFLINE forbids asking"):
        send()


def test_a_name_that_no_repository_can_have(send: Callable[..., Push]):
    for name in ("a/b/c", "somebody/agon a", "--", "x" * 200):
        with pytest.raises(ConfigError, match="is no name for a repository"):
            send(name)
