"""How near decoding and updates come to this machine's own matrix products.

A decoded token and an update are mostly products of known shapes: each linear layer of the base with as many rows as
are decoded, or as many tokens as a microbatch holds. Those products alone, over weights that are expanded already, are
the floor; the share of the floor in what decoding or an update takes is what the machine's arithmetic is used for. The
rest is attention, norms, sampling, adapters, expanding 4-bit weights, and Python.

Floor and work take turns, so that whatever else the machine does meets both; so does decoding through plain layers,
whose weights are not packed (`lite_selfplay/models/stacked.py`). Shapes: `R` rows, `N` tokens.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any
from unittest import mock

import harness
import typer
from harness import machine, ratio, say, show, show_table, spread

WITHOUT_BF16 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
"""What lets torch and its libraries use AVX2 alone, as on a laptop; weights are then multiplied in float32."""
GOALS = {"decoding": 0.4, "update": 0.6}
BACKWARD = 2
"""Products of a frozen layer in an update: forwards, and the gradient of its input."""

OPERATIONS = 12
"""How many operations a profile lists."""

Result = dict[str, Any]


def main(
    model: harness.Model = "smollm2-135m",
    rows: Annotated[int, typer.Option(min=1, help="Rows that are decoded together.")] = 64,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of each completion.")] = 24,
    group_size: Annotated[int, typer.Option(min=1, help="Completions of a prompt.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of floor and work.")] = 3,
    precision: harness.Precision = "4bit",
    compute_dtype: harness.ComputeDtype = "auto",
    without_bf16: Annotated[bool, typer.Option(help="As on a machine with AVX2 and nothing newer.")] = False,
    profile: Annotated[bool, typer.Option(help="Also list the operations that take most of the time.")] = False,
    json_path: harness.JsonPath = None,
) -> None:
    """The share of matrix products in a decoded token and in an update, against those products alone."""
    harness.require(model, precision, compute_dtype)
    if without_bf16 and os.environ.keys() & WITHOUT_BF16.keys() != WITHOUT_BF16.keys():
        _again(WITHOUT_BF16)  # they are read when torch is imported
    results: Result = {"benchmark": "products", "machine": machine()}
    say(f"loading {model}")
    work = _Work(model, precision, "fp32" if without_bf16 else compute_dtype, rows, tokens, group_size)
    results["machine"]["contender"] = work.about()
    show(harness.machine_line(results["machine"], results["machine"]["contender"]))
    for name, run, products in (("decoding", work.decode, work.decoding), ("update", work.update, work.updating)):
        say(f"{name}: to warm up")
        run()
        floor_s, work_s, plain_s = [], [], []
        for number in range(rounds):
            floor_s.append(_timed(work.floor(products)))
            work_s.append(_timed(run))
            if name == "decoding":
                plain_s.append(_timed(work.decode_unpacked))
            say(f"{name}, turn {number + 1} of {rounds}: {floor_s[-1]:.2f} s of products, {work_s[-1]:.2f} s in all")
        flop = sum(2 * n * width * height for n, (width, height) in products)
        results[name] = {
            "floor_s": floor_s,
            "work_s": work_s,
            "gflop": flop / 1e9,
            "gflop_a_second": flop / 1e9 / statistics.median(floor_s),
            "share": ratio(floor_s, work_s),
        }
        if plain_s:
            results[name] |= {"plain_s": plain_s, "plain": ratio(plain_s, work_s)}
        if profile:
            results[name]["operations"] = _profiled(run)
    _show(results, model, rows, tokens)
    harness.save(json_path, results)


def _again(environment: dict[str, str]) -> None:
    """This command in a process of its own, with more in its environment."""
    done = subprocess.run([sys.executable, *sys.argv], env={**os.environ, **environment})
    raise typer.Exit(done.returncode)


def _timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _profiled(run: Callable[[], object]) -> list[tuple[str, int, float, float]]:
    """The operations that take most of the time by themselves: name, calls, seconds and share of all."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    with profiled(activities=[ProfilerActivity.CPU]) as found:
        run()
    events = found.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    largest = sorted(events, key=lambda event: -event.self_cpu_time_total)[:OPERATIONS]
    return [(e.key, e.count, e.self_cpu_time_total / 1e6, e.self_cpu_time_total / total) for e in largest]


class _Work:
    """A base with one seat, the rows it decodes and is updated on, and the products in that.

    `decoding` and `updating` list (rows of the input, shape of the weight) of each product, one after the other.
    """

    def __init__(self, model: str, precision: str, dtype: str, rows: int, tokens: int, group_size: int):
        import torch

        from lite_selfplay.config import ModelSection, RunSection, SeatConfig
        from lite_selfplay.data import Sampling
        from lite_selfplay.games.prompts import fill
        from lite_selfplay.models.backends import choose_backend
        from lite_selfplay.models.chat_template import Chat
        from lite_selfplay.models.generation.sampling import GenerationRequest
        from lite_selfplay.models.logprobs.batch import cut
        from lite_selfplay.models.sources import resolve
        from lite_selfplay.tasks import load_task

        found = resolve(model)
        chat = Chat.load(found.path)
        self._torch = torch
        self.backend: Any = choose_backend(
            found.path,
            ModelSection(name=model, precision=precision, compute_dtype=dtype),
            {"A": SeatConfig(init="gaussian", init_std=1e-3)},
            seed=0,
            eos_ids=[2**30],  # no token ends a completion
        )
        problems = load_task("arithmetic").problems
        count = -(-rows // group_size)
        prompts = [chat.encode(fill("solver", problem=problems[i].text)).ids for i in range(count)]
        seeds = [[1000 * p + k for k in range(group_size)] for p in range(count)]
        self._request = GenerationRequest("A", prompts, group_size, Sampling(max_tokens=tokens), seeds)
        done = self.backend.generate(self._request)
        pairs = [(prompt, out.token_ids) for prompt, group in zip(prompts, done, strict=True) for out in group]
        budget = self.backend.tokens_at_once(RunSection())
        self._batches = [batch for _, batch in cut(pairs, lambda pair: pair, budget, self.backend.way())]
        layers, head = self._shapes()
        self.decoding = [(len(pairs), shape) for _ in range(tokens) for shape in (*layers, head)]
        self.decoding += [(sum(map(len, prompts)), shape) for shape in layers]
        self.updating = []
        for batch in self._batches:
            read = sum(prefix.length for prefix in batch.prefixes) + sum(map(len, batch.own))
            self.updating += [(read, shape) for shape in layers] * BACKWARD
            self.updating += [(len(batch.completion_ids), head)] * BACKWARD

    def _shapes(self) -> tuple[list[tuple[int, int]], tuple[int, int]]:
        """(in, out) of every linear layer of the base, and of its head."""
        base = self.backend.adapters.model.get_base_model()
        head = base.get_output_embeddings().weight
        layers = [
            (m.in_features, m.out_features)
            for name, m in base.named_modules()
            if hasattr(m, "in_features")
            and not hasattr(m, "base_layer")  # PEFT's, around the layer itself
            and "lora_" not in name
            and m is not base.get_output_embeddings()
        ]
        return layers, (head.shape[1], head.shape[0])

    def about(self) -> Result:
        torch = self._torch
        dtype = str(self.backend.compute_dtype).removeprefix("torch.")
        return {"threads": torch.get_num_threads(), "device": torch.backends.cpu.get_cpu_capability(), "dtype": dtype}

    def decode(self) -> None:
        self.backend.generate(self._request)

    def decode_unpacked(self) -> None:
        with mock.patch("lite_selfplay.models.adapters.packed", return_value=None):
            self.decode()

    def update(self) -> None:
        self.backend.adapters.activate("A")
        with self.backend.updating():
            for batch in self._batches:
                logprobs, _ = self.backend.token_logprobs(batch)
                logprobs.sum().backward()
        for parameter in self.backend.adapters.parameters("A").values():
            parameter.grad = None

    def floor(self, products: Sequence[tuple[int, tuple[int, int]]]) -> Callable[[], None]:
        """The products alone. Weights are distinct, so that none stays in a cache that a base's would not fit."""
        torch, dtype = self._torch, self.backend.compute_dtype
        inputs = {(n, width): torch.randn(n, width).to(dtype) for n, (width, _) in products}
        kinds = list(dict.fromkeys(shape for _, shape in products))
        count = {shape: min(30, sum(other == shape for _, other in products)) for shape in kinds}
        weights = {shape: [torch.randn(shape[1], shape[0]).to(dtype) for _ in range(count[shape])] for shape in kinds}

        def run() -> None:
            with torch.no_grad():
                for i, (n, shape) in enumerate(products):
                    of_shape = weights[shape]
                    torch.nn.functional.linear(inputs[n, shape[0]], of_shape[i % len(of_shape)])

        return run


def _show(results: Result, model: str, rows: int, tokens: int) -> None:
    lines = []
    for name, goal in GOALS.items():
        one = results[name]
        floor, whole = (f"{spread(one[key])['median']:.2f}" for key in ("floor_s", "work_s"))
        share = f"{one['share']['median']:.0%} ({one['share']['lowest']:.0%} to {one['share']['highest']:.0%})"
        lines.append(
            (name, f"{one['gflop']:,.0f}", f"{one['gflop_a_second']:,.0f}", floor, whole, share, f"{goal:.0%}")
        )
    plain = results["decoding"]["plain"]
    times = f"{plain['median']:.2f} times ({plain['lowest']:.2f} to {plain['highest']:.2f})"
    show(f"decoding through plain layers takes {times} as long")
    columns = ("", "GFLOP of products", "GFLOP/s alone", "alone, s", "in all, s", "share", "goal")
    show_table(f"{model}: {rows} rows of {tokens} tokens, and an update on them", columns, lines)
    for name in GOALS:
        found = results[name].get("operations", ())
        lines = [(key, f"{calls:,}", f"{seconds:.2f}", f"{share:.0%}") for key, calls, seconds, share in found]
        if lines:
            show_table(f"{name}: operations by their own time", ("", "calls", "s", "share"), lines)


if __name__ == "__main__":
    harness.run(main)
