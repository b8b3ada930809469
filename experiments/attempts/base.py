"""Make the base of the experiment: `python experiments/attempts/base.py OUT`.

A Qwen3 of a million parameters learns worked traces of `task.py` (`find`), alone and after reading a recap, in the
prompts of the games: whoever reads which numbers are ruled out goes on after them, whoever reads of one that fits tries
it first. The fixed sentences of the prompts are a token each, so that a prompt has ten to twenty tokens; where the
library's prompts change, the base has to be made anew. One thread computes: every call on a machine writes the same
weights.
"""

import json
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parent))
from task import CANDIDATES, PHRASES, Search, find, following, worked

from lite_selfplay.data import Problem
from lite_selfplay.games.agon.agon import challenge_prompt, own_attempt_prompt
from lite_selfplay.games.prompts import asked
from lite_selfplay.models.sources import sums
from lite_selfplay.models.sources.folders import PROVENANCE
from lite_selfplay.tasks.files import sha256_of

BATCHES, ROWS, RATE, SEED = 850, 64, 3e-3, 0
READING = 0.55
"""The share of rows that read an attempt."""
EMPTY, FALSE = 0.1, 0.25
"""Of the attempts: the shares that are not available, and that name a number which does not fit."""
TEMPLATE = sums._TEMPLATE.replace("<s>assistant\n{% endif %}", "<s>assistant\n<think>\n{% endif %}")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def reading_prompt(kind: str, problem: Problem, recap: str) -> str:
    """The prompt in which a game shows an attempt: a rival's, or one's own."""
    return challenge_prompt(problem, recap) if kind == "rival" else own_attempt_prompt(kind, problem, recap)


KINDS = ("rival", "rival", "self_refine", "self_cascade")


def row(problem: Problem, rng: random.Random) -> tuple[str, str]:
    """A prompt and the completion to learn."""
    search = Search.of(problem)
    if rng.random() >= READING:
        return asked(problem), worked(search, rng).completion
    recap, first = attempt(search, rng)
    return reading_prompt(rng.choice(KINDS), problem, recap), worked(search, rng, first).completion


def attempt(search: Search, rng: random.Random) -> tuple[str, int | None]:
    """The recap that is read, and where its reader begins."""
    trace, draw = worked(search, rng), rng.random()
    if draw < EMPTY:
        return "", None
    if draw < EMPTY + FALSE:
        other = rng.choice(CANDIDATES)
        return search.told(other), other
    return trace.recap, trace.last if trace.found else following(trace.last)


def fixed_sentences(problem: Problem) -> list[str]:
    """What stands around the problem and the recap in the prompts."""
    prompts = [asked(problem), *(reading_prompt(kind, problem, recap) for kind in KINDS for recap in ("RECAP", ""))]
    pieces = [piece for p in prompts for part in p.split(problem.text) for piece in part.split("RECAP") if piece]
    return list(dict.fromkeys(pieces))


def tokenizer_of(problems: Sequence[Problem]) -> Any:
    """Byte pairs, in which a number below 100 is a token, as each tag and each fixed sentence of the prompts is."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r"\d{1,2}|[A-Za-z]+|[^A-Za-z\d]"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=[sums._PAD, sums._BOS, sums._EOS], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([*map(str, range(100)), "user", "assistant", "none"] * 3, trainer)
    whole = (*TAGS, *PHRASES, *fixed_sentences(problems[0]))
    backend.add_tokens([AddedToken(text, normalized=False) for text in whole])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=sums._BOS, eos_token=sums._EOS, pad_token=sums._PAD, padding_side="left",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def batches(problems: Sequence[Problem], tokenizer: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless batches: ids (rows x length), and labels with -100 at prompts and padding."""
    rng = random.Random(SEED)
    while True:
        rows = []
        for _ in range(ROWS):
            prompt, completion = row(problems[rng.randrange(len(problems))], rng)
            ids = tokenizer.encode(f"{sums._BOS}user\n{prompt}{sums._EOS}{sums._BOS}assistant\n<think>\n")
            rows.append((len(ids), ids + tokenizer.encode(completion + sums._EOS)))
        yield sums._padded(rows, tokenizer.pad_token_id)


def pretrain(folder: Path, count: int = BATCHES) -> None:
    """Write the base into a folder, with a `provenance.json`."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    problems = find(SEED).problems
    tokenizer = tokenizer_of(problems)
    model = sums._qwen3(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min(1.0, (i + 1) / 50) * 0.5 * (1 + math.cos(math.pi * i / count))
    )
    began = time.monotonic()
    for step, (ids, labels) in zip(range(1, count + 1), batches(problems, tokenizer), strict=False):
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        learned = labels[:, 1:] != -100
        loss = cross_entropy(logits[learned], labels[:, 1:][learned])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 0 or step == count:
            print(f"batch {step} of {count}: loss {loss.item():.3f}, {time.monotonic() - began:.0f} s", flush=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    facts = {
        "source": f"pretrained on worked traces of find: {count} batches of {ROWS}",
        "sha256": sha256_of(folder / "model.safetensors"),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    (folder / PROVENANCE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    pretrain(Path(sys.argv[1]))
