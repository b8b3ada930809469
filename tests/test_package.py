"""The wheel holds what the tree holds: every module and prompt, and no top-level module that others may bring too."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import lite_selfplay
from tests.test_docs import ROOT, TEXTS
from tests.test_snippets import BLOCK

SOURCES = {"lite_selfplay": "lite_selfplay", "cli": "lite_selfplay_cli"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy, so that the tree stays clean and nothing left in it gets in."""
    place = tmp_path_factory.mktemp("build")
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    code = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    subprocess.run([sys.executable, "-c", code], cwd=place, timeout=120, check=True, stdout=subprocess.DEVNULL)
    (built,) = (place / "dist").glob("*.whl")
    return zipfile.ZipFile(built)


def in_tree() -> dict[str, Path]:
    """The files of the tree by the names that they have in the wheel."""
    return {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}": path
        for folder, package in SOURCES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_tree_byte_for_byte_and_nothing_else(wheel):
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == in_tree().keys()
    assert {name.partition("/")[0] for name in inside} == set(SOURCES.values())  # there is no module named cli
    assert [name for name, path in in_tree().items() if wheel.read(name) != path.read_bytes()] == []


PLACES = re.compile(
    r".*\.py|lite_selfplay/(py\.typed|games/prompts/.*\.txt|extras/view/.*\.(html|css|js)"
    r"|(config/presets|extras/reproduce/experiments)/.*\.yaml)"
)


def test_git_tracks_nothing_that_it_ignores():
    """Runs, exports and caches are not committed."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    assert (listed.returncode, listed.stdout) == (0, "")


def test_the_tree_holds_code_prompts_presets_and_a_page_only():
    assert [name for name in in_tree() if not PLACES.fullmatch(name)] == []
    assert {Path(name).suffix for name in in_tree()} >= {".py", ".typed", ".txt", ".html", ".css", ".js", ".yaml"}
    modules = [path for path in in_tree().values() if path.suffix == ".py"]
    assert all((path.parent / "__init__.py").exists() for path in modules)


def test_it_is_small_and_brings_the_licence_and_the_console_script(wheel):
    assert Path(wheel.filename or "").stat().st_size < 1e6
    beside = {name.partition(".dist-info/")[2]: name for name in wheel.namelist() if ".dist-info/" in name}
    assert "licenses/LICENSE" in beside
    scripts = wheel.read(beside["entry_points.txt"]).decode()
    assert "[console_scripts]\nlite-selfplay = lite_selfplay_cli.__main__:main" in scripts


def test_a_wheel_is_what_is_imported_from(wheel, tmp_path):
    wheel.extractall(tmp_path)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import lite_selfplay, lite_selfplay_cli.app as app; "
    code += "from lite_selfplay.games.prompts import fill; fill('solver', problem='1 + 1?'); "
    code += "assert lite_selfplay.__file__.startswith(sys.argv[1]) and app.__file__.startswith(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60, cwd=tmp_path)


def test_no_public_name_is_a_modules_name_too():
    # An imported module becomes an attribute of its package, and would hide a name that is looked up when asked for.
    modules = {path.stem for path in (ROOT / "lite_selfplay").iterdir()}
    assert not modules & set(lite_selfplay.__all__)
    assert all(getattr(lite_selfplay, name) for name in lite_selfplay.__all__)


# The pages' commands, from the wheel alone


@pytest.fixture(scope="module")
def bare(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment that has the wheel, without a checkout, and what it depends on."""
    place = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--quiet", str(wheel.filename)], check=True)
    (site / "beside.pth").write_text(f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})\n")
    return place / "bin"


def blocks(page: str, heading: str = "") -> list[str]:
    """The blocks of commands of a page, or of one of its sections, in order."""
    text = TEXTS[page].partition(heading)[2].partition("\n## ")[0] if heading else TEXTS[page]
    return [found[3] for found in BLOCK.finditer(text) if not found[2]]


def test_what_the_readme_installs_draws_the_charts_that_its_commands_ask_for():
    (install,) = (line for line in blocks("README.md")[0].splitlines() if "pip install" in line)
    assert any("--figures" in block for block in blocks("README.md"))
    assert "[plots]" in install


MADE = next(block for block in blocks("docs/start.md") if block.startswith("python -c"))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_commands_of_a_page_run_in_order_from_the_wheel_alone(page: str, bare: Path, tmp_path: Path):
    lines = [MADE, *blocks("README.md", "## Use\n")] if page == "README.md" else blocks(page)
    environment = {**os.environ, "PATH": f"{bare}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    script = "set -e\npython -c 'import lite_selfplay as l; print(l.__file__)'\n" + "\n".join(lines)
    run = {"cwd": tmp_path, "env": environment, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run(["bash", "-c", script], check=False, **run)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(bare.parent) in done.stdout.splitlines()[0]
    assert (tmp_path / "runs" / "first" / "adapters" / "B" / "adapter_model.safetensors").exists()
