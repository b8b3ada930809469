"""`lite-selfplay doctor` on this machine, and on one whose torch is in pieces; GPUs: `tests/pretend_gpu`."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay.config import ModelSection
from lite_selfplay.models.backends import availability
from lite_selfplay.models.backends.transformers import compute_dtype


def test_the_command_tells_of_this_machine(call: Callable[..., Any]):
    ended = call("doctor")
    lines = {line.split()[0]: line for line in ended.out.splitlines()}
    parts = ["python", "packages", "device", "backend", "precision", "attention", "models", "sandbox"]
    assert [part for part in lines if part != "xformers"] == parts
    assert f"torch {torch.__version__}" in lines["packages"]
    assert lines["sandbox"].split()[1] in ("kernel,", "none:")
    assert ended.code == int("PROBLEM: " in ended.out)
    assert lines["backend"].split()[1] == "transformers;"
    # What a run takes.
    dtype = compute_dtype(ModelSection(name="tiny"), torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    kind = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype]
    assert lines["precision"].split(maxsplit=1)[1].startswith(f"4-bit weights compute in {kind}")


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a card here")
def test_a_driver_whose_card_torch_cannot_use_is_a_problem(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(availability, "driver", lambda: "535.104")
    train = "train grpo --model tiny --tasks letters --steps 1 --group-size 2 --no-preflight".split()
    why = {None: "install a CUDA build of it", "13.0": "torch for CUDA 13.0 may be too new for it"}
    for cuda, sentence in why.items():
        monkeypatch.setattr(torch.version, "cuda", cuda)
        told, refused = call("doctor"), call(*train, "--run-dir", "refused")
        assert (told.code, refused.code) == (1, 2)
        assert "PROBLEM: NVIDIA's driver 535.104 is there and torch can use no GPU: " in told.out
        assert (sentence in told.out, "--device cpu" in told.out, sentence in refused.err) == (True, True, True)
    assert call(*train, "--run-dir", "meant", "--device", "cpu").code == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # says so as well
    assert call("doctor").code == 0


@pytest.mark.parametrize(
    ("body", "problem"),
    [("raise ImportError('libtorch.so is missing')", "libtorch.so is missing"), ("", "has no attribute 'cuda'")],
    ids=["raises", "is empty"],
)
def test_the_command_survives_a_torch_that_is_half_installed(tmp_path: Path, body: str, problem: str):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(body)
    (tmp_path / "unsloth-2026.10.9.dist-info").mkdir()  # without METADATA
    command = [sys.executable, "-c", "from lite_selfplay_cli.app import main; main()", "doctor"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert problem in done.stdout
    assert "unsloth unknown" in done.stdout
