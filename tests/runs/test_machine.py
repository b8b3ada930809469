"""`lite-selfplay doctor` without a run: what it says of machines of all kinds, and of this one."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement

from lite_selfplay.config import ModelSection
from lite_selfplay.models.backends.availability import INSTALL
from lite_selfplay.models.backends.transformers import compute_dtype
from lite_selfplay.runs import machine as module
from lite_selfplay.runs.machine import OWN, Card, Facts, facts, findings

T4 = Card("Tesla T4", int(14.6 * 2**30), (7, 5), bf16=False)
L4 = Card("NVIDIA L4", 22 * 2**30, (8, 9), bf16=True)
NEEDED = {
    OWN: [Requirement("torch>=2.10,<2.15"), Requirement("trl>=1.15,<=1.15.0")],
    "trl": [Requirement("accelerate")],
}
INSTALLED = {"lite-selfplay": "0.1.0", "torch": "2.11.0+cu130", "trl": "1.15.0", "accelerate": "1.15.0"}

WITH_CARD = Facts(
    python="3.12.3",
    system="Linux",
    installed={**INSTALLED, "unsloth": "2026.10.9", "xformers": "0.0.35"},
    needed=NEEDED,
    torch_cuda="13.0",
    driver="580.82.07",
    cards=(T4,),
    threads=2,
)
WITHOUT = replace(
    WITH_CARD, installed=INSTALLED, torch_cuda=None, driver=None, cards=(), unsloth_problem="none is here"
)


def said(seen: Facts) -> dict[str, str]:
    """What is said of each part, with a `!` before what is not as it should be."""
    return {finding.part: ("" if finding.fine else "!") + finding.text for finding in findings(seen)}


def test_a_t4_with_unsloth():
    told = said(WITH_CARD)
    assert told["device"] == "Tesla T4, 14.6 GiB, compute capability 7.5; driver 580.82.07, torch for CUDA 13.0"
    assert told["backend"] == "unsloth; --backend transformers works, too"
    assert told["attention"] == "xformers 0.0.35"
    assert told["precision"] == "over 4-bit weights fp16, as Tesla T4 has no bf16; adapters are float32"
    assert told["versions"] == "they fit together: the 2 packages that lite-selfplay needs, and what those need"
    assert "unsloth 2026.10.9" in told["packages"]
    assert not any(text.startswith("!") for text in told.values())


def test_flash_attention_is_used_where_the_card_runs_it():
    flash = {**WITH_CARD.installed, "flash-attn": "2.8.3"}
    assert said(replace(WITH_CARD, installed=flash, cards=(L4,)))["attention"] == "flash-attn 2.8.3"
    old = said(replace(WITH_CARD, installed=flash))["attention"]
    assert old == "xformers 0.0.35; flash-attn needs compute capability 8.0"
    bare = said(replace(WITH_CARD, installed=INSTALLED))["attention"]
    assert bare == f"torch's scaled_dot_product_attention (sdpa); for xformers: {INSTALL}"


def test_a_card_where_unsloth_cannot_work_says_why_and_computes_all_the_same():
    told = said(replace(WITH_CARD, cards=(L4,), unsloth_problem=f"the package unsloth is not installed ({INSTALL})"))
    assert told["backend"].startswith("transformers; unsloth cannot work here: the package unsloth is not installed")
    assert INSTALL in told["backend"]
    assert told["attention"] == "torch's scaled_dot_product_attention (sdpa)"
    assert told["precision"] == "over 4-bit weights bf16; adapters are float32"


def test_of_several_cards_the_first_one_is_used():
    told = said(replace(WITH_CARD, cards=(L4, T4)))
    assert told["device"].startswith("NVIDIA L4, 22.0 GiB, compute capability 8.9 | Tesla T4")
    assert told["device"].endswith("a run uses the first, CUDA_VISIBLE_DEVICES chooses another")
    assert told["precision"].startswith("over 4-bit weights bf16")


def test_a_machine_without_a_card():
    told = said(WITHOUT)
    assert told["device"] == "no CUDA card; 2 CPU threads"
    assert told["precision"] == (
        "over 4-bit weights fp32, as torch finds no bf16 instructions on this CPU; adapters are float32"
    )
    assert said(replace(WITHOUT, cpu_bf16=True))["precision"] == "over 4-bit weights bf16; adapters are float32"


def test_the_allocator_is_named_where_updates_in_fp32_depend_on_it():
    told = said(replace(WITHOUT, allocator="glibc"))["allocator"]
    assert told.startswith("glibc; tcmalloc in its place makes updates faster")
    assert said(replace(WITHOUT, allocator="tcmalloc"))["allocator"] == "tcmalloc"
    for seen in (WITHOUT, replace(WITHOUT, allocator="glibc", cpu_bf16=True), replace(WITH_CARD, allocator="glibc")):
        assert "allocator" not in said(seen)


@pytest.mark.parametrize(
    ("cuda", "why"), [(None, "install a CUDA build of it"), ("13.0", "which may be newer than the driver")]
)
def test_a_driver_whose_card_torch_cannot_use_is_a_problem(cuda: str | None, why: str):
    told = said(replace(WITHOUT, driver="535.104", torch_cuda=cuda))["device"]
    assert told.startswith("!2 CPU threads; driver 535.104, but torch can use no card: ")
    assert why in told


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"torch": "2.9.1"},
            'lite-selfplay needs torch<2.15,>=2.10, and 2.9.1 is installed: pip install "torch<2.15,>=2.10"',
        ),
        (
            {"trl": None},
            'lite-selfplay needs trl<=1.15.0,>=1.15, and none is installed: pip install "trl<=1.15.0,>=1.15"',
        ),
        ({"accelerate": None}, 'trl needs accelerate, and none is installed: pip install "accelerate"'),
        ({"accelerate": "unknown"}, 'trl needs accelerate, and unknown is installed: pip install "accelerate"'),
    ],
)
def test_versions_that_do_not_fit_are_named_with_what_to_install(changes: dict[str, str | None], text: str):
    installed = {name: found for name, found in {**INSTALLED, **changes}.items() if found is not None}
    assert said(replace(WITH_CARD, installed=installed))["versions"] == f"!{text}"


def test_torch_in_pieces():
    told = said(replace(WITHOUT, torch_problem="ImportError: libcudart.so.13: no such file"))
    assert told["device"].startswith("!torch cannot be imported (ImportError: libcudart.so.13: no such file)")
    assert "pip install --force-reinstall torch" in told["device"]
    assert told["backend"].startswith("!none")
    assert told["precision"].startswith("!unknown")


def test_an_error_in_the_metadata_of_unsloth_is_a_fact(monkeypatch: pytest.MonkeyPatch):
    def broken() -> str | None:
        raise TypeError("expected a string\nand a second line")

    monkeypatch.setattr(module, "unsloth_problem", broken)
    seen = facts()
    assert seen.torch_problem is None
    assert seen.unsloth_problem == f"what is installed of it cannot be read (TypeError: expected a string): {INSTALL}"


# This machine


def test_facts_are_those_of_this_machine():
    seen = facts()
    assert seen.installed["torch"] == torch.__version__
    assert bool(seen.cards) == torch.cuda.is_available()
    assert seen.allocator in ("", "glibc", "tcmalloc", "jemalloc", "mimalloc")
    assert {requirement.name for requirement in seen.needed[OWN]} >= {"torch", "trl", "peft", "transformers"}
    here = torch.device("cuda" if seen.cards else "cpu")
    kind = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[
        compute_dtype(ModelSection(name="tiny"), here)
    ]
    assert said(seen)["precision"].startswith(f"over 4-bit weights {kind}")


def test_the_command_tells_of_this_machine(call: Callable[..., Any]):
    ended = call("doctor")
    lines = {line.split()[0]: line for line in ended.out.splitlines()}
    parts = ["python", "packages", "versions", "device", "backend", "attention", "precision", "models", "sandbox"]
    seen = facts()
    if not seen.cards and not seen.cpu_bf16 and seen.allocator:
        parts.insert(parts.index("models"), "allocator")
    assert list(lines) == parts
    assert lines["sandbox"].split()[1] in ("kernel,", "none:")
    assert ended.code == int("PROBLEM: " in ended.out)
    if not torch.cuda.is_available():
        assert lines["backend"].split()[1:4] == ["transformers;", "unsloth", "cannot"]


def test_the_command_ends_with_1_where_something_has_to_be_mended(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "facts", lambda: replace(WITH_CARD, installed={**INSTALLED, "torch": "2.9.1"}))
    ended = call("doctor")
    assert ended.code == 1
    assert "PROBLEM: lite-selfplay needs torch<2.15,>=2.10, and 2.9.1 is installed" in ended.out


@pytest.mark.parametrize(
    ("body", "problem"),
    [("raise ImportError('libtorch.so is missing')", "libtorch.so is missing"), ("", "has no attribute 'cuda'")],
    ids=["raises", "is empty"],
)
def test_the_command_survives_a_torch_that_is_half_installed(tmp_path: Path, body: str, problem: str):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(body)
    (tmp_path / "unsloth-2026.10.9.dist-info").mkdir()  # without METADATA
    done = subprocess.run(
        [sys.executable, "-c", "from lite_selfplay_cli.app import main; main()", "doctor"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert problem in done.stdout
    assert "unsloth unknown" in done.stdout
