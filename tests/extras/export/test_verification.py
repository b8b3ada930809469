"""The comparison with another tool, by hand numbers, and the process it runs in."""

from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.errors import Interrupted, VerificationFailed
from lite_selfplay.extras.export import reader, verification
from lite_selfplay.extras.export.verification import Verification, choose_prompts, compare, read_back

REQUEST = {"reader": "transformers"}
QUESTION = {"prompt": "Q", "prompt_ids": [1, 2], "token_ids": [7, 8], "logprobs": [-0.5, -1.0],
            "base_logprobs": [-2.5, -1.0]}  # fmt: skip


def answer(**values: Any) -> dict[str, Any]:
    return {"prompt_ids": [1, 2], "logprobs": [-0.5, -1.0], **values}


def compared(*answers: dict[str, Any], limit: float = 0.01) -> Verification:
    return compare("transformers", [QUESTION] * len(answers), answers, "float32", limit)


def test_the_same_answers():
    found = compared(answer(), answer())
    assert found.sentence() == "mean |delta| 0 nats over the 4 tokens of 2 answers; the base's is 1"
    assert (found.failures, found.prompts_same, found.tokens) == ([], 2, 4)
    assert found.base_difference == 1.0  # |-2.5 + 0.5| and 0


@pytest.mark.parametrize(
    ("odd", "failure"),
    [
        ({"prompt_ids": [1, 3]}, "1 of 2 prompts become other tokens"),
        ({"logprobs": [-0.5, float("nan")]}, "mean |delta| nan is more than 0.01"),
        ({"logprobs": [-0.5, -1.25]}, "mean |delta| 0.0625 is more than 0.01"),  # over four tokens
        ({"logprobs": [-0.5, -9.0]}, "mean |delta| 2 is more than 0.01"),
    ],
)
def test_what_is_another_model(odd, failure):
    found = compared(answer(), answer(**odd))
    assert found.failures == [failure]
    assert failure in found.paragraph()
    assert found.to_json()["passed"] is False
    assert compared(answer(), answer(logprobs=[-0.5, -1.25]), limit=0.1).failures == []
    with pytest.raises(ValueError, match="zip"):
        compared(answer(logprobs=[]))  # of another length


def test_prompts_are_spread_over_what_the_seat_saw_filled_up_and_without_special_tokens():
    seen = [f"prompt {i}" for i in range(100) for _ in range(8)]
    assert choose_prompts(seen, lambda text: True) == [f"prompt {i}" for i in range(0, 100, 5)]
    chosen = choose_prompts(["a", "b </s>", "a", " "], lambda text: "</s>" not in text)
    assert chosen[:2] == ["a", "What is 11 + 3?"]
    assert len(set(chosen)) == len(chosen) == verification.QUESTIONS


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Another script in the place of the one that loads a model."""
    script = tmp_path / "stand_in.py"
    script.write_text(f"import json, sys, time\nfrom pathlib import Path\n{code}\n")
    monkeypatch.setattr(reader, "__file__", str(script))


def test_a_process_that_fails(tmp_path, monkeypatch):
    for code, why in {"raise ValueError('no weight')": "ValueError: no weight", "sys.exit(4)": "ended with 4"}.items():
        stand_in(tmp_path, monkeypatch, code)
        with pytest.raises(VerificationFailed, match=why):
            read_back(REQUEST, lambda: None)


def test_who_stops_waiting_leaves_no_process(tmp_path, monkeypatch):
    file = tmp_path / "pid"
    stand_in(tmp_path, monkeypatch, f"import os\nPath({str(file)!r}).write_text(str(os.getpid()))\ntime.sleep(60)")

    def poll() -> None:
        if file.exists() and file.read_text():
            raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        read_back(REQUEST, poll)
    assert not Path(f"/proc/{file.read_text()}").exists()
