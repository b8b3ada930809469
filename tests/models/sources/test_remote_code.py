"""Models with Python code of their own: it runs only on request, and with a warning."""

import shutil
from pathlib import Path

import pytest

from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.sources import folders, resolve
from lite_selfplay.runs.folder import CONFIG
from tests.models.small import change

CODE = """
from pathlib import Path
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

Path({touched!r}).write_text("code of the model has run")

class OwnConfig(Qwen3Config):
    model_type = "its_own"

class OwnModel(Qwen3ForCausalLM):
    config_class = OwnConfig

class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
SMALL = ("--tasks", "letters", "--precision", "fp32", "--no-preflight")
SMALL += ("--steps", 1, "--group-size", 2, "--problems-per-step", 1)


@pytest.fixture
def touched(tmp_path: Path) -> Path:
    """The file that the code would write."""
    return tmp_path / "touched"


@pytest.fixture
def folder(tiny_path: Path, tmp_path: Path, touched: Path) -> Path:
    """`tiny` as an architecture unknown to transformers."""
    folder = shutil.copytree(tiny_path, tmp_path / "own")
    (folder / "own.py").write_text(CODE.format(touched=str(touched)))
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    change(folder / "config.json", model_type="its_own", auto_map=own)
    return folder


def test_code_is_refused_by_a_sentence_that_names_the_flag(folder, touched, call):
    for command in (("train", "grpo", "--model", folder, *SMALL), ("eval", folder, "--tasks", "letters")):
        ended = call(*command)
        assert ended.code == 2
        assert f"{folder} needs Python code that it brings along" in ended.err
        assert "--trust-remote-code" in ended.err
    assert not touched.exists()
    assert not (Path.cwd() / "runs").exists()


def test_where_transformers_knows_the_model_its_own_code_is_run_only_where_it_is_trusted(folder, touched, call):
    change(folder / "config.json", model_type="qwen3")
    assert call("eval", folder, "--tasks", "letters", "--limit", 1, "--precision", "fp32").code == 0
    change(folder / "config.json", auto_map={})
    own = {"AutoTokenizer": [None, "own.OwnTokenizer"]}
    change(folder / "tokenizer_config.json", tokenizer_class="OwnTokenizer", auto_map=own)
    assert Chat.load(folder).decode([104, 105]) == "hi"  # transformers has one that fits
    assert not touched.exists()
    assert Chat.load(folder, trust_remote_code=True).decode([104, 105]) == "hi"
    assert touched.exists()


def test_with_the_flag_it_is_run_after_a_warning_and_a_resume_needs_the_flag_again(folder, touched, tmp_path, call):
    run, trusted = tmp_path / "run", "--trust-remote-code"
    ended = call("train", "grpo", "--model", folder, *SMALL, "--run-dir", run, trusted)
    assert ended.code == 0, ended.err
    assert f"TRUSTING REMOTE CODE: Python code that comes with {folder}" in ended.err + ended.out
    assert touched.exists()
    touched.unlink()
    assert "trust_remote_code: true" in (run / CONFIG).read_text()
    for command in (("train", "--resume", run, "--steps", 2), ("eval", run, "--tasks", "letters", "--limit", 1)):
        ended = call(*command)
        assert ended.code == 2
        assert "give --trust-remote-code" in ended.err
        ended = call(*command, trusted)
        assert ended.code == 0, ended.err
        assert "TRUSTING REMOTE CODE" in ended.err + ended.out
    assert call("report", run).code == 0


def test_code_is_part_of_what_a_base_is(folder):
    before = resolve(str(folder)).identity
    (folder / "own.py").write_text((folder / "own.py").read_text() + "\n# changed\n")
    assert resolve(str(folder)).identity != before
    assert not folders.lacks_code(folder)
    (folder / "own.py").unlink()
    assert folders.lacks_code(folder)
