"""The lines of a model card that load a seat: run as they stand, they give what the seat says in its run."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from lite_selfplay.config import RunConfig
from lite_selfplay.data import Sampling
from lite_selfplay.extras.export.exporting import export
from lite_selfplay.extras.export.request import ask, export_card, serving
from lite_selfplay.extras.talk import speakers_of
from lite_selfplay.runs.folder import RunFolder
from lite_selfplay.runs.report.pages import loading

PROMPT = "Which letter?"


@pytest.fixture(params=["4bit", "fp32"])
def run(request: pytest.FixtureRequest, make_run: Callable[..., Path]) -> Path:
    """A run whose seats are far from their base, which is computed in float32 on every machine."""
    return make_run(request.param, compute_dtype="fp32")


def lines_of(folder: Path) -> str:
    """The Python in a folder's card."""
    card = (folder / "README.md").read_text()
    (snippet,) = re.findall(r"^```python\n(.*?)\n```$", card, re.DOTALL | re.MULTILINE)
    return snippet.replace("FOLDER", str(folder))


def scored(snippet: str, ids: list[int]) -> Any:
    """The log-probabilities of the tokens after the first, by the model that these lines load."""
    names: dict[str, Any] = {}
    exec(snippet, names)
    with torch.no_grad():
        found = names["model"](torch.tensor([ids])).logits[0].log_softmax(-1)
    assert names["tokenizer"](PROMPT)["input_ids"]
    return found[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


def test_the_lines_of_a_card_load_the_seat_in_the_runs_precision(run: Path, tmp_path: Path, monkeypatch):
    export(run, "A", out=tmp_path / "out", verify=False)
    with speakers_of(run) as speakers:
        ((said, _),) = speakers.say("A", PROMPT, Sampling(temperature=0.0, max_tokens=8))
    ids, first = [*said.prompt_ids, *said.token_ids], len(said.prompt_ids) - 1
    for folder in (run, tmp_path / "out"):
        monkeypatch.chdir(folder)
        own = scored(lines_of(folder), ids)[first:]
        assert own.tolist() == pytest.approx(list(said.logprobs), abs=0.01), folder
        if "nf4" in lines_of(folder):  # over the base's own weights it is another model
            other = scored(lines_of(folder).replace(", quantization_config=nf4", ""), ids)[first:]
            assert (other - torch.tensor(said.logprobs)).abs().max() > 0.05


@pytest.mark.parametrize(("form", "template"), [("peft", True), ("peft", False), ("merged", True)])
def test_the_lines_of_an_export_answer_a_prompt_of_the_run(make_run, tmp_path: Path, capsys, form: str, template: bool):
    """With the run's settings, and greedily as the seat does."""
    run, out = make_run("fp32"), tmp_path / "out"
    export(run, "A", to=form, out=out, verify=False)
    if not template:
        (out / "chat_template.jinja").unlink()
    names: dict[str, Any] = {}
    exec(lines_of(out), names)
    row = next(row for row in RunFolder(run).episodes() if row["seat"] == "A")
    greedy = {"do_sample": False, "max_new_tokens": 8}
    found = names["model"].generate(**names["inputs"], generation_config=GenerationConfig(**greedy))[0]
    with speakers_of(run) as speakers:
        ((said, _),) = speakers.say("A", row["prompt"], Sampling(temperature=0.0, max_tokens=8))
    settings = names["settings"]
    assert capsys.readouterr().out.rstrip("\n") == names["tokenizer"].decode(names["ids"], skip_special_tokens=True)
    assert (settings.max_new_tokens, settings.top_k, settings.temperature) == (16, 0, 1.0)
    if template:
        assert found.tolist()[: len(said.prompt_ids)] == list(said.prompt_ids)
    else:
        assert found.tolist()[: names["inputs"]["input_ids"].shape[1]] == names["tokenizer"](row["prompt"])["input_ids"]
    if form == "peft" and template:
        assert found.tolist() == [*said.prompt_ids, *said.token_ids]


def config(model: dict[str, Any], **seat: Any) -> RunConfig:
    return RunConfig(game="agon", model=model, tasks="letters", seats={"A": seat, "B": seat})


@pytest.mark.parametrize(
    ("model", "lines"),
    [
        ({"name": "tiny", "precision": "bf16"}, ["dtype = torch.bfloat16", 'resolve("tiny").path, dtype=dtype\n']),
        ({"name": "Qwen3-4B", "compute_dtype": "fp16"}, ["dtype = torch.float16", "bnb_4bit_compute_dtype=dtype"]),
        ({"name": "me/x", "trust_remote_code": True}, ['"me/x", dtype=dtype, quantization_config=nf4, revision="f00"']),
        ({"name": "me/x", "trust_remote_code": True}, [', trust_remote_code=True)', ', trust_remote_code=True\n']),
    ],
)  # fmt: skip
def test_the_lines_that_load_a_seat(model: dict[str, Any], lines: list[str]):
    found = loading(config(model), "adapters/A", "f00" if model["name"] == "me/x" else None)
    compile(found.strip("`").removeprefix("python"), "snippet", "exec")
    for line in lines:
        assert line in found


@pytest.mark.parametrize(
    ("rank", "precision", "more"),
    [(4, "bf16", ""), (16, "4bit", " --quantization bitsandbytes"), (24, "fp16", " --max-lora-rank 32")],
)
def test_what_serves_an_adapter(make_run: Callable[..., Path], tmp_path: Path, rank: int, precision: str, more: str):
    asked = ask(RunFolder(make_run("fp32", compute_dtype="fp32")), "A", "peft", tmp_path / "out", False)
    asked = replace(asked, config=config({"name": "Qwen3-0.6B", "precision": precision}, rank=rank))
    (command,) = serving(asked, "DIR", "Qwen/Qwen3-0.6B", "f00")
    assert command == f"vllm serve Qwen/Qwen3-0.6B --revision f00 --enable-lora --lora-modules A=DIR{more}"
    assert command.replace("DIR", "FOLDER") in export_card(asked, "f00", {}, "")
