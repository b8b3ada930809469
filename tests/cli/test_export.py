"""`lite-selfplay export` and `push`, as a user gives them."""

import json
from pathlib import Path

import pytest

from lite_selfplay.config import RunConfig
from lite_selfplay.runs.api import train
from lite_selfplay.runs.export import exporting
from lite_selfplay.runs.export.verification import Verification


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step and two seats."""
    sizes = {"group_size": 2, "problems_per_step": 2, "max_completion_tokens": 8, "steps": 1}
    path = tmp_path_factory.mktemp("runs") / "run"
    return train(RunConfig(game="agon", model="tiny", tasks="letters", run_dir=path, **sizes)).path


def verification(**values: object) -> Verification:
    figures = {
        "reader": "PEFT", "versions": {}, "compute": "float32", "questions": 20, "first_tokens_same": 20,
        "near_ties": 0, "texts_same": 20, "prompts_same": 20, "tokens": 400, "mean_difference": 0.003,
        "largest_difference": 0.1, "base_first_tokens_same": 6, "base_mean_difference": 1.0, "limit": 0.01,
    }  # fmt: skip
    return Verification(**{**figures, **values})  # type: ignore[arg-type]


def test_an_export(call, run, monkeypatch):
    monkeypatch.setattr(exporting, "_verify", lambda *arguments: verification())
    code, out, err = call("export", run, "A")
    assert code == 0
    assert out.splitlines()[0] == "written: exports/run-A-peft"
    assert "  adapter_model.safetensors (135 KB)" in out
    assert out.splitlines()[-1] == "20 of 20 first tokens agree, mean |delta| 0.003; the base agrees on 6"
    assert "asking seat A 20 prompts of the run" in err
    code, _, err = call("export", run, "A")
    assert code == 2
    assert "exports/run-A-peft exists already and is not overwritten" in err


def test_an_export_as_json(call, run, monkeypatch):
    monkeypatch.setattr(exporting, "_verify", lambda *arguments: verification())
    code, out, _ = call("export", run, "B", "--out", "here", "--json")
    made = json.loads(out)
    assert code == 0
    assert (made["folder"], made["seat"], made["to"], made["dtype"]) == ("here", "B", "peft", "fp32")
    assert made["verification"]["passed"] is True
    assert "adapter_config.json" in made["files"]


def test_an_export_that_is_another_model_ends_with_1(call, run, monkeypatch):
    monkeypatch.setattr(exporting, "_verify", lambda *arguments: verification(first_tokens_same=3))
    code, _, err = call("export", run, "A", "--out", "here")
    assert code == 1
    assert "error: here is not the same model as seat A: 17 of 20 first tokens are others" in err
    assert json.loads(Path("here/verification.json").read_text())["passed"] is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "has the seats A, B: say which one, after the run"),
        (("A", "--to", "onnx"), "--to is peft, merged, gguf, ollama, not 'onnx'"),
        (("Z",), "unknown seat 'Z'"),
    ],
)
def test_wrong_requests_end_with_2(call, run, arguments, words):
    code, _, err = call("export", run, *arguments)
    assert code == 2
    assert words in err


def test_a_push_without_a_token_is_a_dry_run(call, run, monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    code, out, err = call("push", run, "A", "somebody/agon-a", "--no-verify")
    assert code == 0
    assert "  adapter_model.safetensors (" in out
    assert "# agon on tiny, seat A" in out
    assert out.rstrip().endswith("or set HF_TOKEN to push")
    assert "dry run: nothing was sent to somebody/agon-a" in out
    code, out, _ = call("push", run, "A", "somebody/agon-a", "--no-verify", "--json")
    assert json.loads(out)["url"] is None
    code, _, err = call("push", run, "A", "B", "somebody/agon-a", "--no-verify")
    assert code == 2
    assert "push takes a run, a seat and a name" in err
