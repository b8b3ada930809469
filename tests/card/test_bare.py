"""The bare command on a card: a base that thinks at length, problems of a hub, and what is chosen by itself."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from lite_selfplay import load_run
from lite_selfplay.models.sources.tiny import build_tiny, byte_tokenizer
from lite_selfplay.tasks import hub
from tests.card import pretend

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>{% endif %}{% endif %}"
)
ANSWERS = [f"<answer>{n}</answer>" for n in (1, 2)]
SURE = 14.0
"""The logit of a token that follows; that of every other is 0."""


def build_thinker(folder: Path) -> None:
    """A base whose next token follows from the last one: after the template's closed block one of two answers, which
    end there; where it is to open the block itself, a thought that hardly ever ends."""
    build_tiny(folder)
    tokenizer = byte_tokenizer(TEMPLATE)
    tokenizer.add_tokens(["<think>", "</think>", " hm", *ANSWERS])
    tokenizer.save_pretrained(folder)
    think, close, hm, *answers = tokenizer.convert_tokens_to_ids(["<think>", "</think>", " hm", *ANSWERS])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": len(tokenizer)}))
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()  # every block passes on what it reads
    width = weights["model.norm.weight"].numel()
    kinds = {think: 1, hm: 2, close: 3, **dict.fromkeys(answers, 4)}
    follows = {0: [think], 1: [hm], 2: [hm], 3: answers, 4: [tokenizer.eos_token_id]}
    embedding, head = torch.zeros(len(tokenizer), width), torch.zeros(len(tokenizer), width)
    for token in range(len(tokenizer)):
        embedding[token, kinds.get(token, 0)] = 1.0
    for kind, tokens in follows.items():
        head[tokens, kind] = SURE / width**0.5  # which the norm makes of the one number that is not 0
    weights |= {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def a_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub that answers, and gives GSM8K's two splits as rows of their columns."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *about: Any) -> None: ...

    def load_dataset(name: str, config: str, *, split: str, revision: str) -> datasets.Dataset:
        assert (name, config) == ("openai/gsm8k", "main")
        first = 0 if split == "train" else 500
        rows = [{"question": f"What is {n} less {n - 1 - n % 2}?", "answer": f"#### {1 + n % 2}"} for n in range(40)]
        return datasets.Dataset.from_list([{**row, "question": f"{first}: {row['question']}"} for row in rows])

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    hub._no_answer.cache_clear()
    yield
    server.shutdown()
    server.server_close()
    hub._no_answer.cache_clear()


@pytest.mark.parametrize(("card", "preset"), [(pretend.T4, "t4"), (pretend.RTX_4090, "consumer-24gb")])
def test_a_base_that_thinks_at_length(
    a_hub: None, tmp_path: Path, call: Callable[..., Any], card: pretend.Model, preset: str
):
    build_thinker(tmp_path / "thinker")
    few = ("--group-size", 4, "--max-completion-tokens", 48, "--eval-limit", 4, "--steps", 1)
    with pretend.card(card):
        ended = call("train", "grpo", "--model", "thinker", "--run-dir", "run", *few)
    assert ended.code == 0, ended.err
    run = load_run(tmp_path / "run")
    assert run.config.run.preset == preset
    assert (run.config.tasks.train, run.config.eval.tasks) == ("gsm8k", "gsm8k")
    assert run.config.model.thinking == "off"
    assert run.config.cold_start.enabled is False
    (row,) = run.metrics_rows()
    assert row["streams"]["solver"]["truncated"] < 0.2
    assert row["streams"]["solver"]["well_formed"] > 0.8
    assert "answers were cut off at 48 tokens; --set model.thinking=on changes that" in ended.out
    assert "Unsloth" in ended.out
    assert len(run.evaluations()) == 3
