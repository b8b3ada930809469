"""The notebooks run unchanged, on the random model, and produce what their cells promise; what they show is their own.

`LITE_SELFPLAY_WRITE_NOTEBOOKS=1 pytest --timeout 0 -k was_printed tests/test_notebooks.py` runs them as they are, a
quarter of an hour each on a CPU, and keeps what they show.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.made import disagreeing, jsonl, metrics_of

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = ("agon_colab.ipynb", "sqlm_colab.ipynb")

SIZES = {"problems_per_step": 2, "group_size": 4, "max_completion_tokens": 20}
SMALL = {
    "MODEL": "tiny",
    "PRESET": None,
    "TASKS": "letters",
    "HELD_OUT_LIMIT": 4,
    "STEPS": 2,
    "MINUTES": 0,
    "OTHERS": SIZES,
}
LEARNED = {"enabled": True, "source": "examples.jsonl"}
LONGER = {**LEARNED, "steps": 30, "examples_per_step": 6, "lr": 2e-2}
PARAMETERS: dict[str, dict[str, Any]] = {
    "agon_colab.ipynb": {
        "OTHER_TASKS": "letters:named=5",
        "COLD_START": {**LEARNED, "steps": 1, "examples_per_step": 2},
    },
    "sqlm_colab.ipynb": {"TASKS": "arithmetic:max=20,terms=2,ops=+", "COLD_START": LONGER},
}


def parameters(notebook: Any) -> Any:
    """The one cell that is tagged as holding the parameters."""
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    return cell


def with_values(notebook: Any, values: Mapping[str, Any]) -> Any:
    """The notebook with other values given at the end of its parameters, each of which it has to know."""
    cell = parameters(notebook)
    known = {line.split(" = ")[0] for line in cell.source.splitlines()}
    assert values.keys() <= known
    cell.source += "".join(f"\n{key} = {value!r}" for key, value in values.items())
    return notebook


def run_in(folder: Path, notebook: Any, timeout: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        resources = {"metadata": {"path": str(folder)}}
        NotebookClient(notebook, timeout=timeout, record_timing=False, resources=resources).execute()  # raises


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.long) for name in NAMES])
def executed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A notebook with its outputs, and the run it made."""
    folder = tmp_path_factory.mktemp("notebook")
    jsonl(folder / "examples.jsonl", *disagreeing(request.param.partition("_")[0]))
    notebook = nbformat.read(EXAMPLES / request.param, as_version=4)
    with_values(notebook, {**SMALL, **PARAMETERS[request.param]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        run_in(folder, notebook, timeout=200)
    (run,) = (path for path in (folder / "runs").iterdir() if path.is_dir())
    return notebook, run


def shown(notebook: Any, cell_id: str, kind: str) -> list[str]:
    """What a cell printed (`text/plain`) or displayed, in the order it did."""
    (cell,) = [cell for cell in notebook.cells if cell.id == cell_id]
    found = []
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stdout" and kind == "text/plain":
            found.append(output.text)
        elif output.output_type in ("display_data", "execute_result") and kind in output.data:
            found.append(output.data[kind])
    return found


def digest(code: list[Any]) -> str:
    return hashlib.sha256("\0".join(cell.source for cell in code).encode()).hexdigest()


def keep_what_it_shows(path: Path, folder: Path) -> None:
    """Run a notebook as it is, and write it with its outputs, in which this machine's folders have other names."""
    notebook = nbformat.read(path, as_version=4)
    run_in(folder, notebook, timeout=7200)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    notebook.metadata["code_sha256"] = digest(code)
    for cell in code:
        cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]  # such as tqdm's of widgets
    text = nbformat.writes(notebook)
    for place, name in ((folder, "."), (EXAMPLES.parent, ".."), (Path.home(), "~")):
        text = text.replace(str(place), name)
    path.write_text(text + "\n", encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_committed_is_valid_uses_public_names_and_was_printed_by_it(name: str, tmp_path: Path):
    path = EXAMPLES / name
    if os.environ.get("LITE_SELFPLAY_WRITE_NOTEBOOKS"):
        keep_what_it_shows(path, tmp_path)
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert 'PRESET = "t4"' in parameters(notebook).source
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "lite_selfplay." not in "".join(cell.source for cell in code)  # public names alone
    assert notebook.metadata["code_sha256"] == digest(code)  # else the code has changed since
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert len(json.dumps(outputs)) < 2e6
    texts = [json.dumps({**output, "data": {**output.get("data", {}), "image/png": ""}}) for output in outputs]
    assert not [text for text in texts if re.search(r"/(?:tmp|root|home|work|usr)/|site-packages|stderr|Warning", text)]
    assert sum("data:image/png;base64," in text for text in texts) == 1
    said = re.search(r"that (\d+ of the \d+ steps) fitted", notebook.cells[0].source)
    assert said is not None
    assert f"{said[1]} asked for fitted" in "".join(shown(notebook, "train", "text/plain"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("there", "installed"),
    [
        ("../lite_selfplay/py.typed", "{}[plots]"),
        ("lite_selfplay/py.typed", "{}/examples[plots]"),
        ("lite_selfplay-1.whl", "{}/examples/lite_selfplay-1.whl[plots]"),
        ("nothing", "lite-selfplay[plots]"),
    ],
)
def test_it_is_installed_from_a_checkout_a_wheel_or_by_name(
    name: str, there: str, installed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "examples").mkdir()
    monkeypatch.chdir(tmp_path / "examples")
    Path(there).parent.mkdir(exist_ok=True)
    Path(there).touch()
    (cell,) = [cell for cell in nbformat.read(EXAMPLES / name, as_version=4).cells if cell.id == "doctor"]
    source = cell.source.replace('%pip install -q "{where}[plots]"', 'asked.append(f"{where}[plots]")')
    asked: list[str] = []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    exec(source.partition("print(subprocess")[0], {"asked": asked})
    assert asked == [installed.format(tmp_path)]


def test_a_run_is_trained_read_drawn_measured_and_packed(executed: tuple[Any, Path]):
    notebook, run = executed
    rows = metrics_of(run)
    assert [row["step"] for row in rows] == [1, 2]
    assert any(stream["rows_trained"] for row in rows for stream in row["streams"].values())
    assert "step 2/2" in "".join(shown(notebook, "train", "text/plain"))
    assert "python" in "".join(shown(notebook, "doctor", "text/plain"))

    (page,) = shown(notebook, "duels", "text/markdown")
    assert "## 1. Step" in page
    assert page.count("seat `") >= 2

    drawn = {path.name: path.stat().st_size for path in (run / "figures").iterdir()}
    assert drawn.keys() == {"learning.png", "the-game.png", "health.png"}
    assert min(drawn.values()) > 5000
    (page,) = shown(notebook, "figures", "text/html")
    assert page.count("data:image/png;base64,") == len(drawn)

    (table,) = shown(notebook, "held-out", "text/markdown")
    assert table.splitlines()[0].split(" | ")[1:] == ["untouched", "after cold start", "after 2 steps |"]
    assert {json.loads(path.read_text())["n"] for path in (run / "eval").glob("*.json")} == {4}

    files = list(run.glob("adapters/*/adapter_model.safetensors"))
    printed = "".join(shown(notebook, "save", "text/plain"))
    assert files
    assert all(str(file.parent.relative_to(run)) in printed for file in files)
    assert run.with_name(f"{run.name}-adapters.zip").stat().st_size > sum(file.stat().st_size for file in files) / 2

    if (run / "adapters" / "A").is_dir():
        (table,) = shown(notebook, "other", "text/markdown")
        assert [line.split(" | ")[0] for line in table.splitlines()[2:6]] == ["| A", "| B", "| A->B", "| B->A"]
        return
    page = "".join(shown(notebook, "other", "text/plain"))
    for name in ("base", "shared"):
        assert page.count(f"\n--- {name}: right\n") + page.count(f"\n--- {name}: wrong\n") == 3
    assert page.count("\n=== ") == 3
