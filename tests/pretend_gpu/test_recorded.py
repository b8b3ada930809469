"""A recorded GPU run, scheduled again: how many token steps, how many graphs.

`recorded_lengths.json` has the prompts and completions of three steps of Qwen2.5-Coder-0.5B on an H100 (commit d0e51dc,
2026-11-26), in tokens; four of them, which had reached the limit of 4,096, end where today's rule finds repetition. A
stand-in model samples the same lengths, since only they matter.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from lite_selfplay.config import ModelSection
from lite_selfplay.data import Sampling
from lite_selfplay.models.generation.generate import generate
from lite_selfplay.models.generation.layout import Layout
from lite_selfplay.models.generation.replay import Graphs
from lite_selfplay.models.generation.sampling import Decoding, GenerationRequest
from lite_selfplay.models.memory import CARDS, tokens_held
from lite_selfplay.models.shapes import shape_of
from tests.pretend_gpu.pretend import Card
from tests.pretend_gpu.recorded_graph import graphs_on_the_card

LENGTHS = json.loads(Path(__file__).with_name("recorded_lengths.json").read_text())
NUMBERS = {kind: 1 + sum(map(len, list(LENGTHS.values())[:i])) for i, kind in enumerate(LENGTHS)}
"""The number of the first row of each kind."""
END, CAP = 0, 4096


class Recorded(nn.Module):
    """Prompt and completion repeat the row's number, up to the recorded length."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.tensor(
            [-1, *(prompt + said - 2 for rows in LENGTHS.values() for prompt, said in rows)]
        ).cuda()
        self.keys = torch.zeros(1, 1, 1, 8).cuda()
        self.config: Any = LlamaConfig(num_hidden_layers=1, num_attention_heads=1, hidden_size=8)
        self.config._attn_implementation = "sdpa"

    def forward(self, input_ids: Any, position_ids: Any, past_key_values: Any, **_: Any) -> Any:
        new = self.keys.expand(len(input_ids), 1, input_ids.shape[1], 8)
        past_key_values.update(new, new, 0)
        token = input_ids[:, -1]
        following = torch.where(position_ids[:, -1] == self.last[token], END, token)
        return SimpleNamespace(logits=50.0 * nn.functional.one_hot(following, len(self.last))[:, None])


class Play:
    """Steps of a run on the pretend GPU: the token steps of each, and the graphs made so far."""

    def __init__(self, model: str, made: list[Any]):
        tokens = tokens_held(ModelSection(name=model, precision="4bit"), shape_of(model), 2, CARDS["h100"].memory)
        self.model, self.made, self.tokens = Recorded().eval(), made, 0
        self.decoding = Decoding([END], torch.device("cuda"), tokens, loop="graphs", flash=True, end_loops=False)

    def step(self, *kinds: str, seat: str = "seat", most: int = CAP, **sampling: Any) -> tuple[int, int]:
        """Sample each kind in a call of its own, with its completions of at most `most` tokens."""
        self.tokens = 0
        for kind in kinds:
            given = [(NUMBERS[kind] + i, *row) for i, row in enumerate(LENGTHS[kind]) if row[1] <= most]
            prompts, seeds = [[number] * prompt for number, prompt, _ in given], [[i] for i in range(len(given))]
            request = GenerationRequest(seat, prompts, 1, Sampling(max_tokens=CAP, **sampling), seeds)
            found = generate(self.model, request, dataclasses.replace(self.decoding, weights=seat))
            assert [len(out.token_ids) for (out,) in found] == [said for *_, said in given]
        return self.tokens, len(self.made)


@pytest.fixture
def play(rtx_4090: Card, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Play]:
    run = Graphs.run
    with graphs_on_the_card(rtx_4090) as made:
        play = Play(request.param, made)

        def counted(self: Any, *given: Any) -> None:
            play.tokens += 1
            run(self, *given)

        monkeypatch.setattr(Graphs, "run", counted)
        yield play


@pytest.mark.parametrize("play", ["Qwen2.5-0.5B"], indirect=True)
@pytest.mark.parametrize("first", [False, pytest.param(True, marks=pytest.mark.long)])
def test_steps_of_grpo_take_no_more_tokens_than_their_longest_row_and_record_once(play: Play, first: bool):
    if first:
        tokens, graphs = play.step("grpo 1 solver")
        assert tokens <= 1000  # 2,112 were recorded
    tokens, graphs = play.step("grpo 2 solver")
    assert tokens <= 1150  # 5,248
    assert graphs <= 14
    assert play.step("grpo 2 solver", most=180, temperature=0.6, top_p=0.95)[1] == graphs  # an evaluation of fewer rows


@pytest.mark.long
@pytest.mark.parametrize("play", ["Qwen2.5-0.5B"], indirect=True)
def test_a_step_of_agon_and_its_seats_turned_around(play: Play):
    tokens, graphs = play.step("agon 1 drafter", "agon 1 challenger")
    assert tokens <= 1700  # 5,952
    assert graphs <= 14
    assert play.step("agon 1 challenger", "agon 1 drafter") == (tokens, graphs)


@pytest.mark.parametrize("play", ["Qwen3-0.6B"], indirect=True)
def test_256_rows_of_qwen3_are_sampled_side_by_side_on_80_gb(play: Play):
    """A token takes 112 KiB: not all of 256 rows can have 4,096, and yet none has to wait."""
    assert shape_of("Qwen3-0.6B").layers * 2 * shape_of("Qwen3-0.6B").keys * 2 == 112 * 1024
    layout = Layout.of(256, 144, CAP, play.decoding.cache_tokens, mixed=True)
    assert (layout.rows, layout.longs) == (256, 16)
    assert layout.positions >= 768
    assert play.step("grpo 2 solver")[0] <= 1150
