"""Logits that are not finite are reported, however they are sampled."""

import shutil

import pytest
import torch

from lite_selfplay.errors import TrainingError
from lite_selfplay.models.adapters import BASE
from tests.models.sampled import asked, completions
from tests.models.small import change_tensors

PROMPTS = [[10, 11, 12], [20]]


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_token_that_is_drawn_from_them_is_refused(make_backend, number):
    backend = make_backend("bf16")
    backend.adapters.model.get_base_model().lm_head.weight.data[77] = number  # of one token alone
    for filters in ({}, {"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}):
        with pytest.raises(TrainingError, match=r"logits of base are not finite, with weights in bf16, .*fp32"):
            completions(backend, asked(BASE, PROMPTS, 2, max_tokens=4, **filters))


def test_of_two_seats_the_one_that_has_them_is_named(make_backend):
    backend = make_backend()
    for name, weight in backend.adapters.parameters("B").items():
        if ".lora_B." in name:
            weight.data[0] = torch.nan
    assert completions(backend, asked("A", PROMPTS, 2, max_tokens=4))
    with pytest.raises(TrainingError, match=r"logits of B are not finite, with weights in fp32"):
        completions(backend, asked("B", PROMPTS, 2, max_tokens=4))


@pytest.mark.parametrize("command", [("eval",), ("train", "agon", "--steps", "1", "--model")])
def test_a_base_that_has_them_is_refused_at_load(tiny_path, tmp_path, call, command):
    folder = shutil.copytree(tiny_path, tmp_path / "base")
    change_tensors(folder, lambda tensors: tensors["model.layers.1.mlp.down_proj.weight"][0, 0].fill_(torch.nan))
    ended = call(*command, folder, "--tasks", "letters", "--precision", "fp32", "--max-completion-tokens", "8")
    assert (ended.code, "its own logits are not finite" in ended.err, "%" in ended.out) == (2, True, False), ended
