"""What `card.py` measures in processes of their own: `card_jobs.py PART [OPTIONS]`.

Everything is asked of the library's public surface (a backend's methods, `train`, `resume`, the command line), so that
the same file measures a former commit. Figures are written one by one, as a JSON line each, to the file that the
variable LITE_SELFPLAY_CARD_FIGURES names: what a job's limit cuts off is kept up to there.
"""

import argparse
import contextlib
import faulthandler
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FIGURES = "LITE_SELFPLAY_CARD_FIGURES"
"""The variable that names the file of a job's own figures."""
NEVER = 2**30
"""An id beyond any vocabulary: as the only end of a sequence it lets every completion run to its cap."""
ROWS, COLUMNS = (256, 1, 62, 4, 128, 16), (512, 4096, 1024, 128)
PROFILED = ((2, 4096), (256, 512), (62, 512))
FEW, MANY = 32, 96
TABLE_ROWS = 12
SIZES = ("group_size", "problems_per_step", "max_completion_tokens")


def tell(**figures: Any) -> None:
    """Write figures down, and print them."""
    line = json.dumps(figures)
    print(line, flush=True)
    if path := os.environ.get(FIGURES):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())


# A token


def token(base: str, decoding: str = "auto", tiny: bool = False) -> None:
    """Milliseconds a token by rows and columns, seconds that new shapes cost, and what the time went into."""
    backend = load(base, decoding)
    rows, columns, profiled = ((4, 1), (128,), ((4, 128),)) if tiny else (ROWS, COLUMNS, PROFILED)
    for count, width in profiled:
        sample(backend, count, width, FEW)
        with profiler() as found:
            sample(backend, count, width, FEW)
        tell(**{f"rows {count}, columns {width}": profile(found, FEW)})
    for width in columns:
        for count in rows:
            tell(**{f"rows {count}, columns {width}: ms a token, s new": cell(backend, count, width)})


def cell(backend: Any, rows: int, columns: int) -> list[float]:
    """Milliseconds a token where all shapes are known, and seconds that the first call took longer than the second."""
    first, again, _, longer = (sample(backend, rows, columns, count) for count in (FEW, FEW, MANY, MANY))
    return [round(1e3 * (longer - again) / (MANY - FEW), 3), round(first - again, 3)]


def load(base: str, decoding: str) -> Any:
    """A base with one seat, and memory for everything that is asked here."""
    from lite_selfplay.config import ModelSection, SeatConfig
    from lite_selfplay.models.backends import choose_backend
    from lite_selfplay.models.sources import resolve

    began = time.monotonic()
    path = resolve(base, say=print).path
    tell(conversion_s=round(time.monotonic() - began, 1))
    section = ModelSection(name=base, precision="bf16", decoding=decoding)
    backend = choose_backend(path, section, {"A": SeatConfig()}, seed=0, eos_ids=[NEVER], **room())
    tell(loaded_s=round(time.monotonic() - began, 1))
    return backend


def room() -> dict[str, Any]:
    """What lets a backend hold all rows and end no completion, before and since a run's section is given to it."""
    from lite_selfplay.config import RunSection

    if "end_loops" in RunSection.model_fields:
        return {"run": RunSection(generation_tokens=2**21, end_loops=False)}
    return {"cache_tokens": 2**21}


def sample(backend: Any, rows: int, columns: int, tokens: int) -> float:
    """Seconds of so many tokens after a prompt, by `rows` at once, in at most `columns` columns."""
    from lite_selfplay.data import Sampling
    from lite_selfplay.models.backends.backend import GenerationRequest

    spread = random.Random(columns)
    prompt = [spread.randrange(10, 200) for _ in range(columns - MANY)]
    if (most := backend.adapters.model.get_input_embeddings().num_embeddings) < 200:
        prompt = [number % most for number in prompt]
    request = GenerationRequest("A", [prompt], rows, Sampling(max_tokens=tokens), [list(range(rows))])
    finish()
    began = time.monotonic()
    (found,) = backend.generate(request)
    finish()
    assert [len(row.token_ids) for row in found] == [tokens] * rows
    return time.monotonic() - began


def finish() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def profiler() -> Any:
    import torch
    from torch.profiler import ProfilerActivity

    on_card = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    return torch.profiler.profile(activities=[ProfilerActivity.CPU, *on_card])


def profile(found: Any, per: int) -> dict[str, Any]:
    """Of each of `per` parts: kernels and their milliseconds; and the dearest ones, with the share of each."""
    import torch

    attribute = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    every = [(getattr(each, attribute), each.count, each.key) for each in found.key_averages()]
    every = sorted((row for row in every if row[0] > 0), reverse=True)
    whole = sum(row[0] for row in every) or 1.0
    dearest = {name[:70]: f"{100 * us / whole:.1f}%, {count / per:.1f}" for us, count, name in every[:TABLE_ROWS]}
    return {
        "kernels": round(sum(row[1] for row in every) / per, 1),
        "ms": round(whole / per / 1e3, 3),
        "of it": dearest,
    }


def lean(base: str, tiny: bool = False) -> None:
    """A token by the library's own few kernels beside the model's, where the library has such a token."""
    from lite_selfplay.config import ModelSection

    try:
        ModelSection(name=base, decoding="lean")
    except ValueError as error:
        why = next((line for line in str(error).splitlines() if "should be" in line), str(error))
        tell(lean=f"not built: {why.partition(' [')[0].strip()}")
        return
    for decoding in ("auto", "lean"):
        backend = load(base, decoding)
        for rows, columns in ((4, 128),) if tiny else PROFILED:
            tell(**{f"{decoding}: rows {rows}, columns {columns}": cell(backend, rows, columns)})
        backend.close()


# Attention alone


def attention(base: str, tiny: bool = False) -> None:
    """Attention of one token: torch's SDPA with a mask against its flash kernel, a row and key head a sequence."""
    import torch
    from transformers import AutoConfig

    from lite_selfplay.models.sources import resolve

    config = AutoConfig.from_pretrained(resolve(base, say=print).path)
    heads, keys = config.num_attention_heads, config.num_key_value_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for rows in (4,) if tiny else (256, 2, 62, 16):
        for columns in (64,) if tiny else (512, 4096, 256, 1024, 128):
            torch.manual_seed(0)
            query = torch.randn(rows, heads, 1, size, device=device, dtype=torch.bfloat16)
            k, v = (torch.randn(rows, keys, columns, size, device=device, dtype=torch.bfloat16) for _ in range(2))
            lengths = torch.randint(1, columns + 1, (rows,), device=device, dtype=torch.int32)
            exact = eager(query, k, v, lengths)
            for name, way in (("sdpa", sdpa), ("flash", flash)):
                told = f"{name}, rows {rows}, columns {columns}"
                try:
                    call = way(query, k, v, lengths)
                    error = (call().float() - exact).abs().max().item()
                    tell(**{told: {"us": microseconds(call), "off float32": round(error, 5), **same_bits(call)}})
                except (RuntimeError, TypeError) as problem:  # what this card or torch refuses is the finding
                    tell(**{told: f"cannot: {str(problem).splitlines()[0][:120]}"})


def eager(query: Any, k: Any, v: Any, lengths: Any) -> Any:
    """(rows, heads, size) in float32."""
    import torch

    (rows, heads, _, size), (keys, columns) = query.shape, k.shape[1:3]
    grouped = query.float().view(rows, keys, heads // keys, size)
    beyond = torch.arange(columns, device=k.device)[None] >= lengths[:, None]
    scores = (grouped @ k.float().mT * size**-0.5).masked_fill(beyond[:, None, None], -torch.inf)
    return (scores.softmax(-1) @ v.float()).reshape(rows, heads, size)


def sdpa(query: Any, k: Any, v: Any, lengths: Any) -> Callable[[], Any]:
    import torch

    (rows, heads, _, size), (keys, columns) = query.shape, k.shape[1:3]
    within = torch.arange(columns, device=k.device)[None] < lengths[:, None]
    mask = torch.zeros(rows, 1, heads // keys, columns, dtype=query.dtype, device=k.device)
    mask.masked_fill_(~within[:, None, None], -torch.inf)
    grouped = query.view(rows, keys, heads // keys, size)
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(grouped, k, v, attn_mask=mask).reshape(rows, heads, size)


def flash(query: Any, k: Any, v: Any, lengths: Any) -> Callable[[], Any]:
    import torch

    (rows, heads, _, size), (keys, columns) = query.shape, k.shape[1:3]
    one = query.reshape(rows * keys, heads // keys, size)
    stores = [store.view(rows * keys * columns, 1, size) for store in (k, v)]
    starts = torch.arange(rows * keys + 1, dtype=torch.int32, device=k.device)
    ends, used = starts * columns, lengths.repeat_interleave(keys)
    attend = torch.ops.aten._flash_attention_forward
    return lambda: attend(one, *stores, starts, ends, 1, columns, 0.0, False, False, scale=size**-0.5, seqused_k=used)[
        0
    ].reshape(rows, heads, size)


def microseconds(call: Callable[[], Any], times: int = 50) -> float:
    """Of one call among many, replayed as a CUDA graph where there is a card."""
    replay, each = recorded(call, times)
    replay()
    finish()
    began = time.monotonic()
    replay()
    finish()
    return round(1e6 * (time.monotonic() - began) / each, 1)


def recorded(call: Callable[[], Any], times: int) -> tuple[Callable[[], Any], int]:
    """Something that calls it so many times, and how many times that is."""
    import torch

    if not torch.cuda.is_available():
        return call, 1
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(times):
            call()
    return graph.replay, times


def same_bits(call: Callable[[], Any], times: int = 100) -> dict[str, int]:
    """In how many of so many calls, replayed where there is a card, any bit of the result differs from the first's."""
    import torch

    if not torch.cuda.is_available():
        first = call()
        return {"differ of 100": sum(not torch.equal(first, call()) for _ in range(times))}
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        call()
    with torch.cuda.graph(graph, stream=stream):
        result = call()
    graph.replay()
    finish()
    first, differ = result.clone(), 0
    for _ in range(times):
        graph.replay()
        differ += not torch.equal(first, result)
    return {"differ of 100": differ}


# Runs


def update(words: Sequence[str]) -> None:
    """What the update of a run's second step is made of: `lite-selfplay` with these words, profiled from outside."""
    from lite_selfplay.models.backends.transformers import TransformersBackend

    plain, calls = TransformersBackend.updating, []

    @contextlib.contextmanager
    def watched(self: Any) -> Iterator[Any]:
        calls.append(1)
        with plain(self) as found:
            if len(calls) != 2:
                yield found
                return
            finish()
            began = time.monotonic()
            with profiler() as seen:
                yield found
                finish()
            tell(update_profiled_s=round(time.monotonic() - began, 2), update=profile(seen, 1))

    TransformersBackend.updating = watched
    command_line(words)


def stacks(seconds: float, words: Sequence[str]) -> None:
    """`lite-selfplay` with these words, and every thread's stack after so many seconds."""
    faulthandler.dump_traceback_later(seconds)
    try:
        command_line(words)
    finally:
        faulthandler.cancel_dump_traceback_later()


def command_line(words: Sequence[str]) -> None:
    from lite_selfplay_cli.__main__ import main

    sys.argv = ["lite-selfplay", *words]
    main()


def resumed(base: str, place: str, tiny: bool = False) -> None:
    """A run that a signal stops in its third step and that is resumed, against the same one uninterrupted."""
    from lite_selfplay import Progress, RunConfig, resume, train
    from lite_selfplay.errors import Interrupted

    class Stops(Progress):
        def step(self, metrics: Mapping[str, Any], line: str) -> None:
            if metrics["step"] == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    sizes = (2, 2, 16) if tiny else (8, 16, 512)

    def config(name: str) -> Any:
        return RunConfig(
            game="agon",
            model={"name": base, "precision": "bf16"},
            tasks="letters" if tiny else "gsm8k",
            eval={"tasks": None},
            seats={"*": {"lr": 1e-4, "schedule": "constant", "warmup": 0.0}},
            run={"steps": 4, "dir": Path(place) / name, "preflight": False, **dict(zip(SIZES, sizes, strict=True))},
        )

    whole = train(config("whole"))
    try:
        train(config("cut"), progress=Stops())
        tell(resumed="not stopped")
        return
    except Interrupted as stop:
        print(stop)
    again = resume(Path(place) / "cut")
    rows = [[{**row, "wall_s": None} for row in run.metrics_rows()] for run in (whole, again)]
    tell(steps_equal=[a == b for a, b in zip(*rows, strict=True)])
    files = {seat: [run.seats[seat] / "adapter_model.safetensors" for run in (whole, again)] for seat in whole.seats}
    tell(seats_equal={seat: first.read_bytes() == second.read_bytes() for seat, (first, second) in files.items()})


def split(held_out: int, others: int, to: str, tiny: bool = False) -> None:
    """Problems of GSM8K's test split, in a file, that are not among the `held_out` ones an evaluation asks."""
    from lite_selfplay.tasks import evaluation_set, load_task

    task = load_task("letters" if tiny else "gsm8k", held_out=True)
    asked = {problem.id for problem in evaluation_set(task, held_out)}
    left = [problem for problem in task.problems[: 10 * (held_out + others)] if problem.id not in asked]
    chosen = random.Random(0).sample(left, others)
    rows = ({"problem": problem.text, "answer": problem.answer} for problem in chosen)
    Path(to).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tell(problems=len(chosen), held_out=len(asked))


def main() -> None:
    """Run a part."""
    words = sys.argv[1:]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("token", "lean", "attention", "update", "stacks", "resumed", "split"))
    parser.add_argument("--tiny", action="store_true")
    for option, kind in (
        ("base", str),
        ("place", str),
        ("to", str),
        ("after", float),
        ("held-out", int),
        ("others", int),
    ):
        parser.add_argument(f"--{option}", type=kind)
    behind = words.index("lite-selfplay") if "lite-selfplay" in words else len(words)
    given = parser.parse_args(words[:behind])
    words = words[behind + 1 :]
    {
        "token": lambda: token(given.base, tiny=given.tiny),
        "lean": lambda: lean(given.base, given.tiny),
        "attention": lambda: attention(given.base, given.tiny),
        "update": lambda: update(words),
        "stacks": lambda: stacks(given.after, words),
        "resumed": lambda: resumed(given.base, given.place, given.tiny),
        "split": lambda: split(given.held_out, given.others, given.to, given.tiny),
    }[given.part]()


if __name__ == "__main__":
    main()
