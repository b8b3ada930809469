"""What a decoded token and an update launch on a card, and where the host waits: ours, transformers' and TRL's.

Counted on `tests/pretend_gpu`, which has no kernels of its own: the operations that are not views, of a random model in
the shape of Qwen3-0.6B. Every layer of a token launches the same, so two small depths give the count of
any other; the tests count one of all 28 layers. An update is counted at its own depth: what works on the list of all
weights launches a kernel for every 30 to 110 of them. From the counts follows a floor: what the launches alone would
take, one after the other, at a cost per launch that is assumed. Beside it stands another: reading the weights once for
every token, by a card's data sheet. Neither is a time, and nothing here was run on a card.
"""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import harness
import typer
from harness import say, show, show_table

sys.path.insert(0, str(Path(__file__).parents[1]))  # the pretend card is one of the tests' tools

LAUNCH_US = (4.0, 8.0)
"""What a launch costs, in microseconds: assumed."""
BASE = "Qwen3-0.6B"
CARDS = {"Tesla T4": 320e9, "RTX 4090": 1008e9, "H100 80 GB": 3350e9}
"""What they read in bytes per second, by their data sheets."""
DEPTHS = (2, 4)
ROWS, LOOK = 8, 16

Counts = tuple[float, float]
"""Kernels, and waits of the host."""
Count = Callable[[Any, Path], Counts]
"""Counts something on a card, with the model in a folder."""


def main(
    layers: Annotated[int, typer.Option(min=1, help="Layers of the model that is told of.")] = 28,
    precision: harness.Precision = "bf16",
    updates: Annotated[bool, typer.Option(help="Also count a training step's update.")] = True,
    json_path: harness.JsonPath = None,
) -> None:
    """Kernels and host waits of a token and of an update, ours and others', and the floor that follows from them."""
    import torch

    torch.set_num_threads(1)
    weights = _weight_bytes(precision)
    results: dict[str, Any] = {"benchmark": "launches", "machine": harness.machine(), "layers": layers}
    told = (("token", _tokens(precision), _carried_on), ("update", _updates(precision) if updates else {}, _counted))
    for kind, counts, at_depth in told:
        found = {}
        for name, count in counts.items():
            say(f"{kind}: {name}")
            found[name] = at_depth(count, layers)
        results[kind] = found
    show(f"Counted on a pretend card, of a model of {layers} layers in {precision}; nothing here was timed.")
    tokens = results["token"]
    show_table("A decoded token", ["", "kernels", "host waits"], _rows(tokens))
    show_table(
        f"Floors of a token of {BASE}, in milliseconds",
        ["", *(f"launches of {cost:g} us" for cost in LAUNCH_US), *(f"weights, {card}" for card in CARDS)],
        [_floor_row(name, kernels, weights) for name, (kernels, _) in tokens.items()],
    )
    show("A token that is replayed as a CUDA graph is one launch; what its kernels then cost is not known here.")
    if results["update"]:
        show_table("An update of a step", ["", "kernels", "host waits"], _rows(results["update"]))
    harness.save(json_path, results)


def _counted(count: Count, layers: int) -> Counts:
    """What a model of so many layers launches."""
    from tests.pretend_gpu import counts, pretend

    with pretend.card() as card, tempfile.TemporaryDirectory() as folder:
        counts.deep_model(Path(folder), layers)
        return count(card, Path(folder))


def _carried_on(count: Count, layers: int) -> Counts:
    """The same from two models that have fewer, where every layer launches as many."""
    few, more = (_counted(count, depth) for depth in DEPTHS)
    each = [(b - a) / (DEPTHS[1] - DEPTHS[0]) for a, b in zip(few, more, strict=True)]
    kernels, waits = (a + (layers - DEPTHS[0]) * per_layer for a, per_layer in zip(few, each, strict=True))
    return kernels, waits


# A token


def _tokens(precision: str) -> dict[str, Count]:
    def ours(seat: str, **decoding: Any) -> Count:
        def count(card: Any, folder: Path) -> Counts:
            from tests.pretend_gpu import counts

            backend = counts.load(folder, precision)
            backend._decoding = replace(backend._decoding, **decoding)
            found = counts.token(card, backend, seat, rows=ROWS)
            backend.close()  # what it changed in transformers would count for theirs
            return found.kernels, max(0.0, found.waits)

        return count

    return {
        "ours, seat": ours("A", loop="fixed"),
        "ours, base alone": ours("base", loop="fixed"),
        "ours, seat, decoding=plain": ours("A", loop="plain"),
        "transformers generate, seat": _theirs(precision, "A"),
        "transformers generate, base alone": _theirs(precision, "base"),
    }


def _theirs(precision: str, seat: str) -> Count:
    """transformers' own loop over the same base with PEFT's own layers and the model's own norms."""

    def count(card: Any, folder: Path) -> Counts:
        import torch

        model = _peft_model(folder, precision)
        ids = torch.tensor([[5, 6, 7, 8, 9]] * ROWS, device="cuda")

        def said(tokens: int) -> Counts:
            with card.watch() as seen, torch.inference_mode(), _autocast(precision):
                model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=tokens,
                    min_new_tokens=tokens,
                    do_sample=True,
                    top_k=0,
                    pad_token_id=0,
                )
            return seen.launches, seen.syncs

        with model.disable_adapter() if seat == "base" else contextlib.nullcontext():
            said(2)
            few, many = said(3), said(7)
        return (many[0] - few[0]) / 4, (many[1] - few[1]) / 4

    return count


def _peft_model(folder: Path, precision: str) -> Any:
    """The base with a seat's adapter, as PEFT computes it."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[precision]
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map={"": "cuda"})
    model = get_peft_model(
        base, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"), "A"
    )
    return model.eval()


def _autocast(precision: str) -> Any:
    import torch

    return torch.autocast("cuda", dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()


# An update


def _updates(precision: str) -> dict[str, Count]:
    def ours(card: Any, folder: Path) -> Counts:
        from tests.pretend_gpu import counts

        backend = counts.load(folder, precision)
        seen = counts.update(card, backend, folder)
        backend.close()
        return seen.launches, seen.syncs

    def trl(card: Any, folder: Path) -> Counts:
        return _trl_update(card, folder, precision)

    return {"ours, two seats, 16 completions": ours, "TRL's GRPOTrainer, one adapter, 16 completions": trl}


def _trl_update(card: Any, folder: Path, precision: str) -> Counts:
    """The second step of TRL's trainer from the reward on: loss, backward passes and optimizer."""
    import stock
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from lite_selfplay.models.chat_template import Chat

    stock._head_without_triton()  # its kernel needs a card: a few operations in its place
    watching, seen = contextlib.ExitStack(), []

    def reward(completions: Sequence[Any], **_: Any) -> list[float]:
        seen.append(watching.enter_context(card.watch()))
        return [float(i % 3) for i in range(len(completions))]

    class Ends(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            watching.close()

    trainer = GRPOTrainer(
        model=_peft_model(folder, precision).train(),
        reward_funcs=[reward],
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            max_steps=2,
            per_device_train_batch_size=stock.BATCH,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=24,
            beta=0.0,
            loss_type="grpo",
            disable_dropout=True,
            gradient_checkpointing=False,
            bf16=precision == "bf16",
            fp16=precision == "fp16",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["abcde", "fghijklmnopq"] * 2}),
        processing_class=Chat.load(folder).tokenizer,
        callbacks=[Ends()],
    )
    trainer.train()
    return seen[-1].launches, seen[-1].syncs


# What is printed


def _weight_bytes(precision: str) -> float:
    """What a token reads of the base: all linear layers and the head, once for all rows."""
    from lite_selfplay.models.shapes import shape_of

    shape = shape_of(BASE)
    each = {"fp32": 4}.get(precision, 2)
    return each * (shape.linear_parameters + shape.vocabulary * shape.hidden)


def _rows(found: dict[str, Counts]) -> list[list[str]]:
    return [[name, f"{kernels:,.0f}", f"{waits:,.2g}"] for name, (kernels, waits) in found.items()]


def _floor_row(name: str, kernels: float, weights: float) -> list[str]:
    """With the ratio of the first floor of launches to that of reading the weights."""
    floors = [1e3 * kernels * cost * 1e-6 for cost in LAUNCH_US]
    reads = [1e3 * weights / bandwidth for bandwidth in CARDS.values()]
    first = floors[0]
    return [
        name,
        *(f"{ms:.1f}" for ms in floors),
        *(f"{ms:.2f} (launches {first / ms:.1f} times that)" for ms in reads),
    ]


if __name__ == "__main__":
    harness.run(main)
