"""Code of a user's own: how a place in a file is spelled, and what is refused."""

import py_compile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lite_selfplay.config.user_files import absolute, file_of, load, options_of, short_name
from lite_selfplay.errors import ConfigError

load_function = partial(load, flag="--reward", what="function")


@pytest.mark.parametrize(
    ("place", "file", "name", "options"),
    [
        ("mine.py:Duel", "mine.py", "Duel", ""),
        ("./a/mine.py:sums:last=3,seed=1", "a/mine.py", "sums", "last=3,seed=1"),
        ("mine.py", "mine.py", "mine", ""),
        ("mine.py:", "mine.py", "mine", ""),
        ("agon", None, "agon", ""),
        ("letters:named=10", None, "letters:named=10", ""),
        ("data/train.jsonl", None, "data/train.jsonl", ""),
    ],
)
def test_a_place_and_its_parts(place: str, file: str | None, name: str, options: str):
    assert (file_of(place), short_name(place), options_of(place)) == (file and Path(file), name, options)


def test_a_place_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "gsm8k").mkdir()  # which is not the task of that name
    assert absolute("./mine.py:sums:last=3") == f"{tmp_path}/mine.py:sums:last=3"
    assert (absolute("mine.py"), absolute("gsm8k", folder=True)) == (f"{tmp_path}/mine.py", f"{tmp_path}/gsm8k")
    assert [absolute(name) for name in ("other.py:sums", "agon", "gsm8k")] == ["other.py:sums", "agon", "gsm8k"]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "mine.py"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def test_a_function_of_a_file_which_may_define_dataclasses(write):
    # With annotations as texts, dataclasses look for the module by name.
    file = write(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Weights:\n    right: float = 2.0\n"
        "def mine(completions):\n    return [Weights().right * len(text) for text in completions]\n"
    )
    assert load_function(f"{file}:mine")(["two", "words"]) == [6, 10]


def test_the_source_is_run_and_never_a_compiled_file_of_it(write, monkeypatch):
    """A received folder may bring one of other code, and an edit of the same second and length keeps an old one."""
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    monkeypatch.setattr("sys.pycache_prefix", None)
    unasked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    planted = Path(py_compile.compile(str(write("mine = lambda: 'other'")), doraise=True, invalidation_mode=unasked))
    file = write("mine = lambda: 'read'")
    assert load_function(f"{file}:mine")() == "read"
    planted.unlink()
    assert load_function(f"{file}:mine")() == "read"
    assert not list(planted.parent.iterdir())


@pytest.mark.parametrize("spec", ["mine.py", "mine", "", ":mine", "mine.txt:mine", "mine:f", "mine.py.mine"])
def test_a_spelling_that_is_refused(spec):
    with pytest.raises(ConfigError, match=r"--reward takes FILE\.py:FUNCTION"):
        load_function(spec)


HOLDS = "import math\nlimit = 3\ndef mine(completions): ...\ndef also(completions): ...\ndef _hidden(): ...\n"


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        (HOLDS, "none.py:mine", r"no file at .*none\.py$"),
        (HOLDS, "mine.py:yours", r"mine\.py has no function 'yours'; it has also, mine$"),
        (HOLDS, "mine.py:limit", r"mine\.py has no function 'limit'; it has also, mine$"),
        (HOLDS, "mine.py:", r"mine\.py has no function ''; it has also, mine$"),
        ("x = 1", "mine.py:mine", "it has none$"),
        ("def mine(:", "mine.py:mine", r"mine\.py cannot be imported: SyntaxError"),
        ("import no_such", "mine.py:mine", "cannot be imported: ModuleNotFoundError: No module named 'no_such'"),
        ("1 / 0", "mine.py:mine", "cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_a_function_that_is_not_there(write, text: str, place: str, said: str):
    with pytest.raises(ConfigError, match=said) as caught:
        load_function(f"{write(text).parent}/{place}")
    assert caught.value.exit_code == 2
