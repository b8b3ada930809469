"""A base of a million parameters, pretrained in minutes on a CPU on worked problems: for experiments of many seeds.

The random `tiny` cannot reason, and runs of SmolLM2 take minutes each. This base reads a problem and writes its worked
solution, as often right as its training was long; runs on it take seconds. It learns the training side of a task alone,
in a chat's turns, without a game's prompts. Words in random order stand around half of the problems, and among them now
and then an attempt at the same problem, right or with a wrong step, or the solution of another one: so it finds the
problem in a prompt, and has seen what an attempt is. Half of the solutions end with the tags of an answer.
"""

import json
import math
import random
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from harness import say
from torch.nn.functional import cross_entropy

from lite_selfplay.data import Problem
from lite_selfplay.tasks import load_task

_TURNS = "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>{% endfor %}"
TEMPLATE = _TURNS + "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
PAD, BOS, EOS = "<pad>", "<s>", "</s>"
BATCHES_SORTED = 16
"""Batches whose rows are drawn together and sorted by length, so that little of a batch is padding."""
WORDS = """Reason step by step, then recap your solution in a few short sentences, and end with the final result alone
between <answer> and </answer>. Here is your own attempt, another solver's attempt, which may or may not be correct.
Check it step by step, correct what is wrong in it, and solve the problem."""


def main(
    folder: Annotated[Path, typer.Argument(help="Where the model is written; it must not exist.")],
    tasks: Annotated[
        str, typer.Option(help="Sums and differences (`arithmetic:ops=+-`), several separated by spaces.")
    ] = "arithmetic",
    steps: Annotated[int, typer.Option(min=1, help="Batches.")] = 2000,
    batch: Annotated[int, typer.Option(min=1, help="Problems a batch.")] = 128,
    width: Annotated[int, typer.Option(min=32, help="Hidden size, a multiple of 32.")] = 128,
    layers: Annotated[int, typer.Option(min=1)] = 4,
    lr: Annotated[float, typer.Option(min=0.0, help="Peak learning rate; cosine.")] = 2e-3,
    until: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after so many batches: its errors are those of a base that had begun to learn."),
    ] = None,
    seed: int = 0,
) -> None:
    """Pretrain a small Qwen3 on worked problems and write it as a folder that `--model` takes."""
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists")
    torch.manual_seed(seed)
    sources = [load_task(name, seed=seed).problems for name in tasks.split()]
    tokenizer = byte_pairs([solved(source[i]) for source in sources for i in range(2000)])
    model = small_qwen3(tokenizer, width, layers)
    parameters = sum(p.numel() for p in model.parameters())
    say(f"{parameters / 1e6:.2f}M parameters, {len(tokenizer)} tokens, {steps} batches of {batch}")
    facts = {"tasks": tasks, "steps": steps, "batch": batch, "width": width, "layers": layers, "lr": lr, "seed": seed}
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: _share_of_peak(i, steps))
    started, last = time.monotonic(), min(steps, until or steps)
    for step, (ids, labels) in zip(range(1, last + 1), batches(sources, tokenizer, batch, seed), strict=False):
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 100 == 0 or step == last:
            say(f"batch {step}: loss {loss.item():.3f}, {time.monotonic() - started:.0f} s")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "pretraining.json").write_text(
        json.dumps({**facts, "until": last, "parameters": parameters}, indent=2) + "\n"
    )


def byte_pairs(texts: list[str]) -> Any:
    """A tokenizer of byte pairs in which every digit is a token of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    special = [PAD, BOS, EOS, "<answer>", "</answer>"]
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=special[:3], initial_alphabet=letters)
    backend.train_from_iterator([*texts, *[WORDS] * 200], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=BOS, eos_token=EOS, pad_token=PAD, padding_side="left",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def small_qwen3(tokenizer: Any, width: int, layers: int) -> Any:
    """A Qwen3 with heads of 32 and freshly drawn weights."""
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=width // 32, num_key_value_heads=width // 32, head_dim=32, max_position_embeddings=4096,
        tie_word_embeddings=False, **ids,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(**ids)
    return model


def batches(sources: Any, tokenizer: Any, size: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless batches of rows of similar length: ids (rows x length), and labels with -100 at prompts and padding."""
    rng = random.Random(seed)
    while True:
        problems = []
        for _ in range(size * BATCHES_SORTED):
            source = rng.choice(sources)
            problems.append(source[rng.randrange(len(source))])
        rows = []
        for i, problem in enumerate(problems):
            prompt = tokenizer.encode(_prompt(problem, problems[i - 1], rng))
            answer = rng.choice(["", f" <answer>{problem.answer}</answer>"])
            rows.append((len(prompt), prompt + tokenizer.encode(f"{problem.extra['solution']}{answer}{EOS}")))
        rows.sort(key=lambda row: len(row[1]))
        for start in rng.sample(range(0, len(rows), size), BATCHES_SORTED):
            yield _padded(rows[start : start + size], tokenizer.pad_token_id)


def _padded(rows: Sequence[tuple[int, list[int]]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(row) for _, row in rows)
    ids = torch.full((len(rows), longest), pad)
    labels = torch.full((len(rows), longest), -100)
    for i, (start, row) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        labels[i, start : len(row)] = torch.tensor(row[start:])
    return ids, labels


def solved(problem: Problem) -> str:
    """A problem and its worked solution."""
    return f"{problem.text}\n{problem.extra['solution']}"


def with_a_wrong_step(solution: str, rng: random.Random) -> str:
    """A worked sum in which the result of one step is off by 1 to 10, and the steps after it go on from there."""
    steps = [re.findall(r"[+-]? ?\d+", step.split("=")[0]) for step in solution.rstrip(".").split(". ")]
    wrong, value, written = rng.randrange(len(steps)), int(steps[0][0]), []
    for place, (_, change) in enumerate(steps):
        result = value + int(change.replace(" ", ""))
        if place == wrong:
            result = max(0, result + rng.choice([-1, 1]) * rng.randint(1, 10))
        written.append(f"{value} {change} = {result}.")
        value = result
    return " ".join(written)


def _prompt(problem: Problem, other: Problem, rng: random.Random) -> str:
    words = WORDS.split()
    around = [" ".join(rng.choices(words, k=rng.randrange(50))) for _ in range(2)] if rng.random() < 0.5 else []
    if around and rng.random() < 0.8:
        around.append(_attempt(problem if rng.random() < 0.8 else other, rng))
    text = "\n\n".join([problem.text, *around])
    return f"{BOS}user\n{text}{EOS}{BOS}assistant\n"


def _attempt(problem: Problem, rng: random.Random) -> str:
    """The solution, right or with a wrong step, and in half of the cases as a game shows it: without its last value."""
    text = rng.choice([problem.extra["solution"], with_a_wrong_step(problem.extra["solution"], rng)])
    return rng.choice([text, f"```\n{re.sub(r'= -?[0-9]+[.]$', '= ?.', text)}\n```"])


def _share_of_peak(step: int, steps: int) -> float:
    warmup = max(1, steps // 20)
    return min(1.0, (step + 1) / warmup) * (0.05 + 0.475 * (1 + math.cos(math.pi * min(1.0, step / steps))))


if __name__ == "__main__":
    typer.run(main)
