"""Code of a user's own: what it raises becomes one error, what it changes in the process is put back."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from lite_selfplay.config import user_files
from lite_selfplay.config.user_files import guarded, load
from lite_selfplay.errors import RewardError, TaskError


class Beyond(BaseException):
    """An exception outside `Exception`."""


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(7), SystemExit(), Beyond("x"), GeneratorExit()])
def test_whatever_it_raises_is_one_error(error):
    expected = pytest.raises(TaskError, match=f"it failed with: {type(error).__name__}")
    with expected, guarded("it", TaskError, failed="failed with:"):
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RewardError("no")])
def test_an_interrupt_and_the_librarys_own_errors_pass(error):
    with pytest.raises(type(error)), guarded("it", TaskError):
        raise error


CHANGES: dict[str, Callable[[], object]] = {
    "the working folder": lambda: os.chdir("/"),
    "the environment": lambda: os.environ.update(OF_A_REWARD="1"),
    "the state of random": lambda: random.seed(3),
    "the state of numpy.random": lambda: numpy.random.seed(3),
    "the state of torch's random generator": lambda: torch.manual_seed(3),
    "torch's default type": lambda: torch.set_default_dtype(torch.float64),
    "torch's grad mode": lambda: torch.set_grad_enabled(False),
    "the number of torch's threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
}


def state() -> tuple[Any, ...]:
    """What a run relies on, as far as it can be compared."""
    numbers = (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    modes = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads())
    return os.getcwd(), dict(os.environ), *numbers, *modes


@pytest.mark.parametrize("what", CHANGES)
def test_what_it_changes_is_put_back_with_one_warning(what, monkeypatch):
    monkeypatch.setattr(user_files, "_warned", set())
    change, before, warned = CHANGES[what], state(), []

    def guarding():
        return guarded("the reward function f", RewardError, warned.append, judges=True)

    with guarding():
        random.Random(1).random()
    assert warned == []  # nothing was changed
    for _ in range(2):
        with guarding():
            change()
    assert state() == before
    (warning,) = warned
    assert what in warning
    assert "the reward function f" in warning

    def change_and_fail() -> None:
        change()
        raise ValueError("no")

    with pytest.raises(RewardError, match="f raised ValueError: no"), guarding():
        change_and_fail()
    assert state() == before


CODE = """import json

def deep(text):
    return json.loads(text)  # here

def f(text):
    return deep(text)
"""


def test_an_error_names_the_last_line_of_the_users_own_code(tmp_path: Path) -> None:
    """Not that of a library that it calls."""
    file = tmp_path / "mine.py"
    file.write_text(CODE)
    f = load(f"{file}:f", "--reward", "function")
    with pytest.raises(RewardError) as caught, guarded("f", RewardError):
        f("{")
    assert str(caught.value).endswith(f" ({file}, line 4: return json.loads(text)  # here)")
    assert isinstance(caught.value.__cause__, json.JSONDecodeError)
