"""Completions from servers: whose they are, what is made of an answer that is odd, which servers are left out."""

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay.data import BASE, Sampling
from lite_selfplay.errors import Interrupted, RequestError, RolloutsLost
from lite_selfplay.extras.servers import MOST_ADAPTERS, ServedBackend, Server, ServerFailed
from lite_selfplay.models.generation.sampling import Generation, GenerationRequest
from lite_selfplay.training.sampler_check import mean_gap

from .conftest import StandIn

Make = Callable[..., ServedBackend]
PROMPTS = [[65, 66, 67, 68], [70, 71]]
EOS = 258


@pytest.fixture
def backend(servers: list[StandIn], backend_over: Make) -> ServedBackend:
    """A backend over the first server alone."""
    return backend_over(servers[:1])


def asked(seat: str = "A", *, rows: int = 2, first: int = 0, **sampling: object) -> GenerationRequest:
    seeds = [[first + rows * p + k for k in range(rows)] for p in range(len(PROMPTS))]
    return GenerationRequest(seat, PROMPTS, rows, Sampling(**{"max_tokens": 8, **sampling}), seeds)  # type: ignore[arg-type]


def ids(found: Sequence[Sequence[Generation]]) -> list[list[list[int]]]:
    return [[one.token_ids for one in group] for group in found]


def gap(backend: ServedBackend, seat: str, found: list[list[Generation]], temperature: float = 1.0) -> float:
    """How far what was noted is from the trainer's own log-probabilities, in nats a token."""
    rows = [(prompt, one.token_ids) for prompt, group in zip(PROMPTS, found, strict=True) for one in group]
    scores = backend.score(seat, rows, temperature)
    noted = [one.logprobs for group in found for one in group]
    value = mean_gap(list(zip(noted, [score.logprobs for score in scores], strict=True)))
    assert value is not None
    return value


def move(backend: ServedBackend, seat: str = "A", by: float = 0.05) -> None:
    """An update of a seat."""
    with torch.no_grad():
        for parameter in backend.adapters.parameters(seat).values():
            parameter.add_(by)
    backend.adapters.moved(seat)


@pytest.mark.parametrize(("seat", "temperature"), [("A", 1.0), (BASE, 1.0), ("B", 0.5)])
def test_a_completion_is_the_seats_own(servers: list[StandIn], backend_over: Make, seat: str, temperature: float):
    backend = backend_over(servers)
    found = backend.generate(asked(seat, temperature=temperature))
    assert [len(group) for group in found] == [2, 2]
    assert gap(backend, seat, found, temperature) < 1e-5
    other = "B" if seat == "A" else "A"
    assert gap(backend, other, found, temperature) > 1e-2
    for one in (one for group in found for one in group):
        assert 0 < len(one.token_ids) == len(one.logprobs) <= 8
        assert (one.stop == "eos") == (one.token_ids[-1] == EOS)


def test_the_same_seeds_give_the_same_completions_on_any_number_of_servers(servers: list[StandIn], backend_over: Make):
    two = backend_over(servers)
    found = two.generate(asked())
    assert ids(two.generate(asked())) == ids(found) != ids(two.generate(asked(first=100)))
    assert all(server.completions for server in servers), "rows are spread"
    assert ids(backend_over(servers[:1]).generate(asked())) == ids(found)


def test_every_state_of_a_seat_has_a_name_of_its_own(servers: list[StandIn], backend: ServedBackend, tmp_path: Path):
    found = []
    for _ in range(3):
        found.append(backend.generate(asked()))
        assert gap(backend, "A", found[-1]) < 1e-5
        move(backend)
    assert gap(backend, "A", found[-1]) > 1e-2
    loaded = [body["lora_name"] for body in servers[0].loads]
    assert [name.rpartition("-")[2] for name in loaded] == ["v0", "v1", "v2"]
    assert len(set(loaded)) == 3
    assert len(list((tmp_path / "rollouts").glob("*/*"))) == 1, "former states are deleted"
    backend.close()
    assert not (tmp_path / "rollouts").exists()


def test_snapshots_speak_and_take_no_more_room_than_there_is(backend: ServedBackend, tmp_path: Path):
    for number in range(MOST_ADAPTERS + 2):
        backend.adapters.snapshot("A", f"A@{number}")
        backend.generate(asked(f"A@{number}", rows=1))
        move(backend, by=0.01)
    assert len(list((tmp_path / "rollouts").glob("*/*"))) == MOST_ADAPTERS
    found = backend.generate(asked("A@0"))
    assert gap(backend, "A@0", found) < 1e-5 < 1e-3 < gap(backend, "A", found)


def test_what_is_asked_leaves_nothing_to_the_servers_defaults(servers: list[StandIn], backend: ServedBackend):
    backend.generate(asked(rows=1, top_p=0.5, top_k=3, min_p=0.1, repetition_penalty=1.1, stop=("x", "yz")))
    body = servers[0].completions[-1]
    sent = {"top_p": 0.5, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1, "stop": ["x", "yz"]}
    sent |= {"presence_penalty": 0.0, "frequency_penalty": 0.0, "temperature": 1.0, "max_tokens": 8, "n": 1}
    assert {key: body[key] for key in sent} == sent
    assert body["prompt"] in PROMPTS
    assert (body["ignore_eos"], body["stop_token_ids"]) == (True, [EOS])


def test_a_completion_ends_with_a_stop_string(backend: ServedBackend):
    plain = backend.generate(asked(max_tokens=24))[0][0]
    stop = backend._decoding.decode(plain.token_ids[3:4])  # type: ignore[misc]
    found = backend.generate(asked(max_tokens=24, stop=(stop,)))[0][0]
    assert found.stop == "string"
    assert found.token_ids == plain.token_ids[: len(found.token_ids)]
    assert len(found.token_ids) <= 4


# What goes wrong

FAULTS = {
    "drop": "cannot be reached, or did not answer",
    "json": "gave an invalid answer",
    "status": "HTTP status 500: .*EngineCore encountered an issue",
    "slow": r"did not answer .(Read)?Timeout",
}
"""What a server does, and what is said of it: other odd answers are in `test_protocol.py`."""


def test_what_fails_is_asked_again_and_nothing_else(servers: list[StandIn], backend: ServedBackend):
    whole = backend.generate(asked())
    for kind in ("drop", "json", "nan", "short", "status"):
        before = len(servers[0].completions)
        servers[0].fault(kind, 2, status=500)
        assert ids(backend.generate(asked())) == ids(whole), kind
        assert len(servers[0].completions) == before + 4 + 2, kind


@pytest.mark.parametrize("kind", FAULTS)
def test_what_a_server_fails_at_is_asked_of_another(servers: list[StandIn], backend_over: Make, kind: str):
    warned: list[str] = []
    backend = backend_over(servers, warn=warned.append, timeout_s=2 if kind == "slow" else 60)
    whole = ids(backend.generate(asked()))
    servers[0].fault(kind, seconds=3, status=500)
    assert ids(backend.generate(asked())) == whole
    (warning,) = warned
    assert warning.startswith(f"rollouts: {servers[0].address} ")
    before = len(servers[0].completions)
    assert ids(backend.generate(asked())) == whole
    assert len(servers[0].completions) == before, "nothing is asked of it while another answers"
    servers[1].fault(kind, seconds=3, status=500)
    with pytest.raises(RolloutsLost, match=FAULTS[kind]) as lost:
        backend.generate(asked())
    assert all(server.address in str(lost.value) for server in servers)
    for server in servers:
        server.fault("", 0)
    assert ids(backend.generate(asked())) == whole


def test_a_server_that_was_started_anew_is_given_the_adapter_again(servers: list[StandIn], backend: ServedBackend):
    whole = backend.generate(asked())
    servers[0].fault("restart", 1)
    assert ids(backend.generate(asked())) == ids(whole)
    loads = [body["lora_name"] for body in servers[0].loads]
    assert len(loads) > 1 == len(set(loads))


def first_asked(monkeypatch: pytest.MonkeyPatch, act: Callable[[Server, Any], Generation | None]) -> None:
    """Each completion is first asked of `act`, which may raise, or complete it in the server's place."""
    sample = Server.complete

    async def complete(self: Server, adapter: Any, request: Any, vocabulary: int) -> Generation:
        return act(self, request) or await sample(self, adapter, request, vocabulary)

    monkeypatch.setattr(Server, "complete", complete)


def test_one_completion_that_always_fails_ends_it(servers: list[StandIn], backend_over: Make, monkeypatch):
    """However well servers do otherwise."""
    failures = []

    def fail(server: Server, request: Any) -> None:
        if request["seed"] == 3:
            failures.append(server)
            server.failures.append("is in a mood")
            raise ServerFailed(server.address, "is in a mood")

    first_asked(monkeypatch, fail)
    with pytest.raises(RolloutsLost, match="is in a mood"):
        backend_over(servers).generate(asked())
    assert (len(failures), len(set(failures))) == (4, 2)


def test_a_signal_ends_the_wait_at_once(servers: list[StandIn], backend_over: Make):
    stopping = threading.Event()

    def poll() -> None:
        if stopping.is_set():
            raise Interrupted("stopped by SIGINT")

    backend = backend_over(servers, poll=poll)
    backend.generate(asked())
    for server in servers:
        server.fault("slow", seconds=20)
    threading.Timer(0.5, stopping.set).start()
    began = time.monotonic()
    with pytest.raises(Interrupted):
        backend.generate(asked())
    assert time.monotonic() - began < 10
    stopping.clear()


def test_no_more_rows_are_in_flight_than_may_be(servers: list[StandIn], backend_over: Make, monkeypatch):
    at_once: list[int] = []
    first_asked(monkeypatch, lambda server, _: at_once.append(server.busy + 1))
    backend_over(servers, rows_at_once=2).generate(asked(rows=4))
    assert max(at_once) == 2


def test_a_loop_that_a_server_went_on_with_is_cut(backend: ServedBackend, monkeypatch: pytest.MonkeyPatch):
    first_asked(monkeypatch, lambda *_: Generation([65] * 300, [-1.0] * 300, "length"))
    found = itertools.chain(*backend.generate(asked()))
    assert {(out.stop, len(out.token_ids), len(out.logprobs)) for out in found} == {("loop", 256, 256)}
    backend._decoding = dataclasses.replace(backend._decoding, end_loops=False)
    assert {out.stop for out in itertools.chain(*backend.generate(asked()))} == {"length"}


# What is refused before anything begins


def test_a_server_that_does_not_fit_is_refused(servers: list[StandIn], backend_over: Make):
    for options, start, sentence in (
        ({}, {"dead": True}, "cannot be reached, or did not answer"),
        ({"model": "Qwen3-4B"}, {}, "has no base 'Qwen3-4B': it serves the-base"),
        ({"longest": 5000}, {}, r"reads up to 4,096 tokens, .* may take 5,000: .*--max-model-len"),
        ({}, {"runtime_lora": False}, "_LORA_UPDATING=1 .*--enable-lora --max-loras 2 --max-lora-rank 8"),
    ):
        servers[1].start(**start)
        with pytest.raises(RequestError, match=f"^{servers[1].address} .*{sentence}"):
            backend_over(servers[1:], **options)


def test_a_server_that_does_not_see_the_folder_is_told(servers: list[StandIn], backend_over: Make):
    backend = backend_over(servers, seen_as="/mnt/elsewhere")
    with pytest.raises(RolloutsLost, match=r"No adapter found for /mnt/elsewhere/.* and access to "):
        backend.generate(asked())


def test_a_folder_of_ones_own_under_another_path(servers: list[StandIn], backend_over: Make, tmp_path: Path):
    (tmp_path / "as the server sees it").symlink_to(tmp_path / "here", target_is_directory=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine").write_text("untouched")
    there = {"folder": str(tmp_path / "here"), "seen_as": str(tmp_path / "as the server sees it")}
    backend = backend_over(servers, **there)
    assert gap(backend, "A", backend.generate(asked())) < 1e-5
    assert servers[0].loads[0]["lora_path"].startswith(there["seen_as"])
    backend.close()
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["mine"]


def test_what_a_killed_start_left_is_never_spoken_and_goes(servers: list[StandIn], backend_over: Make, tmp_path: Path):
    killed = backend_over(servers[:1])
    killed.generate(asked())
    (left,) = servers[0].served
    backend = backend_over(servers[:1])
    move(backend)
    assert gap(backend, "A", backend.generate(asked())) < 1e-5
    assert servers[0].completions[-1]["model"] != left
    backend.close()
    assert not (tmp_path / "rollouts").exists()


def test_a_full_disk_is_said(backend: ServedBackend, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backend.adapters, "save", full)
    with pytest.raises(RolloutsLost, match=r"cannot write an adapter for the servers to .*No space left on device"):
        backend.generate(asked())
