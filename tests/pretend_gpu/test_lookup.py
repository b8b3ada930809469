"""Prompt lookup on the pretend GPU: the same tokens as without it, in fewer forward passes."""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay import RunConfig, train
from lite_selfplay.models.backends import transformers
from lite_selfplay.models.generation import fixed
from lite_selfplay.models.generation.generate import generate
from lite_selfplay.models.generation.lookup import Text
from lite_selfplay.models.generation.replay import Graphs
from lite_selfplay.models.generation.slots import CachePool
from lite_selfplay.runs.api import resume
from lite_selfplay.training.sampler_check import BOUNDS
from lite_selfplay.training.trainer import SelfPlayTrainer
from tests.gpu.test_runs import LESSONS, played
from tests.made import same_weights
from tests.made_runs import seat_weights
from tests.models.sampled import ENDS, asked, assert_alike, completions, letters, of_several_lengths
from tests.models.test_architectures import DENSE
from tests.models.test_architectures import folder as folder_of
from tests.models.watch import noted
from tests.pretend_gpu import counts
from tests.pretend_gpu.pretend import Card, operations
from tests.pretend_gpu.recorded_graph import graphs_on_the_card
from tests.varied_reward import varied


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    counts.deep_model(path, 2)
    return path


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every pass. A model in float32 is one in float64 here, with the flash kernel, so that texts are the
    same to the token."""
    made: list[int] = []
    step, flash = CachePool.step, operations.flash

    def counted(self: Any, model: Any, rows: int, *given: Any) -> None:
        made.append(rows)
        step(self, model, rows, *given)

    def exact(card: Any, *given: Any, **more: Any) -> Any:
        assert given[0].dtype == torch.float64
        monkeypatch.setattr(operations, "HALVES", (torch.float64,))
        return flash(card, *given, **more)

    monkeypatch.setattr(CachePool, "step", counted)
    monkeypatch.setattr(operations, "flash", exact)
    monkeypatch.setitem(transformers._DTYPES, "fp32", torch.float64)
    monkeypatch.setitem(BOUNDS, "float64", BOUNDS["float32"])
    monkeypatch.setattr(transformers.TransformersBackend, "autocast", lambda backend: contextlib.nullcontext())
    return made


def test_tokens_after_the_longest_known_ending_are_proposed():
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
def test_texts_are_the_same_to_the_token(rtx_4090: Card, folder: Path, passes: list[int], case: str):
    request = asked("A", of_several_lengths(9), 3, **{"max_tokens": 30, **CASES[case]})
    found, counted = [], []
    for lookup in (False, True):
        backend = counts.load(folder, "fp32", eos_ids=ENDS, decode=letters)
        passes.clear()
        options = {"flash": True, "lookup": lookup, "loop": "fixed", "end_loops": case == "loops"}
        found.append(completions(backend, request, **options))
        counted.append(list(passes))
    assert_alike(*reversed(found))
    assert min(counted[0]) < fixed.AHEAD
    assert (min(counted[1]) < fixed.AHEAD) == (case == "penalty")


def test_passes_are_recorded_and_a_repeated_call_gives_the_same_texts(rtx_4090: Card, folder: Path, passes: list[int]):
    request = asked("A", of_several_lengths(9), 3, max_tokens=30)
    backend = counts.load(folder, "fp32", eos_ids=ENDS)
    without = completions(backend, request, flash=True, lookup=True, loop="fixed")
    with graphs_on_the_card(rtx_4090) as made:
        first = completions(backend, request, loop="graphs")
        assert made
        assert completions(backend, request) == first == without


def test_passes_do_not_depend_on_what_was_sampled_before(rtx_4090: Card, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A resumed run has not sampled what came before, and must use the same kernels."""
    passes = noted(monkeypatch, Graphs, "run", lambda self, decoding, key, step: key[1:])
    few, many = (asked("A", of_several_lengths(end), n, max_tokens=30) for end, n in ((7, 1), (9, 4)))
    found = []
    for earlier in ([], [many]):
        backend = counts.load(folder)
        with graphs_on_the_card(rtx_4090):
            for request in earlier:
                completions(backend, request, lookup=True)
            passes.clear()
            completions(backend, few, lookup=True)
        found.append(list(passes))
    assert found[0] == found[1]
    assert any(rows == fixed.AHEAD for rows, *_ in found[0])


def test_sequences_outgrow_their_slots(
    rtx_4090: Card, folder: Path, passes: list[int], monkeypatch: pytest.MonkeyPatch
):
    request = asked("B", of_several_lengths(9), 1, max_tokens=130, temperature=0.0)
    found, moved, copy = [], [], CachePool.copy
    monkeypatch.setattr(CachePool, "copy", lambda self, *given: moved.append(given) or copy(self, *given))
    monkeypatch.setattr(fixed.Layout, "of", classmethod(lambda cls, *_, **__: cls(18, 128, 512, 2)))
    for lookup in (False, True):
        backend = counts.load(folder, "fp32")
        passes.clear()
        found.append(completions(backend, request, flash=True, lookup=lookup, loop="fixed", end_loops=False))
        assert len(moved) > 4  # two long slots, for six rows
        assert (fixed.AHEAD in passes) == lookup
        moved.clear()
    assert_alike(*reversed(found))


@pytest.mark.parametrize(
    "game", [game if game == "agon" else pytest.param(game, marks=pytest.mark.long) for game in LESSONS]
)
def test_every_game_has_the_same_texts(
    game: str, rtx_4090: Card, passes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Sizes and ends with which few sequences are left before the last has ended.
    problems, last = (8, 112) if game == "grpo" else (12, 122)

    def exact(model: Any, request: Any, decoding: Any) -> Any:
        """In float64, in which a GPU has neither flash attention nor lookup."""
        ends = [*decoding.eos_ids, *range(97, last)]
        given = dataclasses.replace(decoding, flash=True, lookup=lookup, loop="fixed", eos_ids=ends)
        return generate(model, request, given)

    monkeypatch.setattr(transformers, "generate", exact)
    found, counted = [], []
    for lookup in (False, True):
        passes.clear()
        folder = tmp_path / str(lookup)
        folder.mkdir()
        sizes = {"precision": "fp32", "problems_per_step": problems, "group_size": 4, "max_completion_tokens": 48}
        run = played(game, folder, 1, backend="transformers", **sizes)
        found.append([row["text"] for row in run.episodes()])
        counted.append(list(passes))
    assert found[0] == found[1]
    few = [sum(2 * rows <= fixed.AHEAD for rows in made) for made in counted]
    assert few[1] < few[0]


@pytest.mark.parametrize("kind", ["qwen3_5_text", "lfm2", "granitemoehybrid"])
def test_layers_with_a_state_do_not_keep_attention_from_flash_kernels(
    rtx_4090: Card, passes: list[int], tmp_path: Path, kind: str
):
    """The same texts; nothing is looked up."""
    folder_of(tmp_path, kind, **DENSE[kind])
    request = asked("A", of_several_lengths(7), 2, max_tokens=12)
    found = []
    for flash in (False, True):
        backend = counts.load(tmp_path, "fp32")
        with rtx_4090.watch() as seen:
            found.append(completions(backend, request, flash=flash, lookup=True, loop="fixed"))
        assert (seen.kernels["_flash_attention_forward"] > 0) == flash
    assert_alike(*found)


def test_a_run_uses_it_only_if_asked_to(rtx_4090: Card, folder: Path):
    backend = counts.load(folder)
    assert not backend._decoding.lookup
    section = counts.section("bf16").model_copy(update={"decoding": "lookup"})
    asked = type(backend)(folder, section, counts.SEATS, seed=0, eos_ids=ENDS)
    assert asked._decoding.lookup
    assert asked._decoding.loop == "graphs"


def test_a_run_continues_to_the_bit(
    rtx_4090: Card, agon: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def ends_early(model: Any, request: Any, decoding: Any) -> Any:
        return generate(model, request, dataclasses.replace(decoding, eos_ids=[*decoding.eos_ids, *range(97, 112)]))

    monkeypatch.setattr(transformers, "generate", ends_early)
    ahead = noted(monkeypatch, fixed._Batch, "run_ahead", lambda *given: None)
    passes = noted(monkeypatch, Graphs, "run", lambda self, decoding, key, step: key[1:])

    def between(self: Any, step: int, *given: Any) -> None:
        if step == 0:  # many rows, as of an evaluation, which a resumed run does not sample again
            self.backend.generate(asked("A", of_several_lengths(9), 4, max_tokens=2))
        passes.append(step)

    noted(monkeypatch, SelfPlayTrainer, "update", between)
    model = {"name": "tiny", "precision": "bf16", "decoding": "lookup"}
    sizes = {"problems_per_step": 1, "max_completion_tokens": 48, "steps": 2, "run": {"save_every": 1}}
    with graphs_on_the_card(rtx_4090):
        whole = train(RunConfig(**agon("whole", model=model, **sizes)), reward=varied)
    assert ahead
    shutil.copytree(whole.path, tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "step-2")
    second = passes[passes.index(0) + 1 : passes.index(1)]
    passes.clear()
    with graphs_on_the_card(rtx_4090):
        again = resume(tmp_path / "again", reward=varied)
    assert passes[: passes.index(1)][-len(second) :] == second
    assert any(rows == fixed.AHEAD for rows, *_ in second)
    texts, weights = [], []
    for run in (whole, again):
        texts.append([row["text"] for row in run.episodes()])
        last = run.path / "checkpoints" / "step-2"
        weights.append({f"{seat}/{name}": tensor for seat in "AB" for name, tensor in seat_weights(last, seat).items()})
    assert texts[0] == texts[1]
    assert same_weights(*weights)
