"""Looking ahead on the pretend card: to the token what is said without it, in fewer passes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay.models.generation import fixed
from lite_selfplay.models.generation.lookup import Text
from lite_selfplay.models.generation.places import Arena
from tests.card import counts
from tests.card.pretend import Card, operations
from tests.card.recorded_graph import graphs_on_the_card
from tests.models import spoken as sampled
from tests.models.spoken import ENDS, assert_alike, letters, of_several_lengths, spoken


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    counts.deep_model(path, 2)
    return path


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every pass. The flash kernel takes float32 as well here, in which the text is the same to the bit."""
    made: list[int] = []
    step, flash = Arena.step, operations.flash

    def counted(self: Any, model: Any, rows: int, *given: Any) -> None:
        made.append(rows)
        step(self, model, rows, *given)

    def exact(card: Any, *given: Any, **more: Any) -> Any:
        monkeypatch.setattr(operations, "HALVES", (torch.float32,))
        return flash(card, *given, **more)

    monkeypatch.setattr(Arena, "step", counted)
    monkeypatch.setattr(operations, "flash", exact)
    return made


def test_what_followed_the_longest_ending_last_is_proposed():
    text = Text([1, 2, 3, 9, 2, 3, 8, 1, 2, 3])
    assert text.following(3) == [9, 2, 3]  # after 1 2 3, though 2 3 came later
    text.ids += [5, 2, 3]
    assert text.following(4) == [5, 2, 3, 0]
    text.ids += [7]
    assert text.following(2) == [0, 0]


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "loops": {"temperature": 0.05, "max_tokens": 60},
    "top_p": {"top_p": 0.8, "temperature": 0.5},
    "penalty": {"repetition_penalty": 1.2},
    "stop": {"stop": ["ab"], "temperature": 0.3},
}


@pytest.mark.parametrize("case", CASES)
def test_looking_ahead_says_to_the_token_what_is_said_without_it(
    rtx_4090: Card, folder: Path, passes: list[int], case: str
):
    asked = {"max_tokens": 30, **CASES[case]}
    request = sampled.asked("A", of_several_lengths(9), 3, **asked)
    found, counted = [], []
    for lookup in (False, True):
        backend = counts.load(folder, "fp32", eos_ids=ENDS, decode=letters)
        passes.clear()
        options = {"flash": True, "lookup": lookup, "loop": "fixed", "end_loops": case == "loops"}
        found.append(spoken(backend, request, **options))
        counted.append(list(passes))
    assert_alike(*reversed(found))
    assert min(counted[0]) < fixed.PASS
    assert (min(counted[1]) < fixed.PASS) == (case == "penalty")


def test_passes_that_look_ahead_are_recorded_and_say_the_same_again(rtx_4090: Card, folder: Path, passes: list[int]):
    """A call that is made again, as after a resume, gives the same to the bit."""
    request = sampled.asked("A", of_several_lengths(9), 3, max_tokens=30)
    backend = counts.load(folder, "fp32", eos_ids=ENDS)
    without = spoken(backend, request, flash=True, lookup=True, loop="fixed")
    with graphs_on_the_card(rtx_4090) as made:
        first = spoken(backend, request, loop="graphs")
        assert made
        assert spoken(backend, request) == first == without


def test_rows_that_look_ahead_outgrow_their_places(
    rtx_4090: Card, folder: Path, passes: list[int], monkeypatch: pytest.MonkeyPatch
):
    request = sampled.asked("B", of_several_lengths(9), 1, max_tokens=130, temperature=0.0)
    found, moved, copy = [], [], Arena.copy
    monkeypatch.setattr(Arena, "copy", lambda self, *given: moved.append(given) or copy(self, *given))
    monkeypatch.setattr(fixed.Layout, "of", classmethod(lambda cls, *_, **__: cls(18, 128, 512, 2)))
    for lookup in (False, True):
        backend = counts.load(folder, "fp32")
        passes.clear()
        found.append(spoken(backend, request, flash=True, lookup=lookup, loop="fixed", end_loops=False))
        assert len(moved) > 4  # two long places, for six rows
        assert (fixed.PASS in passes) == lookup
        moved.clear()
    assert_alike(*reversed(found))


def test_a_run_looks_ahead_only_if_it_is_asked_to(rtx_4090: Card, folder: Path):
    backend = counts.load(folder)
    assert not backend._decoding.lookup
    section = counts.section("bf16").model_copy(update={"decoding": "lookup"})
    asked = type(backend)(folder, section, counts.SEATS, seed=0, eos_ids=ENDS)
    assert asked._decoding.lookup
    assert asked._decoding.loop == "graphs"
