"""What a decoded token and an update launch on a card, and where the host waits: ours, transformers' and TRL's.

Counted on `tests/pretend_gpu`, which has no kernels of its own: the operations that are not views, of a random model in
the shape of Qwen3-0.6B. Every layer of a token launches the same, so two small depths give the count of
any other; the tests count one of all 28 layers. An update is counted at its own depth: what works on the list of all
weights launches a kernel for every 30 to 110 of them. From the counts follows a floor: what the launches alone would
take, one after the other, at a cost per launch that is assumed. Beside it stands another: reading the weights once for
every token, by a card's data sheet. Neither is a time, and nothing here was run on a card.

`--parts` counts, for a model as wide as Qwen2.5-0.5B, an update of completions as long as those of a recorded step, and
a token, by part. The bytes are those of all operations' arguments and results: the least that their kernels move.
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
WIDE = {"hidden_size": 896, "intermediate_size": 4864, "vocab_size": 151_936}
WIDE |= {"num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 64}
WIDE_LAYERS, GROUPS = 24, 2
PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "linear"}

Counts = tuple[float, float]
"""Kernels, and waits of the host."""
Count = Callable[[Any, Path], Counts]
"""Counts something on a card, with the model in a folder."""


def main(
    layers: Annotated[int, typer.Option(min=1, help="Layers of the model that is told of.")] = 28,
    precision: harness.Precision = "bf16",
    updates: Annotated[bool, typer.Option(help="Also count a training step's update.")] = True,
    parts: Annotated[bool, typer.Option("--parts", help="Only a wide model's update and token, by part.")] = False,
    json_path: harness.JsonPath = None,
) -> None:
    """Kernels and host waits of a token and of an update, ours and others', and the floor that follows from them."""
    import torch

    torch.set_num_threads(1)
    if parts:
        harness.save(json_path, {"benchmark": "launches", "machine": harness.machine(), "parts": _parts(precision)})
        return
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


# By part


def _parts(precision: str) -> dict[str, Any]:
    """Kernels, waits and bytes of an update of recorded lengths and of a token, from models of one and two layers."""
    from trl import GRPOTrainer  # noqa: F401 - before there is a pretend card

    from tests.pretend_gpu import counts, pretend

    h100 = pretend.Model("NVIDIA H100 80GB HBM3", 79 * pretend.GIB, (9, 0), 132)
    seen: dict[str, list[Any]] = {"An update of a step": [], f"A decoded token of {ROWS} rows": []}
    update, token = seen.values()
    for layers in (1, 2):
        say(f"{layers} of {WIDE_LAYERS} layers")
        with pretend.card(h100) as card, tempfile.TemporaryDirectory() as folder:
            counts.deep_model(Path(folder), layers, "Qwen2", WIDE)
            backend = counts.load(Path(folder), precision)
            found = counts.recorded_update(card, backend, Path(folder), WIDE["vocab_size"], GROUPS)
            update.append((_by_part(found), found.syncs))
            few, many = (counts.sampled(card, backend, "A", tokens, rows=ROWS) for tokens in (3, 7))
            of_few, of_many = _by_part(few), _by_part(many)
            difference = {
                part: [(a - b) / 4 for a, b in zip(of_many[part], of_few[part], strict=True)] for part in of_few
            }
            token.append((difference, (many.syncs - few.syncs) / 4))
            backend.close()
    show(f"Counted on a pretend H100, of a model as wide as Qwen2.5-0.5B of {WIDE_LAYERS} layers in {precision}.")
    results: dict[str, Any] = {}
    for name, ((one, _), (two, waits)) in seen.items():
        whole = {
            part: [b + (WIDE_LAYERS - 2) * (b - a) for a, b in zip(one[part], two[part], strict=True)] for part in two
        }
        whole["in all"] = [sum(column) for column in zip(*whole.values(), strict=True)]
        results[name] = {"waits": waits, "parts": whole}
        rows = [[part, f"{kernels:,.0f}", f"{size / 1e9:,.2f}"] for part, (kernels, size) in whole.items()]
        show_table(f"{name}, with {waits:g} host waits", ["", "kernels", "GB"], rows)
    return results


def _by_part(seen: Any) -> dict[str, list[float]]:
    """Operations, and bytes of their arguments and results, by the part of the model they belong to."""
    found = {
        part: [0.0, 0.0] for part in ("head", "products", "adapters", "attention", "optimizer", "element by element")
    }
    for (name, shapes), size in zip(seen.operations, seen.sizes, strict=True):
        lengths = {length for shape in shapes for length in shape}
        if WIDE["vocab_size"] in lengths:
            part = "head"
        elif "attention" in name:
            part = "attention"
        elif name.startswith(("_foreach", "_fused_adam")):
            part = "optimizer"
        elif name in PRODUCTS:
            part = "adapters" if lengths & {16, 32, 48} else "products"
        else:
            part = "element by element"
        found[part][0] += 1
        found[part][1] += size
    return found


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
