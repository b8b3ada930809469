"""The real launcher: `torchrun` starts the command, and passes on what stops it."""

import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.made_runs import read_lines, saved_steps
from tests.runs_in_processes import torchrun
from tests.warm_parent import ENVIRONMENT

from .conftest import COMMAND

PATIENCE_S = 200


@pytest.mark.long
def test_torchrun_plays_a_run_that_a_signal_ends_saved(tmp_path: Path):
    run, said = tmp_path / "run", tmp_path / "said"
    with said.open("w") as output:
        launcher = subprocess.Popen(
            torchrun(2, *COMMAND, "--steps", 100_000, "--run-dir", run),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT,
            cwd=tmp_path,
            start_new_session=True,
        )
        limit = time.monotonic() + PATIENCE_S
        while not (run / "metrics.jsonl").exists() or (run / "metrics.jsonl").read_text().count("\n") < 2:
            assert launcher.poll() is None, said.read_text()
            assert time.monotonic() < limit, said.read_text()
            time.sleep(0.1)
        workers = psutil.Process(launcher.pid).children()
        assert len(workers) == 2
        # What the processes of a machine tell each other does not go over the network.
        open_to = {c.laddr.ip for w in workers for c in w.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        assert open_to <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(60) != 0
    words = said.read_text()
    assert re.search(r"(process 1 .* has left: )?stopped by SIGINT; saved before step \d+", words), words
    assert words.count("; saved before step") == 1, "one process says it"
    assert "error (process 1)" not in words
    steps = [row["step"] for row in read_lines(run / "metrics.jsonl")]
    assert steps == list(range(1, max(saved_steps(run)) + 1))
