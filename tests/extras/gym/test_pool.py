"""The pool of worker processes: its rules with a small stand-in program, its effect with the real one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from lite_selfplay.errors import WorkerStartError
from lite_selfplay.extras import gym
from lite_selfplay.extras.gym import WorkerPool

# Speaks the worker's lines. A question's answer says what to do with it.
STAND_IN = """
import json, os, sys, time
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    order, _, argument = json.loads(line)["answer"].partition(" ")
    if order == "sleep":
        time.sleep(float(argument))
    elif order == "die":
        os._exit(3)
    elif order == "die-once" and not os.path.exists(argument):
        open(argument, "w").close()
        os._exit(3)
    elif order == "babble":
        print("not json", flush=True)
        continue
    elif order == "twice":
        print(json.dumps({"outcome": "first"}), flush=True)
        time.sleep(0.1)
    print(json.dumps({"outcome": "same" if order == "die-once" else order}), flush=True)
"""


def ask(pool: WorkerPool, *answers: str, poll: Callable[[], None] = lambda: None) -> list[str]:
    return pool.work([{"answer": answer} for answer in answers], poll)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def stand_in(tmp_path: Path) -> list[str]:
    program = tmp_path / "stand_in.py"
    program.write_text(STAND_IN)
    return [sys.executable, str(program)]


@pytest.fixture
def pool(stand_in: list[str]) -> Iterator[WorkerPool]:
    with closing(WorkerPool(size=2, deadline=0.5, command=stand_in)) as pool:
        yield pool


OBEYS = """
from lite_selfplay.extras.gym.scoring import run
def reply(question):
    while question['answer'] == 'endless': pass
    bytearray(int(question['answer']))
    return {'outcome': question['answer']}
run(lambda: reply)
"""
"""A worker that takes as much memory as the answer says before it repeats it, or never replies to `endless`."""


def worker(*arguments: str, code: str = OBEYS) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def test_workers_start_where_they_are_needed_and_outcomes_keep_their_order(pool: WorkerPool) -> None:
    assert (ask(pool), pool.pids()) == ([], [])
    ask(pool, "same")
    (first,) = pool.pids()
    ask(pool, "same")
    assert pool.pids() == [first]
    expected = ["same", "different", "sleep", "unparsable"] * 5
    assert ask(pool, *["same", "different", "sleep 0.1", "unparsable"] * 5) == expected
    assert len(pool.pids()) == 2


def test_a_worker_past_its_deadline_is_killed_and_replaced(pool: WorkerPool) -> None:
    ask(pool, "same")
    (pid,) = pool.pids()
    started = time.monotonic()
    assert ask(pool, "sleep 60") == ["timeout"]
    assert 0.4 < time.monotonic() - started < 3
    assert gone(pid)
    assert ask(pool, "sleep 60", "same", "same") == ["timeout", "same", "same"]


def test_a_crash_is_retried_once_and_nonsense_is_one(pool: WorkerPool, tmp_path: Path) -> None:
    assert ask(pool, "same", f"die-once {tmp_path / 'died'}") == ["same", "same"]
    assert ask(pool, "die", "same", "babble") == ["crash", "same", "crash"]


def test_what_a_worker_says_unasked_answers_no_later_question(pool: WorkerPool) -> None:
    assert ask(pool, "twice") == ["first"]
    (pid,) = pool.pids()
    time.sleep(0.3)  # until the second answer to the first question is there
    assert ask(pool, "same", "same") == ["same", "same"]
    assert gone(pid)


def test_a_worker_that_dies_between_batches_is_not_counted_against_a_question(pool: WorkerPool) -> None:
    ask(pool, "same")
    (pid,) = pool.pids()
    os.kill(pid, signal.SIGKILL)
    assert ask(pool, *["same"] * 3) == ["same"] * 3


def test_the_time_for_which_the_run_stood_still_is_not_counted(stand_in: list[str]) -> None:
    rests: list[float] = []
    with closing(WorkerPool(1, 2.0, command=stand_in)) as pool:
        ask(pool, "same")
        rests[:] = [3.0, 0.0]  # at the second look it stands still for longer than the deadline, as when it is stopped
        assert ask(pool, "sleep 3.8", poll=lambda: time.sleep(rests.pop() if rests else 0.0)) == ["sleep"]


def test_an_answer_that_uses_up_the_memory_crashes_alone_and_ctrl_c_reaches_no_worker() -> None:
    with closing(WorkerPool(size=1, command=worker("5", "300"))) as pool:
        much = str(2**29)
        assert ask(pool, "1000", much, "2000") == ["1000", "crash" if sys.platform == "linux" else much, "2000"]
        (pid,) = pool.pids()
        assert os.getsid(pid) != os.getsid(0)
        os.kill(pid, signal.SIGINT)
        assert (ask(pool, "0"), pool.pids()) == (["0"], [pid])


def test_workers_end_where_a_pool_is_closed_or_collected_and_new_ones_start(stand_in: list[str]) -> None:
    pool = WorkerPool(size=2, command=stand_in)
    ask(pool, "same", "same")
    pids = pool.pids()
    pool.close()
    assert ask(pool, "same") == ["same"]
    pids += pool.pids()
    del pool
    assert (len(pids), [gone(pid) for pid in pids]) == (3, [True] * 3)


def test_threads_take_turns(pool: WorkerPool) -> None:
    answers = ("same", "different", "unparsable")
    with ThreadPoolExecutor(len(answers)) as threads:
        outcomes = list(threads.map(lambda answer: ask(pool, *[answer] * 10), answers))
    assert outcomes == [[answer] * 10 for answer in answers]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit(7)", "it ended at once"),
        ("""print('{"failed": "no algebra here"}', flush=True)""", "no algebra here"),
        ("import time; time.sleep(60)", "was not ready"),
    ],
)
def test_workers_that_cannot_start_are_an_error(program: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym, "START_SECONDS", 0.5 if "sleep" in program else 30.0)
    with closing(WorkerPool(command=worker(code=program))) as pool:
        with pytest.raises(WorkerStartError, match=reason):
            ask(pool, "same")
        assert pool.pids() == []


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no alarms on this system")
def test_a_worker_ends_with_its_stdin_and_by_itself_without_its_parent() -> None:
    def alone(deadline: str, questions: str) -> tuple[int, str]:
        command, environment = worker(deadline, "2048"), gym._environment()
        ended = subprocess.run(command, input=questions, capture_output=True, text=True, timeout=60, env=environment)
        return ended.returncode, ended.stdout

    ready = '{"ready": true}\n'
    assert alone("5", "") == (0, ready)
    assert alone("-4.5", '{"answer": "endless"}\n') == (-signal.SIGPROF, ready)
