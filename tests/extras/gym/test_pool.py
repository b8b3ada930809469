"""The pool of worker processes: its rules with a small stand-in program, its effect with the real one."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lite_selfplay.errors import WorkerStartError
from lite_selfplay.extras.gym import pool as pools
from lite_selfplay.extras.gym.pool import WorkerPool

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
    print(json.dumps({"outcome": "same" if order == "die-once" else order}), flush=True)
"""


def question(answer: str) -> dict[str, object]:
    return {"answer": answer}


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
    with WorkerPool(size=2, deadline=0.5, command=stand_in) as pool:
        yield pool


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts what it puts into the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def worker() -> list[str]:
    """A worker that repeats the answer, or never replies to "endless"; its arguments are to be added."""
    program = (
        "from lite_selfplay.extras.gym.worker import run\n"
        "def reply(question):\n"
        "    while question['answer'] == 'endless': pass\n"
        "    return {'outcome': question['answer']}\n"
        "run(lambda: reply)"
    )
    return [sys.executable, "-c", program]


def test_nothing_starts_before_the_first_question(pool: WorkerPool) -> None:
    assert pool.ask([]) == []
    assert pool.pids() == []


def test_outcomes_come_in_the_order_of_the_questions(pool: WorkerPool) -> None:
    answers = ["same", "different", "sleep 0.1", "unparsable"] * 5
    expected = ["same", "different", "sleep", "unparsable"] * 5
    assert pool.ask([question(answer) for answer in answers]) == expected
    assert len(pool.pids()) == 2


def test_one_question_starts_one_worker_which_is_kept(pool: WorkerPool) -> None:
    pool.ask([question("same")])
    before = pool.pids()
    assert len(before) == 1
    pool.ask([question("same")])
    assert pool.pids() == before


def test_a_batch_is_spread_over_both_workers(pool: WorkerPool) -> None:
    pool.ask([question("same")] * 4)
    started = time.monotonic()
    pool.ask([question("sleep 0.3")] * 2)
    assert time.monotonic() - started < 0.55


def test_a_worker_past_its_deadline_is_killed_and_replaced(pool: WorkerPool) -> None:
    pool.ask([question("same")])
    (pid,) = pool.pids()
    started = time.monotonic()
    assert pool.ask([question("sleep 60")]) == ["timeout"]
    assert 0.4 < time.monotonic() - started < 3
    assert gone(pid)
    assert pool.ask([question("sleep 60"), question("same"), question("same")]) == ["timeout", "same", "same"]


def test_a_crash_is_retried_once(pool: WorkerPool, tmp_path: Path) -> None:
    assert pool.ask([question("same"), question(f"die-once {tmp_path / 'died'}")]) == ["same", "same"]
    assert pool.ask([question("die"), question("same")]) == ["crash", "same"]


STANDING_STILL = """
import json, sys
from lite_selfplay.extras.gym.pool import WorkerPool
with WorkerPool(size=1, deadline=2.0, command=sys.argv[1:]) as pool:
    pool.ask([{"answer": "same"}])
    print("asks", flush=True)
    print(json.dumps(pool.ask([{"answer": "sleep 0.3"}, {"answer": "sleep 60"}])), flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs SIGSTOP")
def test_the_time_for_which_the_run_stood_still_is_not_counted(stand_in: list[str]) -> None:
    command = [sys.executable, "-c", STANDING_STILL, *stand_in]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=pools._environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asks\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(3)  # longer than the deadline and two looks
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == '["sleep", "timeout"]\n'


def test_an_answer_that_uses_up_the_memory_crashes_alone() -> None:
    program = (
        "from lite_selfplay.extras.gym.worker import run\n"
        "run(lambda: lambda question: {'outcome': str(len(bytearray(int(question['answer']))))})"
    )
    with WorkerPool(size=1, command=[sys.executable, "-c", program, "5", "300"]) as pool:
        asked = [question(answer) for answer in ("1000", str(2**29), "2000")]
        assert pool.ask(asked) == (
            ["1000", "crash", "2000"] if sys.platform == "linux" else ["1000", str(2**29), "2000"]
        )


def test_nonsense_from_a_worker_counts_as_a_crash(pool: WorkerPool) -> None:
    assert pool.ask([question("babble")]) == ["crash"]


def test_a_worker_that_dies_between_batches_is_not_counted_against_a_question(pool: WorkerPool) -> None:
    pool.ask([question("same")])
    (pid,) = pool.pids()
    os.kill(pid, signal.SIGKILL)
    assert pool.ask([question("same")] * 3) == ["same"] * 3


def test_close_ends_the_workers_and_the_next_question_starts_new_ones(pool: WorkerPool) -> None:
    pool.ask([question("same")] * 2)
    pids = pool.pids()
    pool.close()
    assert all(gone(pid) for pid in pids)
    assert pool.ask([question("same")]) == ["same"]


def test_a_garbage_collected_pool_ends_its_workers(stand_in: list[str]) -> None:
    pool = WorkerPool(command=stand_in)
    pool.ask([question("same")])
    (pid,) = pool.pids()
    del pool
    assert gone(pid)


def test_an_interrupt_leaves_no_late_replies_behind(pool: WorkerPool, interruptible: None) -> None:
    pool.ask([question("same")])
    threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        pool.ask([question("sleep 0.3")])
    assert pool.ask([question("different")]) == ["different"]


def test_threads_take_turns(pool: WorkerPool) -> None:
    outcomes: dict[str, list[str]] = {}

    def ask(answer: str) -> None:
        outcomes[answer] = pool.ask([question(answer)] * 10)

    threads = [threading.Thread(target=ask, args=(answer,)) for answer in ("same", "different", "unparsable")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {answer: [answer] * 10 for answer in ("same", "different", "unparsable")}


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit(7)", "exit code 7"),
        ("""print('{"failed": "no algebra here"}', flush=True)""", "no algebra here"),
        ("import time; time.sleep(60)", "was not ready"),
    ],
)
def test_workers_that_cannot_start_are_an_error(program: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "START_SECONDS", 0.5 if "sleep" in program else 30.0)
    with WorkerPool(command=[sys.executable, "-c", program]) as pool:
        with pytest.raises(WorkerStartError, match=reason):
            pool.ask([question("same")])
        assert pool.pids() == []


def test_ctrl_c_reaches_no_worker(worker: list[str]) -> None:
    with WorkerPool(size=1, command=[*worker, "5", "2048"]) as pool:
        pool.ask([question("same")])
        (pid,) = pool.pids()
        assert os.getsid(pid) != os.getsid(0)
        os.kill(pid, signal.SIGINT)
        assert pool.ask([question("same")]) == ["same"]
        assert pool.pids() == [pid]


def test_a_worker_ends_with_its_stdin(worker: list[str]) -> None:
    command = [*worker, "5", "2048"]
    done = subprocess.run(
        command, input="", capture_output=True, text=True, timeout=60, check=True, env=pools._environment()
    )
    assert done.stdout == '{"ready": true}\n'


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no alarms on this system")
def test_a_worker_without_its_parent_ends_itself(worker: list[str]) -> None:
    command = [*worker, "-4.5", "2048"]
    asked = '{"answer": "endless"}\n'
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=60, env=pools._environment())
    assert done.returncode == -signal.SIGPROF


def test_memory_is_capped() -> None:
    program = "from lite_selfplay.extras.gym.worker import limit_memory; limit_memory(512); bytearray(1 << 30)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=pools._environment())
    if sys.platform == "linux":
        assert "MemoryError" in done.stderr
