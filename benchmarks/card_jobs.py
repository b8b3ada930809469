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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FIGURES = "LITE_SELFPLAY_CARD_FIGURES"
"""The variable that names the file of a job's own figures."""
NEVER = 2**30
"""An id beyond any vocabulary: as the only end of a sequence it lets every completion run to its cap."""
ROWS, COLUMNS = (256, 1, 16), 512
FEW, MANY = 32, 96
LENGTHS = Path(__file__).with_name("lengths.json")
"""The lengths of 256 completions of one step of GRPO with a real base, of 85 to 967 tokens, on an H100 (2026-11-26)."""
SHAPES = ((1056, 943), (1104, 1091), (432, 417))
"""Keys and queries of three rectangles of that step's update that one long row had alone."""
VLLM = "LITE_SELFPLAY_GPU_VLLM"
"""The variable that names the folder in which vLLM and what it needs are installed."""
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


# A token, and attention


def kernels(base: str, tiny: bool = False) -> None:
    """Backward of attention by two kernels; milliseconds a token by rows; and the recorded lengths with an adapter or
    none, and with prompt lookup."""
    attention(tiny)
    backend = load(base)
    for count in (4, 1) if tiny else ROWS:
        tell(**{f"rows {count}, columns {COLUMNS}: ms a token, s new": cell(backend, count, 128 if tiny else COLUMNS)})
    for number in range(2):  # the second time all shapes are known
        for name, seat in (("adapter", "A"), ("no adapter", "base")):
            found = recorded_lengths(backend, seat, base, tiny)
            tell(**{f"recorded lengths, ours, {name}, round {number + 1}": found})
    backend.close()
    del backend  # its cache would take the other's memory
    backend = load(base, decoding="lookup")
    for number in range(2):
        found = recorded_lengths(backend, "A", base, tiny)
        tell(**{f"recorded lengths, ours, adapter, lookup, round {number + 1}": found})
    backend.close()


def recorded_lengths(backend: Any, seat: str, base: str, tiny: bool) -> dict[str, float]:
    """Tokens a second of completions that are ended at the recorded lengths."""
    from lite_selfplay.data import Sampling
    from lite_selfplay.models.backends.backend import GenerationRequest

    lengths, prompts = lengths_and_prompts(base, tiny)
    sampling, seeds = Sampling(max_tokens=max(lengths)), [[number] for number in range(len(lengths))]
    request = GenerationRequest(seat, prompts, 1, sampling, seeds, lambda p, k, number, token: number < lengths[p])
    finish()
    began = time.monotonic()
    found = backend.generate(request)
    finish()
    assert [len(each[0].token_ids) for each in found] == lengths
    return speed(sum(lengths), time.monotonic() - began)


def lengths_and_prompts(base: str, tiny: bool) -> tuple[list[int], list[list[int]]]:
    """The recorded lengths, and a prompt for each: eight completions have one."""
    from lite_selfplay.games.prompts import fill
    from lite_selfplay.models.chat_template import Chat
    from lite_selfplay.models.sources import resolve
    from lite_selfplay.tasks import load_task

    lengths = json.loads(LENGTHS.read_text(encoding="utf-8"))["tokens"]
    lengths = [1 + length // 60 for length in lengths[:16]] if tiny else lengths
    chat = Chat.load(resolve(base, say=print).path)
    problems = load_task("letters" if tiny else "gsm8k").problems[: len(lengths) // 8]
    prompts = [chat.encode(fill("solver", problem=problem.text)).ids for problem in problems]
    return lengths, [list(prompt) for prompt in prompts for _ in range(8)]


def speed(tokens: int, seconds: float) -> dict[str, float]:
    return {"seconds": round(seconds, 2), "tokens a second": round(tokens / seconds)}


def attention(tiny: bool = False) -> None:
    """Backward of causal attention at the recorded shapes (14 heads of 64, 2 of keys), by torch's memory-efficient and
    its flash kernel, where bits may differ between calls and where they may not."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for tokens, longest in ((64, 16),) if tiny else SHAPES:
        for deterministic in (False, True):
            torch.use_deterministic_algorithms(deterministic, warn_only=True)
            for name, kernel in (("efficient", efficient), ("flash", flash)):
                told = f"backward, {name}, {longest} x {tokens}, {'' if deterministic else 'not '}deterministic"
                try:
                    tell(**{told: {"ms": milliseconds(*kernel(tokens, longest, device))}})
                except RuntimeError as problem:  # a kernel that refuses the shape is a result, too
                    tell(**{told: f"cannot: {str(problem).splitlines()[0][:120]}"})
        torch.use_deterministic_algorithms(False)


HEADS, KEY_HEADS, SIZE = 14, 2, 64


def efficient(tokens: int, longest: int, device: Any) -> tuple[Any, Any]:
    """One row of `longest` tokens that attends to `tokens` keys with a mask, heads grouped by key head: as a rectangle
    of an update. Returns its output and what it is a function of."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(0)
    rows = longest * HEADS // KEY_HEADS
    query = torch.randn(1, KEY_HEADS, rows, SIZE, device=device, dtype=torch.bfloat16, requires_grad=True)
    keys, values = (
        torch.randn(1, KEY_HEADS, tokens, SIZE, device=device, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(2)
    )
    late = torch.arange(rows, device=device)[:, None] // (HEADS // KEY_HEADS) + tokens - longest
    beyond = torch.arange(tokens, device=device)[None] > late
    padded = torch.zeros(1, 1, rows, -(-tokens // 8) * 8, device=device, dtype=torch.bfloat16)[..., :tokens]
    mask = padded.masked_fill_(beyond, -torch.inf)
    kernels = [SDPBackend.EFFICIENT_ATTENTION] if device.type == "cuda" else [SDPBackend.MATH]
    with sdpa_kernel(kernels):
        out = torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask.expand(1, KEY_HEADS, -1, -1)
        )
    return out, (query, keys, values)


def flash(tokens: int, longest: int, device: Any) -> tuple[Any, Any]:
    """The same tokens by the flash kernel, which needs no mask: the last `longest` of `tokens` keys ask."""
    import torch

    torch.manual_seed(0)
    query = torch.randn(longest, HEADS, SIZE, device=device, dtype=torch.bfloat16, requires_grad=True)
    keys, values = (
        torch.randn(tokens, KEY_HEADS, SIZE, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)
    )
    ends = [torch.tensor([0, count], device=device, dtype=torch.int32) for count in (longest, tokens)]
    out = torch.ops.aten._flash_attention_forward(query, keys, values, *ends, longest, tokens, 0.0, True, False)[0]
    return out, (query, keys, values)


def milliseconds(out: Any, given: Any, times: int = 10) -> float:
    """Of one backward among several; the first is not counted."""
    import torch

    along = torch.randn_like(out)
    torch.autograd.grad(out, given, along, retain_graph=True)
    finish()
    began = time.monotonic()
    for _ in range(times):
        torch.autograd.grad(out, given, along, retain_graph=True)
    finish()
    return round(1e3 * (time.monotonic() - began) / times, 3)


def vllm(base: str, place: str, tiny: bool = False) -> None:
    """Tokens a second of vLLM on the recorded lengths, the end of a sequence ignored and a limit a row: with an adapter
    and without one, in one engine that has room for it. On a CPU only the import is tried, if vLLM is there."""
    if site := os.environ.get(VLLM):
        sys.path.insert(0, site)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    began = time.monotonic()
    try:
        from vllm import LLM, SamplingParams
        from vllm.lora.request import LoRARequest
    except ImportError as problem:
        tell(vllm=f"cannot: {problem}")
        if tiny:
            return
        raise
    tell(imported_s=round(time.monotonic() - began, 1))
    if tiny:
        return
    from lite_selfplay.models.sources import resolve

    lengths, prompts = lengths_and_prompts(base, tiny)
    path = resolve(base, say=print).path
    engine = LLM(
        str(path),
        dtype="bfloat16",
        enable_lora=True,
        max_lora_rank=16,
        max_num_seqs=len(lengths),
        max_model_len=2048,
        gpu_memory_utilization=0.5,
        seed=0,
        # Its compiler's first minute would be half of what there is.
        compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
    )
    tell(engine_s=round(time.monotonic() - began, 1))
    limits = [
        SamplingParams(temperature=1.0, max_tokens=length, min_tokens=length, ignore_eos=True) for length in lengths
    ]
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    adapter = LoRARequest("A", 1, str(adapter_for(path, Path(place))))
    for number in range(2):
        for name, request in (("adapter", adapter), ("no adapter", None)):
            began = time.monotonic()
            found = engine.generate(asked, limits, lora_request=request, use_tqdm=False)
            seconds = time.monotonic() - began
            counts = [len(each.outputs[0].token_ids) for each in found]
            told = f"recorded lengths, vLLM, {name}, round {number + 1}"
            tell(**{told: {**speed(sum(counts), seconds), "as recorded": counts == lengths}})


def adapter_for(base: Path, place: Path) -> Path:
    """An adapter of rank 16 over all linear layers, as seats have it, with weights that are not zero."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", init_lora_weights=False)
    get_peft_model(model, config).save_pretrained(place)
    return place


def cell(backend: Any, rows: int, columns: int) -> list[float]:
    """Milliseconds a token where all shapes are known, and seconds that the first call took longer than the second."""
    first, again, _, longer = (sample(backend, rows, columns, count) for count in (FEW, FEW, MANY, MANY))
    return [round(1e3 * (longer - again) / (MANY - FEW), 3), round(first - again, 3)]


def load(base: str, **model: Any) -> Any:
    """A base with one seat, and memory for everything that is asked here; with other settings of the model."""
    from lite_selfplay.config import ModelSection, SeatConfig
    from lite_selfplay.models.backends import choose_backend
    from lite_selfplay.models.sources import resolve

    began = time.monotonic()
    path = resolve(base, say=print).path
    tell(conversion_s=round(time.monotonic() - began, 1))
    section = ModelSection(name=base, precision="bf16", **model)
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

    # Operations of the host are many more than kernels, and reading them takes longer than the update itself.
    on_gpu = torch.cuda.is_available()
    return torch.profiler.profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU])


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
            try:
                tell(update_profiled_s=round(time.monotonic() - began, 2), update=profile(seen, 1))
            except Exception as problem:  # the run is worth more than its profile
                tell(update=f"cannot: {problem}")

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
    parser.add_argument("part", choices=("kernels", "vllm", "update", "stacks", "resumed"))
    parser.add_argument("--tiny", action="store_true")
    for option, kind in (("base", str), ("place", str), ("after", float)):
        parser.add_argument(f"--{option}", type=kind)
    behind = words.index("lite-selfplay") if "lite-selfplay" in words else len(words)
    given = parser.parse_args(words[:behind])
    words = words[behind + 1 :]
    {
        "kernels": lambda: kernels(given.base, given.tiny),
        "vllm": lambda: vllm(given.base, given.place, given.tiny),
        "update": lambda: update(words),
        "stacks": lambda: stacks(given.after, words),
        "resumed": lambda: resumed(given.base, given.place, given.tiny),
    }[given.part]()


if __name__ == "__main__":
    main()
