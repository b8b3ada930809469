"""Parts, messages and launches of a run's processes, without any process."""

import json
import math
import os
import pickle
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from lite_selfplay.config import ModelSection
from lite_selfplay.data import Completion, Sampling, TokenScores, Verdict
from lite_selfplay.errors import GameError, Interrupted, ProcessLost, RequestError
from lite_selfplay.models.generation.sampling import Generation, GenerationRequest
from lite_selfplay.runs import build
from lite_selfplay.training import ranks as processes
from lite_selfplay.training import sharing
from lite_selfplay.training.ranks import ALONE, LAST_WORDS_S, Ranks, joined


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 9))
def test_parts_are_neighbours_cover_everything_once_and_cost_about_the_same(costs: list[int], world: int):
    items = list(enumerate(costs))
    parts = [Ranks(rank, world).part(items, lambda item: item[1]) for rank in range(world)]
    assert [item for part in parts for item in part] == items
    for part in parts:
        assert sum(cost for _, cost in part) <= sum(costs) / world + max(costs, default=0)


class Told(Ranks):
    """One of several processes, with given messages of the others; None stands for its own message."""

    def __init__(self, *others: bytes | None):
        super().__init__(0, 1 + len(others))
        self.others = others

    def _exchange(self, message: bytes) -> list[bytes]:
        return [message, *(message if other is None else other for other in self.others)]


def message(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_everybody_hears_everything_in_order_and_another_game_is_refused():
    ranks = Told(message(["names", "B"]))
    assert ranks.gather("names", "A", str.lower) == ["a", "b"]
    assert ranks.gather("names", "A") == ["A", "B"]
    assert ranks.from_main("names", lambda: "first") == "first"
    with pytest.raises(GameError, match="process 0 was at ask 4, process 1 at ask 5"):
        Told(message(["ask 5", None])).gather("ask 4")


def test_what_differs_is_named_line_by_line():
    other = {"configuration": "steps: 3\nseed: 1", "device": "a card"}
    ranks = Told(message(["the run's facts", other]))
    ranks.require_same(other)
    words = "process 1 of this run has another configuration than process 0: 'seed: 1', not 'seed: 0'"
    with pytest.raises(RequestError, match=words):
        ranks.require_same({**other, "configuration": "steps: 3\nseed: 0"})
    with pytest.raises(RequestError, match="another device than process 0: 'a card', not 'another'"):
        ranks.require_same({**other, "device": "another"})


class Runs:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("import os; os._exit(9)",)


UNREADABLE = [b"", b"{}", b"\xff", b"[" * 100_000, pickle.dumps(Runs()), message(["what", 1])[:-1]]


@pytest.mark.parametrize("sent", [*UNREADABLE, *map(message, ("no pair", ["what"], ["what", 1, 2]))])
def test_a_peer_that_sends_anything_else_is_not_believed(sent: bytes):
    with pytest.raises(ProcessLost, match="sends an unreadable message"):
        Told(sent).gather("what", 1)


GENERATIONS = [Generation([5, 70000], [-0.1, math.nan], "eos"), Generation([], [], "prompt_too_long")]


def test_completions_and_scores_and_verdicts_travel_to_the_bit():
    ranks, request = Told(None), GenerationRequest("A", [[1]], 4, Sampling(), [range(4)])
    (found,) = sharing.generate(ranks, 0, request, lambda part: [GENERATIONS])
    assert repr(found) == repr([*GENERATIONS, *GENERATIONS])
    scores = [TokenScores([0.1 + 0.2, -math.inf], [0.25, 1e-300])]
    completion = Completion("", "", [1], [2, 3], [0.0, 0.0], "eos", "A", 0, Sampling())
    assert sharing.score(ranks, 0, "A", [completion], lambda mine: scores) == [*scores, *scores]
    verdicts = [Verdict(True, 0.1 + 0.2, "1/3", True, ""), Verdict(False, 0.0, None, False, "timeout")]
    assert sharing.judge(ranks, 0, lambda: verdicts, 4) == [*verdicts, *verdicts]


MISFITS = [[ids, [-1.0], "eos"] for ids in ([5, 6], [5.5], ["5"], [True])]
MISFITS += [[[5], ["much"], "eos"], [[5], [-1.0], "bored"], [[5], [-1.0]]]


@pytest.mark.parametrize("rows", [*([row] for row in MISFITS), {}, None])
def test_completions_that_do_not_fit_together_are_refused(rows: Any):
    with pytest.raises(ProcessLost, match="sends an unreadable message"):
        Told(message(["what", rows])).gather("what", [], sharing.read_generations)


@pytest.mark.parametrize("value", [None, 3, [1], [{}], [{"correct": True, "score": "much", "answer": None}]])
def test_a_verdict_that_is_none_is_refused(value: Any):
    ranks = Told(message(["rewards of 4 completions in step 1", value]))
    with pytest.raises(ProcessLost, match="sends an unreadable message"):
        sharing.judge(ranks, 0, list, 4)


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

SET_BY_TORCHRUN = """RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2
MASTER_ADDR=node-0 MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True"""
TORCHRUN = dict(variable.split("=") for variable in SET_BY_TORCHRUN.split())


def test_a_launch_is_read_from_the_environment():
    found = processes.find_launch(TORCHRUN)
    assert found == processes.Launch(3, 4, 1, 2, "node-0", 29500, True, "0")
    assert not found.one_machine


@pytest.mark.parametrize("environment", [{}, {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}])
def test_one_process_is_alone_and_pays_nothing(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    assert processes.find_launch(environment) is None
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    with joined() as ranks:
        assert ranks is ALONE
    # Nothing is sent, packed or copied.
    assert ALONE.from_main("anything", lambda: "made here") == "made here"
    ALONE.require_same({"anything": object()})
    ALONE.add_up([object()])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "environment",
    [
        {**TORCHRUN, "ACCELERATE_USE_DEEPSPEED": "true"},
        {"WORLD_SIZE": "2"},
        {"WORLD_SIZE": "many"},
        *({**TORCHRUN, **odd} for odd in ({"RANK": "4"}, {"LOCAL_WORLD_SIZE": "8"}, {"MASTER_PORT": "http"})),
    ],
)
def test_a_launch_of_another_kind_is_refused(environment: dict[str, str]):
    words = f"WORLD_SIZE is {environment['WORLD_SIZE']}, but torchrun did not start .*: start the run with torchrun"
    with pytest.raises(RequestError, match=words):
        processes.find_launch(environment)


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(RequestError, match=r"2 processes on this machine, and 1 GPU: .* --nproc-per-node 1 at most"):
        processes.take_a_gpu(processes.find_launch(TORCHRUN))  # type: ignore[arg-type]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    processes.take_a_gpu(processes.find_launch(TORCHRUN))  # type: ignore[arg-type]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"


def test_a_backend_that_several_processes_were_not_run_with_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(build, "chosen", lambda section: "unsloth")
    build.require_shareable(ALONE, ModelSection(name="tiny"))
    with pytest.raises(RequestError, match=r"untested with several processes \(2\)"):
        build.require_shareable(Ranks(0, 2), ModelSection(name="tiny"))
