"""Exports of the random model, read by the tools they are for; and what is left after a failure, which is nothing."""

import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jinja2
import pytest
import torch
from transformers import AutoModelForCausalLM

from lite_selfplay.config import RunConfig
from lite_selfplay.errors import (
    ConfigError,
    Interrupted,
    RequestError,
    RunFolderError,
    SaveFailed,
    UnknownNameError,
    VerificationFailed,
)
from lite_selfplay.extras.export import exporting, reader, verification
from lite_selfplay.extras.export.exporting import export
from lite_selfplay.models import sources
from lite_selfplay.models.chat_template import DATE
from lite_selfplay.models.sources import ResolvedModel, resolve, suggested
from lite_selfplay.runs.evaluating import evaluate
from lite_selfplay.runs.planning import plan
from tests.made_runs import Ear

MakeRun = Callable[..., Path]
FAST = {"verify": False}
WEIGHTS = "adapters/A/adapter_model.safetensors"


def test_an_adapter_loads_in_peft_and_is_the_seat(make_run: MakeRun, tmp_path: Path):
    said: list[str] = []
    run, out = make_run(), tmp_path / "new" / "out"
    made = export(run, "A", out=out, progress=said.append)
    found = made.verification
    assert found is not None
    assert (found.failures, found.reader, found.prompts_same, found.questions) == ([], "PEFT", 20, 20)
    assert found.base_difference > 20 * found.mean_difference
    assert f"PEFT: {found.sentence()}" in said
    names = {path.name for path in out.iterdir()}
    assert {"README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} < names
    assert json.loads((out / "verification.json").read_text()) == found.to_json()
    assert json.loads((out / "generation_config.json").read_text())["max_new_tokens"] == 16
    card = (out / "README.md").read_text()
    assert found.sentence() in card
    assert "seat `A` of a run of\nagon after 1 step, which played `drafter`, over `tiny`." in card
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert oct((out / "adapter_model.safetensors").stat().st_mode)[-3:] == "644"
    with pytest.raises(ConfigError, match=r"out exists already and is not overwritten: choose another --out"):
        export(run, "A", out=out)


def test_a_merged_model_is_the_seat_and_read_where_the_run_computed(make_run: MakeRun, tmp_path: Path, monkeypatch):
    """Also beside a card; in this process, since a new one takes many seconds to load the tool."""
    load, asked = AutoModelForCausalLM.from_pretrained, list[Any]()

    def noted(*arguments: Any, **options: Any) -> Any:
        asked.append(options["device_map"])
        monkeypatch.undo()  # what loads it looks as well whether a card is there
        return load(*arguments, **options)

    def read_beside_a_card(request: Any, poll: Callable[[], None]) -> Any:
        monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", noted)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        return reader.by_transformers(request)

    monkeypatch.setattr(verification, "read_back", read_beside_a_card)
    made = export(make_run(precision="fp32"), "B", to="merged", out=tmp_path / "out")
    assert asked == [{"": "cpu"}]
    assert made.verification is not None
    assert (made.verification.failures, made.verification.reader) == ([], "transformers")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["dtype"], "quantization_config" in config) == ("bfloat16", False)


def test_a_merged_model_is_held_as_it_was_saved_where_nobody_says(make_run: MakeRun, tmp_path: Path):
    """By whatever takes a model: in 4 bits it would be another one than the seat."""
    run, merged = make_run(precision="fp32"), tmp_path / "merged"
    export(run, "A", to="merged", out=merged, **FAST)
    greedy = {"tasks": "letters", "limit": 40, "temperature": 0.0, "mode": "single"}
    ear = Ear()
    seat, own = evaluate(run, seats=["A"], write=False, **greedy), evaluate(merged, progress=ear, **greedy)
    four_bits = evaluate(merged, precision="4bit", write=False, **greedy)
    wanted, held, cut = (
        {tuple(answers[0].completion.prompt_ids): answers[0].completion.token_ids[0] for answers in rows}
        for rows in (seat.rows["A"], own.rows["base"], four_bits.rows["base"])
    )
    common = wanted.keys() & held.keys() & cut.keys()
    assert sum(wanted[each] == held[each] for each in common) == len(common) > 10
    assert sum(wanted[each] == cut[each] for each in common) < len(common) / 2
    assert own.to_json()["precision"] == "bf16"
    told = f"{merged} is a merged model that was saved in bf16, and it is held in"
    assert ([line for line in ear.said if f"{told} bf16: 4 bits round away" in line] != [], ear.warned) == (True, [])
    evaluate(merged, precision="4bit", progress=ear, **greedy)
    assert [f"{told} 4bit" in line for line in ear.warned] == [True]
    for game, tasks in (("grpo", "letters"), ("kuhn", None)):
        asked: dict[str, Any] = {"game": game, "tasks": tasks}
        assert plan(RunConfig(**asked, model=str(merged))).config.model.precision == "bf16"
        rounded = plan(RunConfig(**asked, model={"name": str(merged), "precision": "4bit"}))
        assert rounded.lines()[0].startswith(f"run: {game} with {merged} in 4bit")
    export(run, "A", to="gguf", out=tmp_path / "gguf", **FAST)
    (file,) = (tmp_path / "gguf").glob("*.gguf")
    assert suggested(str(file)) == {"model.precision": "bf16"}


def test_a_gguf_folder_is_the_seat_where_llama_cpp_is_there_to_say_so(make_run: MakeRun, tmp_path: Path):
    made = export(make_run(precision="fp32", game="grpo"), to="gguf", out=tmp_path / "out")
    assert made.seat == "solver"  # the only one
    assert (tmp_path / "out" / "grpo-tiny-solver-f16.gguf").exists()
    lines = (tmp_path / "out" / "Modelfile").read_text().splitlines()
    assert lines[0] == "FROM ./grpo-tiny-solver-f16.gguf"
    assert {"PARAMETER temperature 1", "PARAMETER top_k 0", "PARAMETER num_predict 16"} <= set(lines)
    missing = find_spec("xllamacpp") is None
    assert made.verification.failures == [] if made.verification else missing
    said = "Not verified: llama.cpp is not installed" if missing else "Verified: llama.cpp"
    assert said in (tmp_path / "out" / "README.md").read_text()


def test_what_was_measured_of_these_very_weights_stands_on_the_card(make_run: MakeRun, tmp_path: Path):
    run = shutil.copytree(make_run(precision="fp32"), tmp_path / "run")
    evaluate(run, "letters", mode="single", limit=3, seats=("A", "base"))
    export(run, "A", out=tmp_path / "a", **FAST)
    assert "|  | single-letters-3 |" in (tmp_path / "a" / "README.md").read_text()
    (run / WEIGHTS).write_bytes((run / "adapters" / "B" / "adapter_model.safetensors").read_bytes())
    evaluated = run / "eval" / "single-letters-3.json"
    evaluated.write_text(json.dumps({**json.loads(evaluated.read_text()), "weights": {"A": "of other weights"}}))
    export(run, "A", out=tmp_path / "other", **FAST)
    assert "Nothing: the run has no evaluation" in (tmp_path / "other" / "README.md").read_text()


def test_an_export_names_no_folder_of_this_machine_and_claims_nothing_unverified(make_run: MakeRun, tmp_path: Path):
    base, out = shutil.copytree(resolve("tiny").path, tmp_path / "private" / "my-base"), tmp_path / "out"
    made = export(make_run(precision="fp32", name=str(base)), "A", out=out, **FAST)
    files = {file.name: file.read_bytes() for file in out.iterdir()}
    assert [name for name, content in files.items() if b"private" in content] == []
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == "my-base"
    assert made.verification is None
    assert ("verification.json" in files, b"Not verified" in files["README.md"]) == (False, True)


def test_a_base_from_a_hub_goes_by_the_hubs_name(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from_hub = ResolvedModel("tiny", resolve("tiny").path, "hub:me/tiny@f00")
    monkeypatch.setattr(sources, "resolve", lambda name, **options: from_hub)
    run = make_run(precision="fp32", threads=1)
    commands = export(run, "A", out=tmp_path / "out", **FAST).commands
    folders = (run / "adapters" / "A", tmp_path / "out")
    own, exported = (json.loads((folder / "adapter_config.json").read_text()) for folder in folders)
    assert own["base_model_name_or_path"] == exported["base_model_name_or_path"] == "me/tiny"
    assert exported["revision"] == "f00"
    assert commands[0] == f"vllm serve me/tiny --revision f00 --enable-lora --lora-modules A={tmp_path / 'out'}"


def test_the_commands_to_paste_and_the_weights_of_a_checkpoint(make_run: MakeRun, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny, run = resolve("tiny").path, make_run()
    assert export(run, "A@1", **FAST).commands == [
        f"vllm serve {tiny} --enable-lora --lora-modules A=exports/run-A-1-peft --quantization bitsandbytes",
        "hf upload run-A-1-peft exports/run-A-1-peft . --private",
    ]
    files = (Path("exports/run-A-1-peft/adapter_model.safetensors"), run / "checkpoints" / "step-1" / WEIGHTS)
    assert {file.read_bytes() for file in files} == {(run / WEIGHTS).read_bytes()}
    assert export(make_run(precision="fp32"), "B", to="merged", out="o", **FAST).commands == [
        "transformers serve o",
        "vllm serve o",
        "hf upload o o . --private",
    ]
    assert export(make_run(precision="fp32"), "B", to="gguf", out="my o", **FAST).commands == [
        "llama-server -m 'my o'/agon-tiny-B-f16.gguf --jinja",
        "ollama create agon-tiny-b-f16 -f 'my o'/Modelfile",
        "hf upload my-o 'my o' . --private",
    ]


def test_files_of_another_model_fail_and_stay_for_a_look(make_run: MakeRun, tmp_path: Path, monkeypatch):
    def wrong(folder: Path, *rest: Any) -> None:
        from safetensors.torch import load_file, save_file

        write(folder, *rest)
        file = folder / "adapter_model.safetensors"
        save_file({name: -t if "lora_B" in name else t for name, t in load_file(file).items()}, file)

    write = exporting.write_adapter
    monkeypatch.setattr(exporting, "write_adapter", wrong)
    monkeypatch.setattr(verification, "read_back", lambda request, poll: reader.by_transformers(request))
    another = r"is not the same model as seat A: mean .delta. \S+ is more than 0.01"
    with pytest.raises(VerificationFailed, match=another):
        export(make_run(precision="fp32"), "A", out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / "verification.json").read_text())["passed"] is False
    assert "FAILED" in (tmp_path / "out" / "README.md").read_text()


# Requests that are wrong


def own_code(run: Path) -> None:
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("trust_remote_code: false", "trust_remote_code: true"))


def without_checkpoints(run: Path, damage: Callable[[], object]) -> None:
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    damage()


@pytest.mark.parametrize(
    ("damage", "seat", "options", "error", "words"),
    [
        (str, None, {}, RequestError, "has the seats A, B: name one of them after the run"),
        (str, "C", {}, UnknownNameError, "unknown seat 'C'"),
        (str, "A@7", {}, UnknownNameError, "unknown seat 'A@7'"),
        (str, "A@best", {}, RunFolderError, "has no best checkpoint"),
        (str, "A", {"to": "onnx"}, ConfigError, "to peft, merged, gguf, not to 'onnx'"),
        (lambda run: (run / "config.yaml").unlink(), "A", {}, RunFolderError, "is not a run folder"),
        (lambda run: without_checkpoints(run, lambda: shutil.rmtree(run / "adapters" / "A")), "A", {}, RunFolderError,
         "has no adapter of seat 'A': a run writes its adapters at its checkpoints"),
        (lambda run: without_checkpoints(run, lambda: (run / WEIGHTS).write_bytes(b"x" * 100)), "A", {}, RunFolderError,
         "adapter_model.safetensors is not a safetensors file, or is damaged"),
        (lambda run: (run / "environment.json").write_text('{"base": "tiny:0"}'), "B", {}, RunFolderError,
         "was made over another base than tiny is now: it is 'tiny:1' now, and was 'tiny:0'"),
        (own_code, "A", {}, ConfigError, "which runs Python code that comes .*, give --trust-remote-code"),
        (own_code, "A", {"to": "merged", "trust_remote_code": True}, ConfigError, "can only be exported --to peft"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported(make_run: MakeRun, tmp_path: Path, damage, seat, options, error, words):
    run = shutil.copytree(make_run(), tmp_path / "run")
    damage(run)
    with pytest.raises(error, match=words):
        export(run, seat, out=tmp_path / "out", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# Nothing half


def test_an_export_that_fails_leaves_nothing(make_run: MakeRun, tmp_path: Path, monkeypatch):
    for error, raised, words in (
        (OSError(errno.ENOSPC, "No space left on device"), SaveFailed, "cannot write .*No space left on device"),
        (RequestError("no such thing"), RequestError, "no such thing"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ):

        def write(folder: Path, *_: Any, error: BaseException = error) -> None:
            (folder / "half").write_text("half")
            raise error

        monkeypatch.setattr(exporting, "write_adapter", write)
        with pytest.raises(raised, match=words):
            export(make_run(), "A", out=tmp_path / "new" / "out", **FAST)
        assert list((tmp_path / "new").iterdir()) == []


def test_what_comes_to_be_meanwhile_stays_and_what_a_killed_export_left_goes(make_run, tmp_path: Path, monkeypatch):
    (tmp_path / ".out.partial").mkdir()
    monkeypatch.setattr(exporting, "write_adapter", lambda *_: (tmp_path / "out").mkdir())
    with pytest.raises(ConfigError, match="out exists already"):
        export(make_run(), "A", out=tmp_path / "out", **FAST)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_disk_that_is_full_while_weights_are_written(make_run: MakeRun, tmp_path: Path):
    """A file system of 16 KB, which the adapter does not fit into."""
    small = tmp_path / "small"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(small)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        for form in ("peft", "merged", "gguf"):
            with pytest.raises(SaveFailed, match=r"cannot write .*(No space left on device|requested and \d+ written)"):
                export(make_run(precision="fp32"), "A", to=form, out=small / "out", **FAST)
            assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_a_signal_while_another_tool_reads_leaves_nothing(make_run: MakeRun, tmp_path: Path, monkeypatch):
    def ask(request: Any, poll: Callable[[], None]) -> Any:
        assert (Path(request["folder"]) / "adapter_model.safetensors").exists()
        os.kill(os.getpid(), signal.SIGINT)
        poll()
        raise AssertionError("went on")

    monkeypatch.setattr(verification, "ask_seat", lambda *arguments: [{}])  # without a model
    monkeypatch.setattr(verification, "read_back", ask)
    with pytest.raises(Interrupted, match="stopped by SIGINT"):
        export(make_run(), "A", out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_runs_switches_are_in_the_template_and_an_argument_still_wins():
    thinks = "{{ date_string }} {% if enable_thinking %}thinks{% else %}answers{% endif %}"
    asks = """{{ strftime_now('%d %b %Y') }}, {{ strftime_now( "%H:%M" ) }}"""
    for template, thinking, given, shown in (
        (thinks, "off", {}, f"{DATE} answers"),
        (thinks, "on", {}, f"{DATE} thinks"),
        (thinks, "on", {"enable_thinking": False, "date_string": "today"}, "today answers"),
        (asks, "auto", {}, f"{DATE}, 00:00"),
    ):
        switched = exporting.with_switches(template, thinking)
        assert jinja2.Template(switched or "").render(**given) == shown
    assert exporting.with_switches("{{ enable_thinking }}", "auto") == "{{ enable_thinking }}"
    assert exporting.with_switches(None, "on") is None
