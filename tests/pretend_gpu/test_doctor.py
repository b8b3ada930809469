"""`doctor` on simulated machines: what would run on each, and why."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay.config import ModelSection
from lite_selfplay.errors import RequestError
from lite_selfplay.extras.doctor import machine
from lite_selfplay.models import fused
from lite_selfplay.models.backends import availability, chosen, transformers
from lite_selfplay.models.backends.transformers import TransformersBackend
from tests.models.test_architectures import DENSE
from tests.models.test_architectures import folder as folder_of
from tests.pretend_gpu import counts, pretend
from tests.pretend_gpu.pretend import operations

V100 = dataclasses.replace(pretend.T4, name="Tesla V100-SXM2-16GB", memory=int(15.8 * pretend.GIB), capability=(7, 0))
CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]
"""The architectures of torch for CUDA 13."""


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A GPU in a machine with a driver, and a torch compiled for some architectures."""
    monkeypatch.setattr(availability, "driver", lambda: "580.82.07")
    with contextlib.ExitStack() as stack:

        def card(model: pretend.Model, compiled: Sequence[str] = CUDA_13) -> None:
            stack.enter_context(pretend.card(model))
            stack.callback(monkeypatch.undo)
            monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: [*compiled])

        yield card


def told() -> dict[str, str]:
    """The report on each part, with a `!` before problems."""
    return {each["part"]: ("" if each["fine"] else "!") + each["text"] for each in machine()}


def with_unsloth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "package_problem", lambda: None)
    monkeypatch.setattr("lite_selfplay.models.backends.version_of", lambda name: "2026.10.9")


def test_a_t4(put: Callable[..., None]):
    put(pretend.T4)
    said = told()
    assert said["device"].startswith("Tesla T4, 14.6 GiB; compute capability 7.5, driver 580.82.07, torch for CUDA")
    assert said["precision"] == "4-bit weights compute in fp16, since Tesla T4 has no bf16; adapters are float32"
    assert said["backend"].startswith("transformers; the package unsloth is not installed")
    assert not any(text.startswith("!") for text in said.values())


def test_a_v100_wants_the_one_build_that_has_code_for_it(put: Callable[..., None]):
    put(V100)
    assert told()["device"].endswith(
        "install the build of torch for CUDA 12.6 (pytorch.org); " + availability.ON_PURPOSE
    )


def test_which_attention_runs_and_why(put: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert told()["attention"] == "this library's own, on a CPU"
    with pretend.card(pretend.T4):
        old = "no flash attention, since it needs compute capability 8.0, and this GPU has 7.5"
        assert told()["attention"] == f"{old}; SwiGLU in one compiled kernel"
    put(pretend.RTX_4090)
    assert told()["attention"] == "flash attention; SwiGLU in one compiled kernel"
    warned: list[str] = []
    counts.deep_model(tmp_path, 1)
    counts.load(tmp_path, warn=warned.append)
    assert not warned

    def changed(*given: Any, **more: Any) -> Any:
        raise TypeError("unexpected keyword argument 'seqused_k'")

    monkeypatch.setattr(operations, "flash", changed)
    refused = f"torch {torch.__version__} refused it: unexpected keyword argument 'seqused_k'"
    said = f"sampling: no flash attention, since {refused}; update: flash attention"
    assert told()["attention"] == f"{said}; SwiGLU in one compiled kernel"
    counts.load(tmp_path, warn=warned.append)
    assert warned == [f"no flash attention, which this GPU should have, so everything is slower: {refused}"]


def test_which_kernel_multiplies_gates(put: Callable[..., None], monkeypatch: pytest.MonkeyPatch):
    put(pretend.RTX_4090)

    def missing(*_: Any) -> None:
        raise RuntimeError("libnvrtc.so.13: cannot open shared object file")

    for compiles in (True, False):
        fused._kernels.cache_clear()
        assert ("SwiGLU in one compiled kernel" in told()["attention"]) == compiles
        assert ("several kernels" in told()["attention"]) != compiles
        monkeypatch.setattr(torch._C, "_cuda_jiterator_compile_and_launch_kernel", missing)
    fused._kernels.cache_clear()


@pytest.mark.parametrize("installed", [False, True])
def test_a_run_says_that_layers_with_a_state_lack_their_library(
    put: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: bool
):
    put(pretend.RTX_4090)
    monkeypatch.setattr(transformers, "version_of", lambda name: "0.4" if installed else None)
    warned: list[str] = []
    counts.load(folder_of(tmp_path, "qwen3_5_text", **DENSE["qwen3_5_text"]), warn=warned.append)
    assert [sentence.endswith("pip install flash-linear-attention") for sentence in warned] == [True] * (not installed)


def test_a_driver_is_found_where_windows_puts_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Under WSL the driver has no file, and its program may not be on the path."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 566.36\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(availability, "WSL_SMI", str(program))
    assert availability.driver() == "566.36"


def test_a_4090_with_unsloth(put: Callable[..., None], monkeypatch: pytest.MonkeyPatch):
    put(pretend.RTX_4090)
    with_unsloth(monkeypatch)
    monkeypatch.setattr(availability, "compiler_problem", lambda: None)
    said = told()
    assert said["precision"] == "4-bit weights compute in bf16; adapters are float32"
    assert said["backend"].startswith("transformers; its CUDA graphs sample three times as fast")
    assert said["backend"].endswith("--backend unsloth works, too")
    assert chosen(ModelSection(name="tiny", backend="unsloth")) == "unsloth"
    with pytest.raises(RequestError, match="needs a GPU, and --device cpu"):
        chosen(ModelSection(name="tiny", backend="unsloth", device="cpu"))


def test_a_v100_that_torch_has_no_code_for(put: Callable[..., None], tiny_path: Path):
    put(V100)
    known = f"compute capability 7.0, and torch {torch.__version__} is built for 7.5 to 12.0"
    assert told()["device"].startswith(f"!Tesla V100-SXM2-16GB has {known}")
    with pytest.raises(RequestError, match=r"capability 7\.0.*--device cpu"):
        counts.load(tiny_path)
    section = ModelSection(name="tiny", precision="fp32", device="cpu")
    assert TransformersBackend(tiny_path, section, counts.SEATS, seed=0, eos_ids=[2]).device.type == "cpu"


@pytest.mark.parametrize(
    ("capability", "compiled", "runs"),
    [
        ((8, 9), ["sm_75", "sm_86"], True),  # code for an older GPU of the same generation
        ((8, 0), ["sm_75", "sm_86"], False),
        ((12, 1), ["sm_90", "compute_90"], True),  # compiled by the driver
        ((9, 0), ["sm_90a"], True),
        ((7, 0), ["sm_70"], True),
        ((7, 0), [], True),  # a build that does not say
    ],
)
def test_code_runs_on_its_own_generation_or_is_compiled_for_it(
    put: Callable[..., None], capability: Any, compiled: list[str], runs: bool
):
    put(dataclasses.replace(V100, capability=capability), compiled)
    assert (availability.device_problem() is None) is runs


def test_operators_that_do_not_load_are_tried_and_said(
    put: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tiny_path: Path
):
    import bitsandbytes.functional

    put(pretend.RTX_4090)

    def none(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

    monkeypatch.setattr(bitsandbytes.functional, "quantize_4bit", none)
    said = told()["precision"]
    assert said.startswith("!bitsandbytes ")
    assert "no kernel image is available" in said
    assert said.endswith("use --precision bf16")
    with pytest.raises(RequestError, match=r"does not run on this GPU.*--precision bf16"):
        counts.load(tiny_path, "4bit")


@pytest.mark.parametrize("missing", ["compiler", "header"])
def test_without_a_compiler_unsloth_cannot_work(
    put: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
):
    put(pretend.T4)
    with_unsloth(monkeypatch)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("CC", raising=False)
    (tmp_path / "gcc").touch(mode=0o755)
    (tmp_path / "Python.h").touch()
    folder = tmp_path / "none" if missing == "header" else tmp_path
    monkeypatch.setattr("sysconfig.get_paths", lambda scheme=None: {"include": str(folder)})
    monkeypatch.setenv("PATH", "" if missing == "compiler" else str(tmp_path))
    said = told()["backend"]
    assert said.startswith("transformers; Unsloth cannot work here: Triton needs ")
    assert ("neither CC, gcc nor clang" if missing == "compiler" else "Python.h") in said
    assert chosen(ModelSection(name="tiny")) == "transformers"
    monkeypatch.setattr("sysconfig.get_paths", lambda scheme=None: {"include": str(tmp_path)})
    monkeypatch.setenv("CC", "tcc")
    assert availability.unsloth_problem() is None


def test_xformers_is_tried(put: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    put(pretend.T4)
    about = "Name: xformers\nVersion: 0.0.35\n"
    files = {"xformers/__init__.py": "", "xformers/_C.so": "no library", "xformers-0.0.35.dist-info/METADATA": about}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    said = told()
    assert "xformers 0.0.35" in said["packages"]
    assert said["xformers"].startswith(f"its operators do not load beside torch {torch.__version__} (OSError: ")
    assert said["xformers"].endswith("Unsloth uses torch's own attention")
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    assert told()["xformers"].startswith("its operators load")
