"""Exports of the random model, read by the tools they are for; and what is left after a failure, which is nothing."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.errors import (
    ConfigError,
    Interrupted,
    RequestError,
    RunFolderError,
    SaveFailed,
    UnknownNameError,
    VerificationFailed,
)
from lite_selfplay.runs.export import exporting, forms, verification
from lite_selfplay.runs.export.exporting import export
from lite_selfplay.runs.export.verification import Question

MakeRun = Callable[..., Path]
FAST = {"verify": False}


def test_an_adapter_loads_in_peft_and_is_the_seat(make_run: MakeRun, tmp_path: Path):
    said: list[str] = []
    run, out = make_run(), tmp_path / "new" / "out"
    made = export(run, "A", out=out, progress=said.append)
    found = made.verification
    assert found is not None
    assert found.passed
    assert found.reader == "PEFT"
    assert (found.prompts_same, found.questions) == (20, 20)
    assert found.base_first_tokens_same < 10
    assert found.base_mean_difference > 20 * found.mean_difference
    assert found.original_base is not None
    assert f"PEFT: {found.sentence()}" in said
    names = {path.name for path in made.files}
    assert {"README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} < names
    assert json.loads((out / "verification.json").read_text()) == found.to_json()
    assert json.loads((out / "generation_config.json").read_text())["max_new_tokens"] == 16
    card = (out / "README.md").read_text()
    assert found.sentence() in card
    assert "load_in_4bit=True" in card
    assert "seat `A` of a run of\nagon after 1 step" in card
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert oct((out / "adapter_model.safetensors").stat().st_mode)[-3:] == "644"
    with pytest.raises(ConfigError, match=r"out exists already and is not overwritten: choose another --out"):
        export(run, "A", out=out)


def test_a_merged_model_is_the_seat(make_run: MakeRun, tmp_path: Path):
    made = export(make_run(precision="fp32"), "B", to="merged", out=tmp_path / "out")
    assert made.verification is not None
    assert made.verification.passed
    assert made.verification.reader == "transformers"
    assert made.verification.original_base is None  # there is no other base
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config


@pytest.mark.long
def test_an_ollama_folder_is_the_seat(make_run: MakeRun, tmp_path: Path):
    made = export(make_run(precision="fp32", game="grpo"), to="ollama", out=tmp_path / "out")
    assert made.verification is not None
    assert made.verification.passed
    assert made.seat == "solver"  # the only one
    lines = (tmp_path / "out" / "Modelfile").read_text().splitlines()
    assert lines[0] == "FROM ./grpo-tiny-solver-f16.gguf"
    assert (tmp_path / "out" / "grpo-tiny-solver-f16.gguf").exists()
    assert {"PARAMETER temperature 1", "PARAMETER num_predict 16", 'PARAMETER stop "</s>"'} <= set(lines)


def test_files_of_another_model_fail_and_stay_for_a_look(make_run: MakeRun, tmp_path: Path, monkeypatch):
    def wrong(folder: Path, *rest: Any) -> None:
        from safetensors.torch import load_file, save_file

        write(folder, *rest)
        file = folder / "adapter_model.safetensors"
        save_file({name: -t if "lora_B" in name else t for name, t in load_file(file).items()}, file)

    write = forms.write_adapter
    monkeypatch.setattr(forms, "write_adapter", wrong)
    with pytest.raises(VerificationFailed, match=r"is not the same model as seat A: .*of 20 first tokens are others"):
        export(make_run(precision="fp32"), "A", out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / "verification.json").read_text())["passed"] is False
    assert "FAILED" in (tmp_path / "out" / "README.md").read_text()


# Requests that are wrong


@pytest.mark.parametrize(
    ("seat", "options", "error", "words"),
    [
        (None, {}, RequestError, "has the seats A, B: say which one, after the run"),
        ("C", {}, UnknownNameError, "unknown seat 'C'"),
        ("A", {"to": "onnx"}, ConfigError, "to peft, merged, gguf, ollama, not to 'onnx'"),
        ("A", {"to": "merged", "dtype": "q8_0"}, ConfigError, "merged holds weights in bf16 or fp16, not in 'q8_0'"),
        ("A", {"dtype": "bf16"}, ConfigError, "--to peft holds weights in fp32"),
    ],
)  # fmt: skip
def test_a_wrong_request(make_run: MakeRun, tmp_path: Path, seat, options, error, words):
    with pytest.raises(error, match=words):
        export(make_run(), seat, out=tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_none_or_has_no_adapter_or_another_base(make_run: MakeRun, tmp_path: Path):
    with pytest.raises(RunFolderError, match="is not a run folder"):
        export(tmp_path, "A")
    run = tmp_path / "run"
    shutil.copytree(make_run(), run)
    shutil.rmtree(run / "adapters" / "A")
    with pytest.raises(
        RunFolderError, match="has no adapter of seat 'A': a run writes its adapters at its checkpoints"
    ):
        export(run, "A", out=tmp_path / "out")
    (run / "environment.json").write_text('{"base": "tiny:0"}')
    with pytest.raises(RunFolderError, match=r"was made over the base 'tiny:0'; tiny is 'tiny:1' now"):
        export(run, "B", out=tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_damaged_weights_are_named(make_run: MakeRun, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(make_run(), run)
    (run / "adapters" / "A" / "adapter_model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(RunFolderError, match=r"adapter_model.safetensors is no safetensors file, or is damaged"):
        export(run, "A", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Nothing half


def fails(error: BaseException) -> Callable[..., None]:
    def write(folder: Path, *rest: Any) -> None:
        (folder / "half").write_text("half")
        raise error

    return write


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), SaveFailed, "No space left on device .*Nothing was left"),
        (OSError(errno.EIO, "Input/output error"), SaveFailed, "cannot write .*out: Input/output error. Nothing"),
        (RequestError("no such thing"), RequestError, "no such thing"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ],
)  # fmt: skip
def test_an_export_that_fails_leaves_nothing(make_run: MakeRun, tmp_path: Path, monkeypatch, error, raised, words):
    monkeypatch.setattr(forms, "write_adapter", fails(error))
    with pytest.raises(raised, match=words):
        export(make_run(), "A", out=tmp_path / "new" / "deep" / "out", **FAST)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_while_weights_are_written(make_run: MakeRun, tmp_path: Path):
    """A file system of 16 KB, which the adapter does not fit into."""
    small = tmp_path / "small"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(small)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        for form in ("peft", "merged", "gguf"):
            with pytest.raises(SaveFailed, match=r"cannot write .*No space left on device"):
                export(make_run(precision="fp32"), "A", to=form, out=small / "out", **FAST)
            assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_a_folder_that_comes_to_be_meanwhile_is_not_overwritten(make_run: MakeRun, tmp_path: Path, monkeypatch):
    def write(folder: Path, *rest: Any) -> None:
        (tmp_path / "out").mkdir()

    monkeypatch.setattr(forms, "write_adapter", write)
    with pytest.raises(ConfigError, match="has come to be in the meantime"):
        export(make_run(), "A", out=tmp_path / "out", **FAST)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.fixture
def asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seat's own answers, without a model."""
    question = Question("Q", (1, 2), (7,), (-0.5,), 7, (-0.5,))
    monkeypatch.setattr(verification, "ask_seat", lambda *arguments: [question])


def test_a_signal_while_another_tool_reads_leaves_nothing(
    make_run: MakeRun, tmp_path: Path, monkeypatch, asked_at_once
):
    def ask(request: Any, poll: Callable[[], None]) -> Any:
        assert (Path(request["folder"]) / "adapter_model.safetensors").exists()
        os.kill(os.getpid(), signal.SIGINT)
        poll()
        raise AssertionError("went on")

    monkeypatch.setattr(verification, "ask_foreign", ask)
    with pytest.raises(Interrupted, match="stopped by SIGINT"):
        export(make_run(), "A", out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_a_killed_export_leaves_nothing_under_its_name_and_the_next_one_clears_up(make_run: MakeRun, tmp_path: Path):
    code = (
        "import sys, time\n"
        "from lite_selfplay.runs.export import exporting, forms\n"
        "write = forms.write_adapter\n"
        "def slow(folder, *rest):\n"
        "    write(folder, *rest)\n"
        "    print('written', flush=True)\n"
        "    time.sleep(60)\n"
        "forms.write_adapter = slow\n"
        f"exporting.export({str(make_run())!r}, 'A', out={str(tmp_path / 'out')!r}, verify=False)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    process.kill()
    process.wait()
    process.stdout.close()
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".out.partial-")
    alive = tmp_path / left.name.replace(str(process.pid), str(os.getppid()))
    alive.mkdir()  # of a process that goes on
    export(make_run(), "A", out=tmp_path / "out", **FAST)
    assert {path.name for path in tmp_path.iterdir()} == {"out", alive.name}


def test_without_verification_nothing_is_claimed(make_run: MakeRun, tmp_path: Path):
    began = time.monotonic()
    made = export(make_run(), "B", out=tmp_path / "out", **FAST)
    assert made.verification is None
    assert not (tmp_path / "out" / "verification.json").exists()
    assert "Not verified" in (tmp_path / "out" / "README.md").read_text()
    assert time.monotonic() - began < 60


def test_the_default_folder_is_named_after_run_seat_and_form(make_run: MakeRun, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert export(make_run(), "A", **FAST).path == Path("exports/run-A-peft")


def test_a_model_of_its_own_code_stays_where_it_is(make_run: MakeRun, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(make_run(), run)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("trust_remote_code: false", "trust_remote_code: true"))
    with pytest.raises(ConfigError, match="read that code, and if you trust it give --trust-remote-code again"):
        export(run, "A", out=tmp_path / "out")
    with pytest.raises(ConfigError, match="only --to peft leaves where it is"):
        export(run, "A", to="merged", out=tmp_path / "out", trust_remote_code=True)


def test_float32_is_computed_in_where_it_changes_no_weight(monkeypatch, tmp_path: Path):
    import torch
    from transformers import Qwen3Config

    from lite_selfplay.config import ModelSection

    (tmp_path / "model.safetensors").write_bytes(b"x" * 10)
    nf4, half = ModelSection(name="tiny", precision="4bit"), ModelSection(name="tiny", precision="bf16")
    sixteen, whole = Qwen3Config(dtype=torch.bfloat16), Qwen3Config(dtype=torch.float32)
    assert exporting._computes_exactly(sixteen, tmp_path, nf4)
    assert not exporting._computes_exactly(whole, tmp_path, nf4)
    assert not exporting._computes_exactly(sixteen, tmp_path, half)
    free = type("Memory", (), {"available": 20})
    monkeypatch.setattr(exporting.psutil, "virtual_memory", lambda: free)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not exporting._computes_exactly(sixteen, tmp_path, nf4)
