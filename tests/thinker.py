"""A base that thinks at length where its template lets it, and answers in one token where it does not."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from lite_selfplay.models.sources.tiny import build_tiny, byte_tokenizer

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>{% endif %}{% endif %}"
)
SURE = 14.0
"""The logit of a token that follows; that of every other is 0."""


def build_thinker(folder: Path, answers: Sequence[str] = ("<answer>1</answer>", "<answer>2</answer>")) -> None:
    """A base whose next token follows from the last one: after the template's closed block one of some answers, which
    end there; where it is to open the block itself, a thought that hardly ever ends."""
    build_tiny(folder)
    tokenizer = byte_tokenizer(TEMPLATE)
    tokenizer.add_tokens(["<think>", "</think>", " hm", *answers])
    tokenizer.save_pretrained(folder)
    think, close, hm, *said = tokenizer.convert_tokens_to_ids(["<think>", "</think>", " hm", *answers])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": len(tokenizer)}))
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()  # every block passes on what it reads
    width = weights["model.norm.weight"].numel()
    kinds = {think: 1, hm: 2, close: 3, **dict.fromkeys(said, 4)}
    follows = {0: [think], 1: [hm], 2: [hm], 3: said, 4: [tokenizer.eos_token_id]}
    embedding, head = torch.zeros(len(tokenizer), width), torch.zeros(len(tokenizer), width)
    for token in range(len(tokenizer)):
        embedding[token, kinds.get(token, 0)] = 1.0
    for kind, tokens in follows.items():
        head[tokens, kind] = SURE / width**0.5  # which the norm makes of the one number that is not 0
    weights |= {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
