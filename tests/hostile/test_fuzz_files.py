"""Hostile files: run folders and checkpoints of strangers, safetensors, GGUF."""

import contextlib
import io
import json
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from transformers import AutoModelForCausalLM

from lite_selfplay.config import SeatConfig
from lite_selfplay.errors import RunFolderError
from lite_selfplay.models.adapters import Adapters
from lite_selfplay.models.sources.gguf import read_header
from lite_selfplay.runs import checkpoints
from lite_selfplay.runs.api import load_run
from lite_selfplay.runs.checkpoints import MANIFEST, OPTIMIZER, STATE, Checkpoint
from lite_selfplay.runs.folder import RunFolder, as_written
from lite_selfplay.runs.report.figures import charts_of, game_of
from lite_selfplay.tasks.files import read_tensors, sha256_of
from lite_selfplay.training.optimizer import optimizer_state, seat_groups

from .fuzzing import fuzz, mutated_bytes, mutated_json, of_file, sizes

SAMPLE = Path(__file__).with_name("sample_run")
FILES = {path.relative_to(SAMPLE).as_posix(): path.read_bytes() for path in sorted(SAMPLE.rglob("*")) if path.is_file()}
SEATS = {name: SeatConfig(rank=2, alpha=4) for name in ("A", "B")}


# Run folders


def changed(rng: random.Random, name: str) -> bytes:
    """A file of a run with a value of one line, or some of its bytes, changed."""
    content = FILES[name]
    if name.endswith(".yaml") or rng.random() < 0.3:
        return mutated_bytes(rng, content, (b"\n", b"{}", b"[" * 500, b"null", b"NaN", b'"', b"\xff", b"1e999"))
    if name.endswith(".jsonl"):
        lines = content.splitlines(keepends=True)
        place = rng.randrange(len(lines))
        lines[place] = json.dumps(mutated_json(rng, json.loads(lines[place]))).encode() + b"\n"
        return b"".join(lines)
    return json.dumps(mutated_json(rng, json.loads(content))).encode()


def everything(path: Path) -> None:
    """All that commands read of a run without its weights."""
    run = load_run(path)
    run.metrics_rows()
    run.episodes()
    run.evaluations()
    run.later_evaluations()


def shown(path: Path) -> None:
    """What `view` and `report --figures` show."""
    folder = RunFolder.open(path)
    with as_written(path):
        charts_of(game_of(folder)[0], folder, folder.steps())


def reported(path: Path) -> None:
    """What `report` prints."""
    from lite_selfplay_cli.report import report

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        report(path, duels=3)


OF_A_RUN: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "run folders": (everything, tuple(sorted(FILES))),
    "metrics": (shown, ("metrics.jsonl",)),
    "reports": (reported, ("metrics.jsonl", "episodes.jsonl", "eval/step-000002.json", "eval/base.json")),
}
"""What reads a run, and the files of which one is changed at a time."""


@sizes
@pytest.mark.parametrize("kind", OF_A_RUN)
def test_run_folders(kind: str, inputs: int, place: Path) -> None:
    reads, names = OF_A_RUN[kind]
    shutil.copytree(SAMPLE, place, dirs_exist_ok=True)

    def make(rng: random.Random) -> tuple[str, bytes]:
        name = rng.choice(names)
        return name, changed(rng, name)

    def read(made: tuple[str, bytes]) -> None:
        name, content = made
        (place / name).write_bytes(content)
        try:
            reads(place)
        finally:
            (place / name).write_bytes(FILES[name])

    fuzz(kind, inputs, make, read)


# Checkpoints


@pytest.fixture(scope="module")
def adapters(tiny_path: Path) -> Adapters:
    return Adapters(AutoModelForCausalLM.from_pretrained(tiny_path, dtype=torch.float32), SEATS, seed=0)


@pytest.fixture
def saved(adapters: Adapters, place: Path) -> Iterator[Path]:
    """A checkpoint of a game with two seats and a snapshot."""
    optimizer = torch.optim.AdamW(seat_groups(adapters, SEATS))
    for parameter in adapters.parameters("A").values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    adapters.snapshot("A", "reference-A")
    counts = {"cold_started": True, "skipped_steps": 0, "nonfinite": 0}
    state = {"game": {"round": 3}, "sources": {"problems": {"position": 1, "size": 4}}, **counts}
    identity = {"base": "tiny:1", "game": "agon", "config_hash": "x"}
    moments = optimizer_state(optimizer, adapters)
    yield checkpoints.save_checkpoint(
        place, 2, adapters=adapters, optimizer=moments, state=state, identity=identity, keep=3
    )
    shutil.rmtree(place / "step-2", ignore_errors=True)


@sizes
def test_checkpoints(inputs: int, saved: Path, adapters: Adapters) -> None:
    files = {path.relative_to(saved).as_posix(): path.read_bytes() for path in saved.rglob("*") if path.is_file()}
    names = [
        MANIFEST,
        STATE,
        OPTIMIZER,
        "adapters/A/adapter_model.safetensors",
        "snapshot-0.safetensors",
    ]

    def make(rng: random.Random) -> tuple[str, bytes, bool]:
        name, fitting = rng.choice(names), rng.random() < 0.7
        content = files[name]
        if name.endswith(".json") and rng.random() < 0.7:
            return name, json.dumps(mutated_json(rng, json.loads(content))).encode(), fitting
        header = content[: rng.choice((16, 600, len(content)))]
        return name, mutated_bytes(rng, header, (b"{}", b"F64", b"null", b"[0,0]")) + content[len(header) :], fitting

    def reads(made: tuple[str, bytes, bool]) -> None:
        name, content, fitting = made
        (saved / name).write_bytes(content)
        if fitting and name != MANIFEST:  # as who means harm would leave it
            manifest = json.loads(files[MANIFEST])
            manifest["files"][name] = {"size": len(content), "sha256": sha256_of(saved / name)}
            (saved / MANIFEST).write_text(json.dumps(manifest))
        try:
            if checkpoints.newest_whole(saved.parent) is None:
                raise RunFolderError("no checkpoint")
            checkpoints.check_identity(Checkpoint(saved, 2), {"base": "tiny:1", "game": "agon"}, "x")
            checkpoints.load_checkpoint(Checkpoint(saved, 2), adapters)
        finally:
            for again in (name, MANIFEST):
                (saved / again).write_bytes(files[again])

    fuzz("checkpoints", inputs, make, reads)


# Safetensors and GGUF

TENSORS = save({"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(4, dtype=torch.int64), "c": torch.ones(())})
TENSOR_PIECES = (b'"F64"', b'"I8"', b'"BOOL"', b'"data_offsets"', b"[0,0]", b"[18446744073709551615,1]", b"{}", b"null",
                 b"[" * 200, b'"__metadata__":{}', b"-1", b"\xff", b"1e99")  # fmt: skip


@sizes
def test_safetensors(inputs: int, place: Path) -> None:
    def make(rng: random.Random) -> bytes:
        (length,) = struct.unpack("<Q", TENSORS[:8])
        if rng.random() < 0.5:
            header = mutated_json(rng, json.loads(TENSORS[8 : 8 + length]))
            text = json.dumps(header).encode()
            return struct.pack("<Q", len(text)) + text + TENSORS[8 + length :]
        return mutated_bytes(rng, TENSORS, TENSOR_PIECES)

    fuzz("safetensors", inputs, make, of_file(place / "t.safetensors", read_tensors))


def gguf_text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def gguf() -> bytes:
    """A small file of every kind of value, with two tensors."""
    array = gguf_text("tokens") + struct.pack("<IIQ", 9, 8, 3) + b"".join(map(gguf_text, ("a", "b", "<s>")))
    pairs = [
        gguf_text("general.architecture") + struct.pack("<I", 8) + gguf_text("llama"),
        gguf_text("general.alignment") + struct.pack("<II", 4, 32),
        gguf_text("general.file_type") + struct.pack("<II", 4, 1),
        gguf_text("x.count") + struct.pack("<IQ", 10, 7),
        gguf_text("x.scale") + struct.pack("<If", 6, 0.5),
        gguf_text("x.flag") + struct.pack("<I?", 7, True),
        array,
        gguf_text("scores") + struct.pack("<IIQ3f", 9, 6, 3, 0.0, 1.0, 2.0),
        gguf_text("nested") + struct.pack("<IIQIQ2I", 9, 9, 1, 4, 2, 5, 6),
    ]
    tensors = [
        gguf_text("rope_freqs.weight") + struct.pack("<IQIQ", 1, 4, 0, 0),
        gguf_text("blk.0.weight") + struct.pack("<IQQIQ", 2, 32, 2, 8, 32),
    ]
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + struct.pack("<4f", 1, 2, 3, 4) + bytes(16 + 2 * 34 + 28)


@sizes
def test_gguf_headers(inputs: int, place: Path) -> None:
    pieces = (gguf_text("tokens"), struct.pack("<IIQ", 9, 0, 2**60), struct.pack("<IIQ", 9, 9, 3), b"GGUF", b"\xff" * 8)

    def reads(file: Path) -> None:
        header = read_header(file)
        assert all(isinstance(elements, int) for elements in header.tensors.values())
        assert header.metadata["GGUF.version"] is not None

    read = of_file(place / "m.gguf", reads)
    with contextlib.suppress(OSError):
        read(gguf())
    fuzz("GGUF headers", inputs, lambda rng: mutated_bytes(rng, gguf(), pieces), read)
