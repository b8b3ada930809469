"""`lite-selfplay export`, as a user gives it."""

import json
from functools import partial
from pathlib import Path

import pytest

from lite_selfplay.extras.export import verification

from .conftest import read_back


@pytest.fixture(autouse=True)
def _read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "read_back", read_back)


def test_an_export_and_what_to_paste(call, run):
    code, out, err = call("export", run, "A")
    assert code == 0
    written, blank, serve, upload = out.splitlines()
    assert (written, blank) == ("written: exports/agon-A-peft", "")
    assert serve.endswith("--enable-lora --lora-modules A=exports/agon-A-peft")
    assert upload == "hf upload agon-A-peft exports/agon-A-peft . --private"
    assert "asking seat A 20 prompts of the run" in err
    assert "PEFT: mean |delta| 0 nats over the " in err
    code, _, err = call("export", run, "A")
    assert code == 2
    assert "exports/agon-A-peft exists already and is not overwritten" in err


def test_an_export_as_json(call, run):
    code, out, _ = call("export", run, "B@1", "--out", "here", "--json")
    made = json.loads(out)
    assert code == 0
    assert (made["folder"], made["seat"], made["to"]) == ("here", "B@1", "peft")
    assert made["verification"]["passed"] is True
    assert made["commands"][-1] == "hf upload here here . --private"


def test_an_export_that_is_another_model_ends_with_1(call, run, monkeypatch):
    monkeypatch.setattr(verification, "read_back", partial(read_back, off_by=0.5))
    code, _, err = call("export", run, "A", "--out", "here")
    assert code == 1
    assert "error: here is not the same model as seat A: mean |delta| 0.5 is more than" in err
    assert json.loads(Path("here/verification.json").read_text())["passed"] is False
