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
LONG_ROWS = ((943, 1056), (1091, 1104), (417, 432))
"""Tokens of the longest completions of a recorded update, each with the positions that its last token sees."""
HEADS, KEY_HEADS, HEAD = 14, 2, 64
RECORDED, GROUP, PROMPT = Path(__file__).with_name("lengths.json"), 16, 113
VLLM = "LITE_SELFPLAY_VLLM"
"""The variable that names the folder in which vLLM is installed by itself."""
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


def token(base: str, rows: Sequence[int], columns: Sequence[int], tiny: bool = False) -> None:
    """Milliseconds a token by rows and columns, seconds that new shapes cost, and what the time went into."""
    backend = load(base)
    profiled = [(count, width) for count, width in PROFILED if count in rows and width in columns]
    rows, columns, profiled = ((4, 1), (128,), [(4, 128)]) if tiny else (rows, columns, profiled)
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


def load(base: str) -> Any:
    """A base with one seat, and memory for everything that is asked here."""
    from lite_selfplay.config import ModelSection, SeatConfig
    from lite_selfplay.models.backends import choose_backend
    from lite_selfplay.models.sources import resolve

    began = time.monotonic()
    path = resolve(base, say=print).path
    tell(conversion_s=round(time.monotonic() - began, 1))
    section = ModelSection(name=base, precision="bf16")
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


# Attention of an update


def backward(tiny: bool = False) -> None:
    """Attention of one long row of an update, forward and backward: torch's memory-efficient kernel with a mask, its
    query heads grouped by key head as the library's rectangles have them, against flash attention with cumulative
    lengths; with deterministic kernels and without."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    for tokens, positions in ((6, 9),) if tiny else LONG_ROWS:
        torch.manual_seed(0)
        query = torch.randn(HEADS, tokens, HEAD, device=device, dtype=dtype, requires_grad=True)
        k, v = (torch.randn(KEY_HEADS, positions, HEAD, device=device, dtype=dtype, requires_grad=True) for _ in "kv")
        exact = gradients(masked(*(x.float() for x in (query, k, v)), force=True), query, k, v)
        for deterministic in (True, False):
            for name, way in (("efficient", masked), ("flash", flash)):
                told = f"{name}, {tokens} tokens, {positions} positions, deterministic {deterministic}"
                torch.use_deterministic_algorithms(deterministic)
                try:
                    found = gradients(way(query, k, v), query, k, v)
                    off = max((x.float() - y.float()).abs().max().item() for x, y in zip(found, exact, strict=True))
                    us = microseconds(lambda way=way, q=query, k=k, v=v: gradients(way(q, k, v), q, k, v))
                    tell(**{told: {"us": us, "off float32": round(off, 5)}})
                except (RuntimeError, TypeError) as problem:  # what this GPU or torch refuses is the finding
                    tell(**{told: f"cannot: {str(problem).splitlines()[0][:120]}"})
                finally:
                    torch.use_deterministic_algorithms(False)


def gradients(result: Any, *inputs: Any) -> list[Any]:
    """The gradients of a sum of an attention's result, (heads, tokens, size), weighted so that no two are alike."""
    import torch

    weights = torch.linspace(-1, 1, result.numel(), device=result.device, dtype=torch.float32).view_as(result)
    return list(torch.autograd.grad((result.float() * weights).sum(), inputs))


def masked(query: Any, k: Any, v: Any, *, force: bool = False) -> Any:
    """(heads, tokens, size) by torch's attention with a mask: each token sees the positions up to its own, of which the
    last is the last token's. `force`: by any kernel, also where no memory-efficient one is there."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    (heads, tokens, size), (keys, positions) = query.shape, k.shape[:2]
    own = torch.arange(tokens, device=k.device).repeat(heads // keys)[:, None] + positions - tokens
    mask = torch.zeros(1, 1, own.shape[0], -(-positions // 8) * 8, dtype=query.dtype, device=k.device)[..., :positions]
    mask.masked_fill_(torch.arange(positions, device=k.device) > own, -torch.inf)
    grouped = query.reshape(1, keys, -1, size)
    anywhere = force or not torch.cuda.is_available()
    kernel = contextlib.nullcontext() if anywhere else sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)
    with kernel:
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(grouped, k[None], v[None], attn_mask=mask).reshape(heads, tokens, size)


def flash(query: Any, k: Any, v: Any) -> Any:
    """The same by the flash kernel with cumulative lengths, whose causal mask ends at the last position."""
    import torch

    (_, tokens, size), positions = query.shape, k.shape[1]
    starts = (torch.tensor([0, count], dtype=torch.int32, device=k.device) for count in (tokens, positions))
    attend = torch.ops.aten._flash_attention_forward
    packed = (x.transpose(0, 1) for x in (query, k, v))
    return attend(*packed, *starts, tokens, positions, 0.0, True, False, scale=size**-0.5)[0].transpose(0, 1)


def microseconds(call: Callable[[], Any], times: int = 20) -> float:
    """Of one call among several."""
    call()
    finish()
    began = time.monotonic()
    for _ in range(times):
        call()
    finish()
    return round(1e6 * (time.monotonic() - began) / times, 1)


# Sampling beside vLLM


def lengths(base: str, sampler: str, tiny: bool = False) -> None:
    """Seconds in which as many sequences of as many tokens are sampled as a recorded step of GRPO had, by this library
    or by vLLM, with an adapter and without. Every sequence runs to its own length, whatever it says."""
    rows, spread = json.loads(RECORDED.read_text(encoding="utf-8"))["tokens"], random.Random(0)
    groups = [rows[i : i + GROUP] for i in range(0, len(rows), GROUP)]
    groups = [[min(4, count) for count in group[:2]] for group in groups[:2]] if tiny else groups
    prompts = [[spread.randrange(10, 200) for _ in range(PROMPT)] for _ in groups]
    tell(sequences=sum(map(len, groups)), tokens=sum(map(sum, groups)), longest=max(map(max, groups)))
    (by_vllm if sampler == "vllm" else by_ours)(base, prompts, groups)


def by_ours(base: str, prompts: Sequence[Sequence[int]], groups: Sequence[Sequence[int]]) -> None:
    from lite_selfplay.data import Sampling
    from lite_selfplay.models.backends.backend import GenerationRequest

    backend, longest = load(base), max(map(max, groups))
    most = backend.adapters.model.get_input_embeddings().num_embeddings
    prompts = [[number % most for number in prompt] for prompt in prompts]
    seeds = [[100 * p + k for k in range(len(group))] for p, group in enumerate(groups)]

    def goes_on(p: int, k: int, number: int, token: int) -> bool:
        return number < groups[p][k]

    for seat in ("base", "A"):
        for which in ("first", "second"):
            request = GenerationRequest(seat, prompts, len(groups[0]), Sampling(max_tokens=longest), seeds, goes_on)
            finish()
            began = time.monotonic()
            found = backend.generate(request)
            finish()
            assert [[len(row.token_ids) for row in rows] for rows in found] == [list(group) for group in groups]
            tell(**{f"ours, {seat}, {which}: s": round(time.monotonic() - began, 2)})
    backend.close()


def by_vllm(base: str, prompts: Sequence[Sequence[int]], groups: Sequence[Sequence[int]]) -> None:
    """In its own process, with CUDA graphs and without torch.compile, whose first minute would be all that is there."""
    from lite_selfplay.models.sources import resolve

    path, adapter = resolve(base, say=print).path, Path("adapter")
    backend = load(base)
    backend.adapters.save("A", adapter)
    backend.close()
    del backend
    sys.path[:0] = filter(None, [os.environ.get(VLLM)])  # TRL and Unsloth import it wherever they find it
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    try:
        from vllm import LLM, SamplingParams
        from vllm.lora.request import LoRARequest
    except ImportError as error:
        tell(vllm=f"not here: {error}")
        return
    began, longest = time.monotonic(), PROMPT + max(map(max, groups)) + 1
    model = LLM(
        str(path),
        dtype="bfloat16",
        max_model_len=longest,
        gpu_memory_utilization=0.5,
        enable_lora=True,
        max_lora_rank=16,
        compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
    )
    tell(vllm_started_s=round(time.monotonic() - began, 1))
    asked = [{"prompt_token_ids": list(prompt)} for prompt, group in zip(prompts, groups, strict=True) for _ in group]
    ends = [SamplingParams(max_tokens=n, min_tokens=n, ignore_eos=True) for group in groups for n in group]
    for seat, lora in (("base", None), ("A", LoRARequest("A", 1, str(adapter.resolve())))):
        for which in ("first", "second"):
            began = time.monotonic()
            found = model.generate(asked, ends, lora_request=lora, use_tqdm=False)
            took = round(time.monotonic() - began, 2)
            assert [len(each.outputs[0].token_ids) for each in found] == [n for group in groups for n in group]
            tell(**{f"vllm, {seat}, {which}: s": took})


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


def main() -> None:
    """Run a part."""
    words = sys.argv[1:]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("token", "backward", "lengths", "update", "stacks", "resumed"))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--columns", type=int, nargs="+", default=COLUMNS)
    for option, kind in (("base", str), ("place", str), ("sampler", str), ("after", float)):
        parser.add_argument(f"--{option}", type=kind)
    behind = words.index("lite-selfplay") if "lite-selfplay" in words else len(words)
    given = parser.parse_args(words[:behind])
    words = words[behind + 1 :]
    {
        "token": lambda: token(given.base, given.rows, given.columns, tiny=given.tiny),
        "backward": lambda: backward(given.tiny),
        "lengths": lambda: lengths(given.base, given.sampler, given.tiny),
        "update": lambda: update(words),
        "stacks": lambda: stacks(given.after, words),
        "resumed": lambda: resumed(given.base, given.place, given.tiny),
    }[given.part]()


if __name__ == "__main__":
    main()
