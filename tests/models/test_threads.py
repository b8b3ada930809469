"""Threads on a CPU: how many, and that they sleep soon when they wait."""

import math
import os
import subprocess
import sys
import time

import pytest
import torch

from lite_selfplay.models import threads


def two_layers(width: int) -> torch.nn.Module:
    """A stand-in for a base: wide embeddings, and one layer of `width` squared."""

    class Base(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.layer = torch.nn.Embedding(4096, width), torch.nn.Linear(width, width)

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.embed

        def get_output_embeddings(self) -> None:
            return None

    return Base()


def test_small_matrices_are_left_to_one_thread_unless_a_number_is_asked_for(monkeypatch):
    for cores, width, asked, chosen in ((64, 64, None, 1), (64, 512, None, 3), (1, 512, None, 1), (1, 64, 4, 4)):
        torch.set_num_threads(3)
        monkeypatch.setattr(threads, "cores", lambda count=cores: count)
        undo = threads.set_threads(two_layers(width), asked=asked)
        assert torch.get_num_threads() == chosen
        undo()
        assert torch.get_num_threads() == 3
    torch.set_num_threads(1)  # as for the whole suite
    base = two_layers(8)  # packed weights count as the numbers they hold
    base.layer.weight = torch.nn.Parameter(torch.zeros(512, 1, dtype=torch.uint8), requires_grad=False)
    assert threads._largest_of_a_layer(base) == 1024


def test_waiting_threads_sleep_soon_unless_the_user_says_otherwise(monkeypatch):
    for given, expected in (({}, "1000"), ({"OMP_WAIT_POLICY": "active"}, None), ({"GOMP_SPINCOUNT": "7"}, "7")):
        environment = dict(given)
        threads.spin_briefly(environment)
        assert environment == given  # nothing is set once torch is there
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "torch")
            threads.spin_briefly(environment)
        assert environment.get("GOMP_SPINCOUNT") == expected


def test_the_policy_is_set_before_torch_is_imported(tmp_path):
    """The package's first import sets it, and OpenMP's own output shows it."""
    environment = {k: v for k, v in os.environ.items() if k not in threads._POLICIES} | {"OMP_DISPLAY_ENV": "VERBOSE"}
    code = "import lite_selfplay, sys; assert 'torch' not in sys.modules; import torch"
    options = {"env": environment, "capture_output": True, "text": True, "check": True, "cwd": tmp_path}
    done = subprocess.run([sys.executable, "-c", code], **options)
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("torch's OpenMP is not GNU's here")
    assert "GOMP_SPINCOUNT = '1000'" in done.stderr


@pytest.mark.parametrize(
    ("seconds", "any_work", "own", "running", "expected"),
    [
        (10.0, 18.0, 8.0, 3, "about 1.0 cores busy: while they do, --threads 2 is likely faster than 3"),
        (10.0, 30.0, 6.0, 8, "about 2.4 cores busy: while they do, --threads 6 is likely faster than 8"),
        (10.0, 70.0, 1.0, 4, "--threads 1 is likely faster than 4"),
        (10.0, 12.9, 8.0, 4, None),  # less than half a core
        (10.0, 18.0, 8.0, 2, None),  # two do as well on one core
        (10.0, 18.0, 8.0, 1, None),  # no fewer threads to take
        (0.4, 0.8, 0.1, 4, None),  # too short to tell
    ],
)
def test_whoever_starts_beside_busy_processes_is_told(seconds, any_work, own, running, expected):
    before = 100.0, 1000.0, 50.0
    now = 100.0 + seconds, 1000.0 + any_work, 50.0 + own
    said = threads.crowded(before, now, running)
    assert expected in said if expected else said is None


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/", {"cpu.max": "max 100000"}, math.inf),
        ("0::/", {"cpu.max": "99900000 100000"}, 999.0),
        ("0::/", {}, math.inf),
        ("0::/a/b", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 0.5),
        ("0::/of/the/host", {"cpu.max": "200000 100000"}, 2.0),
        ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3.0),
        ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ("4:memory:/", {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ("0::/", {"cpu.max": "100 0"}, math.inf),
    ],
)
def test_the_quota_of_a_container_is_found_and_bounds_the_cores_rounded_up(tmp_path, line, files, expected):
    for name, text in {"proc/self/cgroup": line, **{f"sys/fs/cgroup/{k}": text for k, text in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert threads._quota(tmp_path) == expected
    bound = len(os.sched_getaffinity(0))
    assert threads.cores(tmp_path) == (bound if expected > bound else math.ceil(expected))
    assert threads.cores(tmp_path / "without") == bound


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system's own count of its cores")
def test_a_busy_process_is_seen():
    before = threads.work_so_far()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        time.sleep(1.0)
        _, everyone, own = (b - a for a, b in zip(before, threads.work_so_far(), strict=True))
        busy.kill()
    assert everyone > 0.3  # of a second, however busy the machine is
    assert own < 0.3
