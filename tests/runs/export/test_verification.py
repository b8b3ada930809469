"""The comparison with another tool, by hand numbers, and the process it runs in."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lite_selfplay.errors import Interrupted, VerificationFailed
from lite_selfplay.runs.export import foreign, verification
from lite_selfplay.runs.export.verification import Question, Verification, ask_foreign, choose_prompts, compare

REQUEST = {"reader": "transformers", "dtype": "float32"}


def question(base_first: int = 7) -> Question:
    return Question("Q", (1, 2), (7, 8), (-0.5, -1.0), base_first, (-2.5, -1.0))


def answer(**values: Any) -> dict[str, Any]:
    return {"prompt_ids": [1, 2], "first": 7, "gap": 0.0, "logprobs": [-0.5, -1.0], "token_ids": [7, 8], **values}


def compared(*answers: dict[str, Any], limit: float = 0.01, **request: Any) -> Verification:
    questions = [question(), *(question(9) for _ in answers[1:])]
    return compare(questions, {"answers": answers, "versions": {"torch": "2"}}, {**REQUEST, **request}, limit)


def test_the_same_answers():
    found = compared(answer(), answer())
    assert found.passed
    assert found.sentence() == "2 of 2 first tokens agree, mean |delta| 0; the base agrees on 1"
    assert (found.texts_same, found.prompts_same, found.tokens) == (2, 2, 4)
    assert found.base_mean_difference == 1.0  # |-2.5 + 0.5| and 0


def test_differences_are_means_over_tokens():
    found = compared(answer(logprobs=[-0.5, -1.25]), answer(), limit=0.1)
    assert found.mean_difference == pytest.approx(0.0625)
    assert found.largest_difference == 0.25
    assert found.passed
    assert compared(answer(logprobs=[-0.5, -1.25]), answer()).failures == ["mean |delta| 0.0625 is more than 0.01"]


@pytest.mark.parametrize(
    ("odd", "failure"),
    [
        ({"first": 5, "gap": 0.3}, "1 of 2 first tokens are others"),
        ({"prompt_ids": [1, 3]}, "1 of 2 prompts become other tokens"),
        ({"logprobs": [-0.5, float("nan")]}, "mean |delta| nan is more than 0.01"),
        ({"logprobs": [-0.5, -9.0]}, "mean |delta| 2 is more than 0.01"),
    ],
)
def test_what_is_another_model(odd, failure):
    found = compared(answer(), answer(**odd))
    assert found.failures == [failure]
    assert not found.passed
    assert failure in found.paragraph()


def test_a_near_tie_is_no_failure_and_is_said():
    found = compared(answer(), answer(first=5, gap=0.04))
    assert found.passed
    assert "1 of 2 first tokens agree (1 near ties apart)" in found.sentence()


def test_a_reader_that_was_given_the_ids_says_nothing_of_the_words():
    found = compared(answer(prompt_ids=None), answer(prompt_ids=None))
    assert found.prompts_same is None
    assert found.passed


def test_no_log_probability_at_all_is_no_agreement():
    assert not compared(answer(logprobs=[]), answer(logprobs=[])).passed


def test_prompts_are_spread_over_what_the_seat_saw():
    seen = [f"prompt {i}" for i in range(100) for _ in range(8)]
    assert choose_prompts(seen, lambda text: True) == [f"prompt {i}" for i in range(0, 100, 5)]


def test_too_few_prompts_are_filled_up_and_special_tokens_left_out():
    chosen = choose_prompts(["a", "b </s>", "a", " "], lambda text: "</s>" not in text)
    assert chosen[:2] == ["a", "What is 11 + 3?"]
    assert len(set(chosen)) == len(chosen) == verification.QUESTIONS


def test_long_prompts_are_taken_only_where_short_ones_are_missing():
    long = ["x" * 3000 + str(i) for i in range(30)]
    assert not set(choose_prompts([*long, *map(str, range(20))], lambda text: True)) & set(long)
    assert set(choose_prompts(long, lambda text: True)) <= set(long)


# The process


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Another script in the place of the one that loads a model."""
    script = tmp_path / "stand_in.py"
    script.write_text(f"import json, sys, time\nfrom pathlib import Path\n{code}\n")
    monkeypatch.setattr(foreign, "__file__", str(script))


def test_the_answer_of_a_process(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, 'Path(sys.argv[2]).write_text(json.dumps({"alone": True, "answers": [1]}))')
    assert ask_foreign(REQUEST, lambda: None)["answers"] == [1]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise ValueError('no such weight')", "ValueError: no such weight"),
        ("sys.exit(4)", "it ended with 4"),
        ("pass", "it ended with 0"),
        ('Path(sys.argv[2]).write_text(json.dumps({"alone": False}))', "was not alone"),
    ],
)
def test_a_process_that_fails(tmp_path, monkeypatch, code, why):
    stand_in(tmp_path, monkeypatch, code)
    with pytest.raises(VerificationFailed, match=why):
        ask_foreign(REQUEST, lambda: None)


def test_who_stops_waiting_leaves_no_process(tmp_path, monkeypatch):
    stand_in(
        tmp_path,
        monkeypatch,
        f"Path({str(tmp_path / 'pid')!r}).write_text(str(__import__('os').getpid()))\ntime.sleep(60)",
    )

    def poll() -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        ask_foreign(REQUEST, poll)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_the_script_ends_with_whoever_asked(tmp_path):
    import subprocess

    code = (
        "import subprocess, sys, time\n"
        "sys.argv = ['foreign.py']\n"
        "from runpy import run_path\n"
        f"script = run_path({foreign.__file__!r})\n"
        "import threading\n"
        "threading.Thread(target=script['_end_with_the_asker'], daemon=True).start()\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-P", "-c", code], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=30) == 3


def test_figures_are_json():
    found = compared(answer(), answer())
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["passed"] is True
