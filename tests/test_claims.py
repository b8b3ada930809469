"""docs/results.md, README.md and recorded tables against experiments/results: all rows, figures and readings."""

import copy
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lite_selfplay.extras.reproduce.experiment import Experiment
from lite_selfplay.extras.reproduce.findings import table
from tests.test_docs import ROOT

CLAIMS = runpy.run_path(str(ROOT / "experiments" / "claims.py"))
RESULTS, README = CLAIMS["RESULTS"], CLAIMS["README"]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in (RESULTS, README)}


@pytest.fixture(scope="module")
def checked(pages: dict[str, str]) -> list[Any]:
    return CLAIMS["checked"](pages)


def test_the_pages_have_every_row_and_sentence_and_none_is_surer_than_the_records(checked: list[Any]):
    assert [each.text for each in checked if not each.found] == []
    assert [(each.text, each.misread) for each in checked if each.misread] == []


def test_no_figure_of_the_results_is_without_a_record(checked: list[Any], pages: dict[str, str]):
    rest = " ".join(pages[RESULTS].split())
    for each in sorted(checked, key=lambda each: -len(each.text)):
        rest = rest.replace(each.text, "")
    assert re.findall(r".{30}\[-?\d[^\]]*, -?\d[^\]]*\]|.{30}\d\.\d+[ %]|.{30}(?<!\b95)(?<!\b5)%", rest) == []


def test_a_figure_that_changes_by_a_tenth_is_found(checked: list[Any], pages: dict[str, str]):
    def changed(text: str) -> Iterator[str]:
        for figure in re.finditer(r"(?<![\d.,e-])\d+(\.\d+)?(?![\d.]|e-|,\d)", text):
            digits = len(figure[1] or ".") - 1
            other = f"{float(figure[0]) * 1.1 + 10**-digits:.{digits}f}"
            yield text[: figure.start()] + other + text[figure.end() :]

    for each in checked:
        plain = " ".join(pages[each.page].split())
        assert all(each.text not in plain.replace(each.text, other) for other in changed(each.text))


@pytest.mark.parametrize(
    ("arm", "size", "lost"),
    [
        ("sqlm", "3x", "SQLM 13.7 [7.8, 19.5] more at 3x"),
        ("adv", "1x", "Agon ends 9.1 [5.6, 12.6] points below"),
        ("grpo", "3x", "with labels, five seeds | 44% | 89%; 82% |"),
    ],
)
def test_a_record_that_changes_by_a_tenth_is_found(
    arm: str, size: str, lost: str, pages: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    """A tenth of the right answers of each seed become wrong ones."""
    real = CLAIMS["records"]

    def records(name: str, of: str = "1x") -> list[dict[str, Any]]:
        found = real(name, of)
        if (name, of) != (arm, size):
            return found
        found = copy.deepcopy(found)
        for record in found:
            rows = list(record["evaluations"][0]["per_problem"].values())
            for row in rows[::10]:
                row.update(dict.fromkeys(row, False))
        return found

    assert any(lost in " ".join(text.split()) for text in pages.values())
    monkeypatch.setitem(CLAIMS["said"].__globals__, "records", records)
    assert not any(lost in text.format(*figures) for _, text, figures in CLAIMS["said"]())


@pytest.mark.parametrize(
    "path", sorted((ROOT / "experiments" / "results").rglob("table.md")), ids=lambda p: p.parent.name
)
def test_a_recorded_table_is_that_of_its_records(path: Path):
    experiment = Experiment.model_validate(yaml.safe_load((path.parent / "experiment.yaml").read_text()))
    files = (path.parent / f"seed-{seed}" / f"{arm}.json" for seed in experiment.seeds for arm in experiment.arms)
    records = [json.loads(file.read_text()) for file in files if file.is_file()]
    assert table(experiment, records) == path.read_text()
