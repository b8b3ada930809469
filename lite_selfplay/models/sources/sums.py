"""`sums-1m`: a base of a million parameters, pretrained on worked sums in minutes, for experiments of many seeds.

The random `tiny` cannot reason, and runs of SmolLM2 take minutes each. This base reads a sum of four terms and writes
its worked solution, right about every other time; a run on it takes a minute. It learns a task's training problems in a
chat's turns, without a game's prompts. Half of the problems are surrounded by random words and sometimes by an attempt
at the same problem, right or with a wrong step, or the solution of another one: so it learns to find the problem in a
prompt, and has seen attempts. Half of the solutions end with answer tags. If a prompt contains only words, the reply is
a problem in one of the forms that games ask for, because a base that has never posed a problem could not play them.
"""

import json
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from lite_selfplay.data import Problem
from lite_selfplay.models.sources.cache import build_once, cache_dir
from lite_selfplay.models.sources.folders import PROVENANCE, provenance
from lite_selfplay.tasks import load_task
from lite_selfplay.tasks.files import sha256_of
from lite_selfplay.tasks.slips import with_a_slip

TASKS = "arithmetic:terms=4,max=30,last=9"
BATCHES, SCHEDULED = 525, 1400
"""It stops long before the schedule's end, so that it makes the errors of a base that has begun to learn."""

_VERSION = 4  # Increased with every change of the weights, the tokenizer or the template.
_SEED, _ROWS, _LR = 0, 64, 2e-3
_WIDTH, _LAYERS = 128, 4
_SORTED = 16  # Batches whose rows are drawn together and sorted by length, so that little of a batch is padding.
_MEASURED = 200
_TURNS = "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>{% endfor %}"
_TEMPLATE = _TURNS + "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
_PAD, _BOS, _EOS = "<pad>", "<s>", "</s>"
_WORDS = """Reason step by step, then recap your solution in a few short sentences, and end with the final result alone
between <answer> and </answer>. Here is your own attempt, another solver's attempt, which may or may not be correct.
Check it step by step, correct what is wrong in it, and solve the problem.""".split()
_POSING = 0.25  # The share of prompts that hold no problem.
_POSING_WORDS = """Write one arithmetic problem with whole numbers of up to three digits. Choose numbers that look
random and differ from each other. Give the problem alone, without its solution. It must make sense, say everything that
is needed to solve it, and have a single correct final answer. Reply with the text of the problem alone: no solution, no
answer, no remarks. You set problems for a math competition. Work out one new and demanding problem: try out ideas
first, in scratch work that nobody else will read, and make sure that the problem can be understood by itself. Then give
the finished problem between <question> and </question>, and after it its final answer as \\boxed{...}. Put the problem
between <problem> and </problem>. Then, between <answer> and </answer>, solve it step by step, and end with the result
in \\boxed{}.""".split()
_POSED = (
    "{0.text}",
    "<question>{0.text}</question>\n\\boxed{{{0.answer}}}",
    "<question>{0.text}</question>",
    "<problem>{0.text}</problem>\n<answer>{0.extra[solution]} \\boxed{{{0.answer}}}</answer>",
)


def cached(say: Callable[[str], None]) -> tuple[Path, str]:
    """The folder of `sums-1m` in the user's cache, pretrained on first use, and its identity."""
    path = build_once(cache_dir() / f"sums-1m-{_VERSION}", lambda folder: pretrain(folder, say=say), say=say)
    return path, f"sums-1m:{provenance(path)['sha256']}"


def pretrain(folder: Path, *, batches: int = BATCHES, say: Callable[[str], None] = lambda sentence: None) -> None:
    """Write the model into an empty folder, with a `provenance.json` of its data, the SHA-256 of its weights and its
    accuracy (greedy answers to 200 held-out sums).

    Uses one thread, so that every call on a machine writes the same weights; another processor may round differently.
    """
    threads = torch.get_num_threads()
    say(f"pretraining sums-1m on {batches} batches of worked sums, once: ten minutes on one core")
    try:
        torch.set_num_threads(1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            source = load_task(TASKS, seed=_SEED).problems
            tokenizer = _byte_pairs([f"{p.text}\n{p.extra['solution']}" for p in map(source.__getitem__, range(2000))])
            model = _qwen3(tokenizer)
            _learn(model, _batches(source, tokenizer), batches, say)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        facts = {
            "source": f"pretrained on {TASKS}: {batches} batches of {_ROWS}, the rate that of {SCHEDULED}",
            "sha256": sha256_of(folder / "model.safetensors"),
            "accuracy": _accuracy(model.eval(), tokenizer),
            "parameters": sum(p.numel() for p in model.parameters()),
        }
    finally:
        torch.set_num_threads(threads)
    (folder / PROVENANCE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _learn(model: Any, rows: Iterator[tuple[Any, Any]], batches: int, say: Callable[[str], None]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LR, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _share_of_peak)
    for step, (ids, labels) in zip(range(1, batches + 1), rows, strict=False):
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 0 or step == batches:
            say(f"pretraining sums-1m: batch {step} of {batches}, loss {loss.item():.3f}")


def _share_of_peak(step: int) -> float:
    warmup = SCHEDULED // 20
    return min(1.0, (step + 1) / warmup) * (0.05 + 0.475 * (1 + math.cos(math.pi * min(1.0, step / SCHEDULED))))


def _accuracy(model: Any, tokenizer: Any) -> float:
    """The share of held-out sums whose last step reaches the answer."""
    source = load_task(TASKS, seed=_SEED, held_out=True).problems
    problems = [source[i] for i in range(_MEASURED)]
    prompts = [tokenizer.encode(_turn(problem.text)) for problem in problems]
    longest = max(map(len, prompts))
    ids = torch.tensor([[tokenizer.pad_token_id] * (longest - len(row)) + row for row in prompts])
    with torch.no_grad():
        written = model.generate(
            input_ids=ids, attention_mask=ids != tokenizer.pad_token_id, max_new_tokens=56, do_sample=False
        )
    replies = tokenizer.batch_decode(written[:, longest:], skip_special_tokens=True)
    found = [re.findall(r"= (-?\d+)\.", reply) for reply in replies]
    return sum(steps[-1:] == [problem.answer] for steps, problem in zip(found, problems, strict=True)) / _MEASURED


def _byte_pairs(texts: list[str]) -> Any:
    """A byte-pair tokenizer in which every digit is a token."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=[_PAD, _BOS, _EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([*texts, *[" ".join([*_WORDS, *_POSING_WORDS])] * 200], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=_BOS, eos_token=_EOS, pad_token=_PAD, padding_side="left",
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def _qwen3(tokenizer: Any) -> Any:
    """A Qwen3 with heads of 32 and freshly drawn weights."""
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=_WIDTH, intermediate_size=3 * _WIDTH, num_hidden_layers=_LAYERS,
        num_attention_heads=_WIDTH // 32, num_key_value_heads=_WIDTH // 32, head_dim=32, max_position_embeddings=4096,
        tie_word_embeddings=False, **ids,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(**ids)
    return model


def _batches(source: Any, tokenizer: Any) -> Iterator[tuple[Any, Any]]:
    """Endless batches of rows of similar length: ids (rows x length), and labels with -100 at prompts and padding."""
    rng = random.Random(_SEED)
    while True:
        problems = [source[rng.randrange(len(source))] for _ in range(_ROWS * _SORTED)]
        rows = []
        for i, problem in enumerate(problems):
            if rng.random() < _POSING:
                words = rng.choices(_POSING_WORDS, k=rng.randrange(5, 80))
                asked, reply = " ".join(words), rng.choice(_POSED).format(problem)
            else:
                asked = _prompt(problem, problems[i - 1], rng)
                reply = f"{problem.extra['solution']}{rng.choice(['', f' <answer>{problem.answer}</answer>'])}"
            prompt = tokenizer.encode(_turn(asked))
            rows.append((len(prompt), prompt + tokenizer.encode(f"{reply}{_EOS}")))
        rows.sort(key=lambda row: len(row[1]))
        for start in rng.sample(range(0, len(rows), _ROWS), _SORTED):
            yield _padded(rows[start : start + _ROWS], tokenizer.pad_token_id)


def _padded(rows: Sequence[tuple[int, list[int]]], pad: int) -> tuple[Any, Any]:
    ids = [torch.tensor(row) for _, row in rows]
    labels = [torch.tensor([-100] * start + row[start:]) for start, row in rows]
    return pad_sequence(ids, True, pad), pad_sequence(labels, True, -100)


def _prompt(problem: Problem, other: Problem, rng: random.Random) -> str:
    around = [" ".join(rng.choices(_WORDS, k=rng.randrange(50))) for _ in range(2)] if rng.random() < 0.5 else []
    if around and rng.random() < 0.8:
        around.append(_attempt(problem if rng.random() < 0.8 else other, rng))
    return "\n\n".join([problem.text, *around])


def _turn(text: str) -> str:
    return f"{_BOS}user\n{text}{_EOS}{_BOS}assistant\n"


def _attempt(problem: Problem, rng: random.Random) -> str:
    """A problem's solution, right or with a wrong step, and half of the time without its last value, as a game shows
    it."""
    text = rng.choice([problem.extra["solution"], with_a_slip(problem.extra["solution"], rng)])
    return rng.choice([text, f"```\n{re.sub(r'= -?[0-9]+[.]$', '= ?.', text)}\n```"])
