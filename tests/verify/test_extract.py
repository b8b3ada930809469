r"""Which text of a completion counts as its answer."""

from pathlib import Path

import pytest
import yaml

from lite_selfplay.verify.extract import extract_answer

CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("text", "answer"), CASES["extract"].items())
def test_extract_answer(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.timeout(10)
@pytest.mark.parametrize("piece", ["*", " ", "answer ", r"\boxed{", "answer: $$", r"\boxed{1} ", "<answer>", "! "])
def test_extraction_is_quick_on_repetitive_text(piece: str) -> None:
    extract_answer("answer is " + piece * (60_000 // len(piece)))
