"""What processes of a run share out and send each other, without any process: parts, messages, launches."""

import io
import json
import pickle
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from lite_selfplay.data import TokenScores, Verdict
from lite_selfplay.errors import GameError, Interrupted, ProcessLost, RequestError
from lite_selfplay.models.generation.sampling import Generation
from lite_selfplay.training import launch, sharing
from lite_selfplay.training.ranks import ALONE, LAST_WORDS_S, Ranks, joined, pack, unpack

# Parts


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 9))
def test_parts_are_neighbours_cover_everything_once_and_cost_about_the_same(costs: list[int], world: int):
    items = list(enumerate(costs))
    parts = [Ranks(rank, world).part(items, lambda item: item[1]) for rank in range(world)]
    assert [item for part in parts for item in part] == items
    for part in parts:
        assert sum(cost for _, cost in part) <= sum(costs) / world + max(costs, default=0)


# What is told


class Told(Ranks):
    """One of several, to whom the others say what a test has them say."""

    def __init__(self, *others: bytes):
        super().__init__(0, 1 + len(others))
        self.others = others

    def _exchange(self, message: bytes) -> list[bytes]:
        return [message, *self.others]


def both(value: Any, arrays: Any) -> Any:
    return value, arrays["ids"].tolist()


def test_everybody_hears_everything_in_order():
    ranks = Told(pack(["names", "B"], {"ids": np.array([4, 5], "<i4")}))
    assert ranks.gather("names", "A", {"ids": np.array([1], "<i4")}, both) == [("A", [1]), ("B", [4, 5])]
    assert ranks.gather("names", "A") == ["A", "B"]
    assert ranks.from_main("names", lambda: "first") == "first"


def test_processes_that_came_to_different_games_are_refused_by_name():
    with pytest.raises(GameError, match="process 0 was at ask 4, process 1 at ask 5"):
        Told(pack(["ask 5", None])).gather("ask 4")


def test_what_differs_is_named_line_by_line():
    other = {"configuration": "steps: 3\nseed: 1", "device": "a card"}
    ranks = Told(pack(["what this run is", other]))
    ranks.require_same(other)
    words = "process 1 of this run has another configuration than process 0: 'seed: 1', not 'seed: 0'"
    with pytest.raises(RequestError, match=words):
        ranks.require_same({**other, "configuration": "steps: 3\nseed: 0"})
    with pytest.raises(RequestError, match="another device than process 0: 'a card', not 'another'"):
        ranks.require_same({**other, "device": "another"})


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


class Runs:
    """What runs code where it is unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("import os; os._exit(9)",)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"{}",
        pickle.dumps(Runs()),
        npz(json=np.array([Runs()], dtype=object)),
        npz(json=np.frombuffer(json.dumps(["what", 1]).encode(), np.uint8), ids=np.array([Runs()], dtype=object)),
        npy(np.array([1])),
        npz(ids=np.array([1])),
        npz(json=np.array([1.5])),
        pack(["what", 1])[:-1],
        pack("no pair"),
        pack(["what"]),
    ],
)
def test_a_peer_that_sends_anything_else_is_not_believed(message: bytes):
    with pytest.raises(ProcessLost, match="sends what cannot be read"):
        Told(message).gather("what", 1)


GENERATIONS = [Generation([5, 70000], [-0.5, -1.25], "eos"), Generation([], [], "prompt_too_long")]


def packed(rows: list[Generation]) -> dict[str, Any]:
    arrays = sharing.pack_rows(sharing._GENERATIONS, [(row.token_ids, row.logprobs) for row in rows])
    return {**arrays, "stops": np.array([sharing._STOPS.index(row.stop) for row in rows], np.uint8)}


def test_completions_and_scores_and_verdicts_travel_as_they_are():
    assert sharing.read_generations(*unpack(pack(None, packed(GENERATIONS)))) == GENERATIONS
    scores = [TokenScores([-0.5], [0.25]), TokenScores([], [])]
    arrays = sharing.pack_rows(sharing._SCORES, [(row.logprobs, row.entropies) for row in scores])
    found = sharing.read_scores(*unpack(pack(None, arrays)))
    assert [(list(s.logprobs), list(s.entropies)) for s in found] == [([-0.5], [0.25]), ([], [])]
    verdicts = [Verdict(True, 0.1 + 0.2, "1/3", True, ""), Verdict(False, 0.0, None, False, "timeout")]
    assert sharing.read_verdicts(*unpack(pack(sharing._VERDICTS.dump_python(verdicts)))) == verdicts


@pytest.mark.parametrize(
    "change",
    [
        {"lengths": np.array([2, 1], "<i4")},
        {"lengths": np.array([-1, 3], "<i4")},
        {"stops": np.array([0, 9])},
        {"stops": np.array([0])},
        {"ids": np.array([5.5, 6.0])},
        {"ids": np.array(["5", "6"])},
        {"logprobs": np.array([1.0], "<f4")},
    ],
)
def test_completions_that_do_not_fit_together_are_refused(change: dict[str, Any]):
    rows = [Generation([5, 6], [-1.0, -2.0], "eos"), Generation([], [], "length")]
    ranks = Told(pack(["what", None], {**packed(rows), **change}))
    with pytest.raises(ProcessLost, match="sends what cannot be read"):
        ranks.gather("what", None, packed(rows), sharing.read_generations)


@pytest.mark.parametrize("value", [None, 3, [1], [{}], [{"correct": True, "score": "much", "answer": None}]])
def test_a_verdict_that_is_none_is_refused(value: Any):
    with pytest.raises(ProcessLost, match="sends what cannot be read"):
        Told(pack(["what", value])).gather("what", [], None, sharing.read_verdicts)


# Leaving


def test_the_first_process_waits_until_the_others_have_read_why_it_leaves():
    store = HashStore()
    first, second, third = (Ranks(rank, 3, store) for rank in range(3))
    first.leave(Interrupted("stopped"))
    assert second.last_words(0) == {"kind": "Interrupted", "sentence": "stopped"}
    assert second.last_words(2) is None
    second.say_goodbye()
    threading.Timer(0.5, third.say_goodbye).start()
    began = time.monotonic()
    first.say_goodbye()
    assert 0.4 < time.monotonic() - began < LAST_WORDS_S


def test_a_process_that_was_killed_is_not_waited_for_long():
    store = HashStore()
    Ranks(1, 3, store).say_goodbye()
    began = time.monotonic()
    Ranks(0, 3, store).say_goodbye()
    assert LAST_WORDS_S <= time.monotonic() - began < LAST_WORDS_S + 5


# Launches

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_a_launch_is_read_from_the_environment():
    found = launch.find(TORCHRUN)
    assert found == launch.Launch(3, 4, 1, 2, "node-0", 29500, True, "0")
    assert not found.one_machine


@pytest.mark.parametrize("environment", [{}, {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}])
def test_one_process_is_alone_and_pays_nothing(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    assert launch.find(environment) is None
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    with joined() as ranks:
        assert ranks is ALONE
    # Nothing is sent, packed or copied.
    assert ALONE.from_main("anything", lambda: "made here") == "made here"
    ALONE.require_same({"anything": object()})
    ALONE.add_up([object()])  # type: ignore[list-item]
    clock = float
    assert ALONE.shared_clock(clock) is clock
    assert ALONE.sent == 0


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({**TORCHRUN, "ACCELERATE_USE_DEEPSPEED": "true"}, "WORLD_SIZE is 4, and it was not torchrun that started"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, and it was not torchrun .*: start the run with torchrun"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE is many, and it was not torchrun"),
        ({**TORCHRUN, "RANK": "4"}, "it was not torchrun"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "8"}, "it was not torchrun"),
        ({**TORCHRUN, "MASTER_PORT": "http"}, "it was not torchrun"),
    ],
)
def test_a_launch_of_another_kind_is_refused(environment: dict[str, str], words: str):
    with pytest.raises(RequestError, match=words):
        launch.find(environment)


def test_more_processes_than_cards_are_refused(monkeypatch: pytest.MonkeyPatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RequestError, match=r"2 processes on this machine, and 1 card: .* --nproc-per-node 1 at most"):
        launch.take_a_card(launch.find(TORCHRUN))  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    launch.take_a_card(launch.find(TORCHRUN))  # type: ignore[arg-type]
    import os

    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"


def test_a_backend_that_several_processes_were_not_run_with_is_refused(monkeypatch: pytest.MonkeyPatch):
    from lite_selfplay.config import ModelSection
    from lite_selfplay.runs import processes

    monkeypatch.setattr(processes, "chosen", lambda section: "unsloth")
    processes.require_shareable(ALONE, ModelSection(name="tiny"))
    with pytest.raises(RequestError, match="2 processes have not been tried with the Unsloth backend"):
        processes.require_shareable(Ranks(0, 2), ModelSection(name="tiny"))
