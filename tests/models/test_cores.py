"""The cores of a process: how many, who works on them, and which are left to others."""

import math
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay.models import cores
from lite_selfplay.models.cores import BriefWaits, Sharing, Work

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system's own count of its cores")
with_two_cores = pytest.mark.skipif(len(cores.allowed()) < 2, reason="one core cannot be shared out")


def group(root: Path, line: str, files: dict[str, str]) -> Path:
    """A system's root with one control group of a process and the files of its groups."""
    places = {"proc/self/cgroup": line, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}
    for name, text in places.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/", {"cpu.max": "max 100000"}, math.inf),
        ("0::/", {}, math.inf),
        ("0::/a/b", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 0.5),
        ("0::/of/the/host", {"cpu.max": "200000 100000"}, 2.0),
        ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3.0),
        ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ("4:memory:/", {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ("0::/", {"cpu.max": "100 0"}, math.inf),
    ],
)
def test_the_quota_of_a_container_is_found(tmp_path: Path, line: str, files: dict[str, str], expected: float) -> None:
    assert cores._quota(group(tmp_path, line, files)) == expected


def test_cores_are_those_of_the_quota_rounded_up_and_at_least_one(tmp_path: Path) -> None:
    assert cores.cores(group(tmp_path / "half", "0::/", {"cpu.max": "50000 100000"})) == 1
    bound = len(os.sched_getaffinity(0))
    assert cores.cores(group(tmp_path / "many", "0::/", {"cpu.max": "99900000 100000"})) == bound
    assert cores.cores(tmp_path / "without") == bound


def test_work_so_far_is_that_of_the_cores_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    (tmp_path / "proc").mkdir()
    # user, nice, system, idle, waiting for disks, interrupts of two kinds, stolen, and two kinds of guests
    core = "{0} {1} 20 30 4000 500 6 7 80 9 9"
    text = "\n".join(["cpu 9 9 9 9 9 9 9 9 9 9", *(core.format(f"cpu{i}", 10 * i) for i in range(4)), "", "intr 5 6 7"])
    (tmp_path / "proc/stat").write_text(text)
    found = cores.work_so_far({1, 3}, tmp_path)
    assert found is not None
    assert found.everyone == {1: 0.73, 3: 0.93}
    assert cores.work_so_far({1, 3}, tmp_path / "without") is None


def test_what_others_worked_is_the_rest() -> None:
    before, now = Work(10.0, {0: 100.0, 1: 200.0}, 7.0), Work(14.0, {0: 103.0, 1: 203.0}, 9.0)
    assert now.since(before) == Work(4.0, {0: 3.0, 1: 3.0}, 2.0)
    assert now.since(before).by_others() == 1.0
    assert Work().plus(now.since(before)).plus(Work(1.0, {0: 1.0, 1: 0.0}, 0.5)) == Work(5.0, {0: 4.0, 1: 3.0}, 2.5)
    assert Work().by_others() == 0.0


@on_linux
def test_a_busy_process_is_seen() -> None:
    before = cores.work_so_far(cores.allowed())
    with busy_processes(1):
        time.sleep(1.0)
        now = cores.work_so_far(cores.allowed())
    assert before is not None
    assert now is not None
    found = now.since(before)
    assert sum(found.everyone.values()) > 0.3  # of a second, however busy the machine is
    assert found.own < 0.3


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


class Machine:
    """Cores on which others work as `others` says, each between 0 and 1, and this process as much as it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int):
        self.bound = frozenset(range(count))
        self.others: dict[int, float] = dict.fromkeys(range(count), 0.0)
        self._now = Work(0.0, dict.fromkeys(range(count), 0.0), 0.0)
        monkeypatch.setattr(cores, "allowed", lambda: set(self.bound))
        monkeypatch.setattr(cores, "_move", self._move)

    def _move(self, here: frozenset[int], there: frozenset[int]) -> None:
        assert here == self.bound
        self.bound = there

    def work(self, of: Collection[int]) -> Work:
        """Ten seconds later. This process works on half of what it may use."""
        mine = {core: 0.5 if core in self.bound else 0.0 for core in self.others}
        later = {core: 10.0 * (self.others[core] + mine[core]) for core in of}
        self._now = self._now.plus(Work(10.0, later, 10.0 * sum(mine.values())))
        return self._now

    def share(self, threads: int) -> Sharing:
        return Sharing(lambda: threads, work=self.work, chance=random.Random(0))


@pytest.mark.parametrize(
    ("threads", "others", "left"),
    [
        (2, [0.5, 0.0], 2),  # as little is let be
        (2, [0.5, 0.5], 1),
        (2, [1.0, 0.0], 1),
        (1, [1.0, 1.0], 2),  # one thread waits for nobody
        (4, [0.5, 0.5, 0.0, 0.0], 4),
        (4, [1.0, 0.5, 0.0, 0.0], 2),
        (2, [1.0, 1.0, 0.0, 0.0], 4),  # cores enough for all
        (2, [1.0, 1.0, 0.7, 0.0], 1),
        (3, [1.0, 1.0, 0.0], 2),
        (8, [0.5, 0.5], 1),  # more threads than cores
    ],
)
def test_half_of_the_cores_are_left_to_others_who_need_them(
    threads: int, others: list[float], left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch, len(others))
    machine.others = dict(enumerate(others))
    sharing = machine.share(threads)
    with sharing.computing():
        assert machine.bound == machine.others.keys()
        sharing.look()
        assert len(machine.bound) == left
    assert machine.bound == machine.others.keys()
    sharing.close()


def test_the_calmest_cores_are_kept_and_all_are_used_again_when_the_others_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch, 4)
    sharing = machine.share(4)

    def looked(*others: float) -> frozenset[int]:
        machine.others = dict(enumerate(others))
        sharing.look()
        return machine.bound

    with sharing.computing():
        assert looked(1, 0, 1, 0) == {1, 3}
    assert machine.bound == {0, 1, 2, 3}
    with sharing.computing():  # what was found holds on
        assert machine.bound == {1, 3}
        assert looked(0.8, 0.2, 0.6, 0.2) == {1, 3}  # others elsewhere as well: not worth the way
        assert looked(0.1, 1, 0.1, 1) == {0, 2}  # somebody came to the same cores
        assert looked(0.3, 0.3, 0.3, 0.1) == {0, 2}  # between the bounds everything stays
        assert looked(0.2, 0.2, 0.2, 0.2) == {0, 1, 2, 3}
        assert looked(0.3, 0.3, 0.3, 0.1) == {0, 1, 2, 3}


def test_a_computation_within_another_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 2)
    sharing = machine.share(2)
    machine.others = {0: 1.0, 1: 0.0}
    with sharing.computing():
        sharing.look()
        with sharing.computing():
            assert machine.bound == {1}
        assert machine.bound == {1}
    sharing.close()
    with sharing.computing():
        assert machine.bound == {0, 1}
    sharing.look()  # between computations nothing is looked at
    assert machine.bound == {0, 1}


def test_cores_that_are_no_longer_allowed_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 4)
    sharing = machine.share(4)
    machine.others = {0: 1.0, 1: 1.0, 2: 0.0, 3: 0.0}
    with sharing.computing():
        sharing.look()
        assert machine.bound == {2, 3}
    machine.bound = frozenset({0, 2})  # the user bound the process meanwhile
    with sharing.computing():
        assert machine.bound == {0, 2}
    assert machine.bound == {0, 2}


@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "GOMP_CPU_AFFINITY"])
def test_who_binds_threads_or_switches_it_off_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 2)
    machine.others = {0: 1.0, 1: 0.0}
    switched_off = Sharing(lambda: 2, active=False, work=machine.work)
    monkeypatch.setenv(name, "0-1")
    for sharing in (machine.share(2), switched_off):
        with sharing.computing():
            sharing.look()
            assert machine.bound == {0, 1}


@pytest.fixture
def two_cores() -> Iterator[frozenset[int]]:
    """This process bound to two cores, with two threads that torch computes with."""
    every, two = frozenset(cores.allowed()), frozenset(sorted(cores.allowed())[:2])
    cores._move(every, two)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.ones(2**20).add_(1.0)
    yield two
    torch.set_num_threads(threads)
    cores._move(two, every)


@on_linux
@with_two_cores
def test_beside_busy_processes_the_threads_move_and_what_is_started_has_all_cores(two_cores: frozenset[int]) -> None:
    before = threads_of_this_process()
    sharing = Sharing(torch.get_num_threads)
    with busy_processes(2):
        with sharing.computing():
            deadline = time.monotonic() + 60
            while sharing.kept is None and time.monotonic() < deadline:
                torch.ones(2**20).add_(1.0)
                sharing.look()
            assert sharing.kept is not None
            assert len(sharing.kept) == 1
            wait_for(lambda: len(threads_of_this_process() - before) >= 2)
            assert all(cores_of(thread) in (sharing.kept, None) for thread in threads_of_this_process())
        assert all(cores_of(thread) in (two_cores, None) for thread in threads_of_this_process())
        printed = subprocess.check_output([sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"])
        assert int(printed) == 2
    sharing.close()


def threads_of_this_process() -> set[int]:
    return {int(thread) for thread in os.listdir("/proc/self/task")}


def cores_of(thread: int) -> set[int] | None:
    """Those that a thread may use; None where it has ended meanwhile."""
    try:
        return os.sched_getaffinity(thread)
    except ProcessLookupError:
        return None


@on_linux
@pytest.mark.usefixtures("several_threads")
def test_brief_waits_hold_threads_for_as_long_as_they_are_wanted() -> None:
    def held() -> bool:
        return any(thread.name == "brief-waits" for thread in threading.enumerate())

    wait_for(lambda: not held())  # by another test
    torch.ones(2**20).add_(1.0)
    before = threads_of_this_process()
    waits = BriefWaits()
    for _ in range(2):
        waits.want(True)
    # The thread, and those that it computed with: all but itself.
    wait_for(lambda: len(threads_of_this_process() - before) >= torch.get_num_threads())
    new = threads_of_this_process() - before
    assert held()
    waits.want(False)
    wait_for(lambda: not threads_of_this_process() & new)
    assert not held()
    waits.want(True)
    assert held()
    del waits
    wait_for(lambda: not held())


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
