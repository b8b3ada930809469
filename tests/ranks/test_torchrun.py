"""The real launcher: `torchrun` starts the command, and passes on what stops it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

TRAIN = (
    *("train", "agon", "--model", "tiny", "--precision", "fp32", "--tasks", "letters", "--max-completion-tokens", "8"),
    *("--problems-per-step", "2", "--group-size", "4", "--steps", "100000"),
)
PATIENCE_S = 200


@pytest.mark.long
def test_torchrun_plays_a_run_that_a_signal_ends_saved(tmp_path: Path):
    run, said = tmp_path / "run", tmp_path / "said"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with said.open("w") as output:
        launcher = subprocess.Popen(
            [*launch, "-m", "lite_selfplay_cli", *TRAIN, "--run-dir", str(run)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
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
    assert words.count("\nerror: ") == 1, words
    assert "error (process 1)" not in words
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    saved = max(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*"))
    assert steps == list(range(1, saved + 1))
