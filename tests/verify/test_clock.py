"""Whose time is counted: a program's own, and none in which the machine was busy with others."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from lite_selfplay.data import NOT_JUDGED, Sample, Verdict
from lite_selfplay.extras.gym import WorkerPool
from lite_selfplay.verify.programs import Limits, run_program, run_tests
from lite_selfplay.verify.programs.inside import clock
from lite_selfplay.verify.programs.inside.clock import Clock, figures
from lite_selfplay.verify.programs.sandbox import shared_sandbox
from lite_selfplay.verify.programs.zygotes import Zygotes
from tests.extras.gym.test_pool import STAND_IN
from tests.made import completion

SLEEPS = "import time\nwhile True: time.sleep(60)"
NAPS = "import time\nwhile True: time.sleep(0.001)"
WAITS = "import signal\nsignal.pause() if hasattr(signal, 'pause') else 0\nimport time; time.sleep(60)"
SPINS = "while True: pass"
RIGHT = "n = int(input())\nprint(sum(i * i for i in range(n)))"


@pytest.mark.parametrize(
    ("looks", "used"),
    [
        # (seconds since the last poll, seconds run, seconds waited, would run now); a tick is 0.1 s
        ([(0.1, 0.1, 0.0, True)] * 5, 0.5),  # it runs all the time
        ([(0.1, 0.0, 0.0, False)] * 5, 0.5),  # it sleeps
        ([(0.1, 0.02, 0.08, True)] * 5, 0.1),  # a fifth of a processor
        ([(0.1, 0.0, 0.0, True)] * 5, 0.0),  # it waits for a processor, and the kernel has not told of it yet
        ([(0.1, 0.0, 0.0, True)] * 3 + [(0.1, 0.05, 0.35, True)], 0.05),  # nor is a wait counted that is over
        ([(0.1, 0.01, 0.0, True), (0.1, 0.01, 0.18, True)] * 3, 0.06),  # a wait that began before a poll
        (
            [(0.1, 0.03, 0.01, True)] + [(0.1, 0.03, 0.07, True)] * 4 + [(0.1, 0.03, 0.13, False)],
            0.18,
        ),  # each poll is in a wait
        ([(0.1, 0.0, 0.0, True)] * 3 + [(0.1, 0.0, 0.0, False)], 0.1),  # it waited for memory, which is not told
        ([(0.1, 0.0, 0.0, False)] * 5 + [(0.1, 0.0, 0.0, True)] * 3 + [(0.1, 0.05, 0.35, True)], 0.55),  # after a sleep
        ([(1.5, 0.0, 0.0, False)] * 2, 0.2),  # who looks stood still for 1.4 s each time
        ([(1.5, 0.3, 1.2, True)] * 2, 0.6),  # and it waited and ran meanwhile
        ([(0.04, 0.03, 0.01, False)] * 5, 0.15),  # looked at early
        ([(0.1, 0.4, 0.0, True)] * 2, 0.2),  # four threads have no more time than one
        ([(0.1, -2.0, -1.0, False)], 0.1),  # a thread has ended, and its seconds are gone
    ],
)
def test_the_seconds_that_are_counted(looks, used, monkeypatch):
    times = [0.0, 0.0, 0.0]

    def seen() -> Iterator[tuple[float, float, float, bool]]:
        yield 0.0, 0.0, 0.0, False
        for *passed, willing in looks:
            times[:] = [so_far + more for so_far, more in zip(times, passed, strict=True)]
            yield *times, willing

    told = seen()
    monkeypatch.setattr(clock, "figures", lambda pids: next(told))
    counted = Clock([1], seconds=10.0)
    assert not any(counted.poll() for _ in looks)
    assert counted.used == pytest.approx(used)
    assert counted.alive == pytest.approx(sum(min(0.1, passed) for passed, *_ in looks))


def test_a_clock_ends_even_where_the_machine_gives_nothing(monkeypatch):
    told = ((n / 8, 0.0, 0.0, True) for n in range(1000))  # more than a tick
    monkeypatch.setattr(clock, "figures", lambda pids: next(told))
    counted, looks = Clock([1], seconds=0.5), 0
    while not counted.poll():
        looks += 1
    assert looks == pytest.approx(clock.PATIENCE * 5, abs=1)
    assert counted.used == 0.0


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the kernel does not tell of waits")
def test_what_the_kernel_tells():
    before = figures([os.getpid()])
    sum(range(3_000_000))
    after = figures([os.getpid()])
    assert after[1] - before[1] > 0.01
    assert after[2] >= before[2]
    assert after[3]
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"], stdout=-1)
    assert sleeper.stdout is not None
    sleeper.stdout.readline()
    first = figures([sleeper.pid])
    second = figures([sleeper.pid])
    assert 0 < first[1] <= second[1] < first[1] + 0.05
    sleeper.kill()
    sleeper.communicate()
    assert figures([sleeper.pid])[1:] == (0.0, 0.0, False)


def test_without_the_kernels_figures_every_second_counts(monkeypatch):
    monkeypatch.setattr(clock, "_PROCESSES", -1)
    assert figures([os.getpid()])[1:] == (0.0, 0.0, False)


class Starving(Clock):
    """The clock of a machine that gives nothing."""

    def poll(self) -> bool:
        return True


def test_what_got_no_time_is_asked_again_alone_and_then_not_judged(monkeypatch, tmp_path):
    (program := tmp_path / "stand_in.py").write_text(STAND_IN)
    asked: list[tuple[str, int]] = []

    class Pool(WorkerPool):
        def _give(self, worker, job):
            asked.append((job["answer"], sum(each.job is not None for each in self._workers)))
            return super()._give(worker, job)

    with closing(Pool(2, 30.0, command=[sys.executable, str(program)])) as pool:
        pool.work([{"answer": "same"}] * 2, lambda: None)
        asked.clear()
        monkeypatch.setattr("lite_selfplay.verify.workers.Clock", Starving)
        monkeypatch.setattr("lite_selfplay.extras.gym.Clock", Clock)
        outcomes = pool.work([{"answer": answer} for answer in ("sleep 9", "sleep 8")], lambda: None)
    assert outcomes == [NOT_JUDGED, NOT_JUDGED]
    assert sorted(answer for answer, _ in asked) == ["sleep 8", "sleep 8", "sleep 9", "sleep 9"]
    assert [busy for _, busy in asked[-2:]] == [1, 1]


def test_a_sample_that_was_not_judged_is_masked():
    judged, unjudged = Verdict(False, 0.0, reason="wrong"), Verdict(False, 0.0, reason=NOT_JUDGED)
    assert [Sample(completion("x"), 0.0, each).masked for each in (judged, unjudged, None)] == [False, True, False]
    assert not Sample(completion("x"), None, unjudged, advantage=1.0).is_example


def test_a_program_that_was_not_judged_makes_a_report_of_none(monkeypatch):
    shared_sandbox()
    monkeypatch.setattr(Zygotes, "run", lambda self, jobs, *_: [Zygotes.not_judged for _ in jobs])
    report = run_tests("print(input())", [["1", "1"], ["2", "2"]])
    assert (report.passed, report.reason) == (0, NOT_JUDGED)


@pytest.fixture
def neighbours(request) -> Iterator[None]:
    """So many processes that only compute."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(request.param)]
    yield
    for each in busy:
        each.kill()
        each.wait()


@pytest.mark.parametrize(
    ("neighbours", "programs"),
    [pytest.param(6, 2, id="few"), pytest.param(16, 200, id="many", marks=pytest.mark.long)],
    indirect=["neighbours"],
)
def test_right_programs_are_right_beside_busy_processes(neighbours, programs):
    size = 9_000_000  # a third of a second on a fast machine
    began = time.process_time()
    tests = [[str(size), str(sum(i * i for i in range(size)))]]
    # Half as much again as it took here. Beside so many others it takes far more by the wall clock.
    limit = max(0.5, 1.5 * (time.process_time() - began))
    reports = run_tests([RIGHT] * programs, tests, Limits(seconds=limit))
    assert [report for report in reports if report.score != 1] == []


COMPUTES = """
import time
from lite_selfplay.extras.gym.scoring import run
def reply(question):
    if question['answer'] == 'sleep':
        time.sleep(60)
    until = time.process_time() + float(question['answer'])
    while time.process_time() < until: pass
    return {'outcome': question['answer']}
run(lambda: reply)
"""


@pytest.mark.parametrize("neighbours", [10], indirect=True)
def test_so_are_answers_that_a_process_scores(neighbours):
    with closing(WorkerPool(2, 0.6, command=[sys.executable, "-c", COMPUTES, "0.6", "4096"])) as pool:
        answers = ["0.2", "0.3", "sleep", "0.3"]
        outcomes = pool.work([{"answer": each} for each in answers], lambda: None)
    assert outcomes == ["0.2", "0.3", "timeout", "0.3"]


@pytest.mark.parametrize("neighbours", [6, pytest.param(16, marks=pytest.mark.long)], indirect=True)
@pytest.mark.parametrize("program", [SLEEPS, NAPS, WAITS, SPINS], ids=["sleeps", "naps", "waits", "spins"])
def test_others_are_out_of_time_there_as_well(neighbours, program):
    assert run_program(program, limits=Limits(seconds=0.3)).reason == "time"
