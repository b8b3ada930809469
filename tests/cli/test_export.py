"""`lite-selfplay export`, as a user gives it."""

import json
from pathlib import Path

import pytest

from lite_selfplay.config import RunConfig
from lite_selfplay.extras.export import verification
from lite_selfplay.runs.api import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step and two seats."""
    sizes = {"group_size": 2, "problems_per_step": 2, "max_completion_tokens": 8, "steps": 1}
    path = tmp_path_factory.mktemp("runs") / "run"
    return train(RunConfig(game="agon", model="tiny", tasks="letters", run_dir=path, **sizes)).path


def answers(monkeypatch: pytest.MonkeyPatch, off_by: float = 0.0) -> None:
    """Another tool that answers as the seat did, or with log-probabilities that are off."""

    def read_back(request, poll):
        return [
            {"prompt_ids": each["prompt_ids"], "logprobs": [value + off_by for value in each["logprobs"]]}
            for each in request["questions"]
        ]

    monkeypatch.setattr(verification, "read_back", read_back)


def test_an_export_and_what_to_paste(call, run, monkeypatch):
    answers(monkeypatch)
    code, out, err = call("export", run, "A")
    assert code == 0
    written, blank, serve, upload = out.splitlines()
    assert (written, blank) == ("written: exports/run-A-peft", "")
    assert serve.endswith("--enable-lora --lora-modules A=exports/run-A-peft --quantization bitsandbytes")
    assert upload == "hf upload run-A-peft exports/run-A-peft . --private"
    assert "asking seat A 20 prompts of the run" in err
    assert "PEFT: mean |delta| 0 nats over the " in err
    code, _, err = call("export", run, "A")
    assert code == 2
    assert "exports/run-A-peft exists already and is not overwritten" in err


def test_an_export_as_json(call, run, monkeypatch):
    answers(monkeypatch)
    code, out, _ = call("export", run, "B@1", "--out", "here", "--json")
    made = json.loads(out)
    assert code == 0
    assert (made["folder"], made["seat"], made["to"]) == ("here", "B@1", "peft")
    assert made["verification"]["passed"] is True
    assert made["commands"][-1] == "hf upload here here . --private"


def test_an_export_that_is_another_model_ends_with_1(call, run, monkeypatch):
    answers(monkeypatch, off_by=0.5)
    code, _, err = call("export", run, "A", "--out", "here")
    assert code == 1
    assert "error: here is not the same model as seat A: mean |delta| 0.5 is more than" in err
    assert json.loads(Path("here/verification.json").read_text())["passed"] is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "has the seats A, B: say which one, after the run"),
        (("A", "--to", "onnx"), "a seat is exported to peft, merged, gguf, not to 'onnx'"),
        (("Z",), "unknown seat 'Z'"),
    ],
)
def test_wrong_requests_end_with_2(call, run, arguments, words):
    code, _, err = call("export", run, *arguments)
    assert code == 2
    assert words in err
