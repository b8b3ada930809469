"""The process settings of a base on a CPU: they end with the run, and a switch leaves the process alone."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from lite_selfplay.config import RunSection
from lite_selfplay.models.backends import transformers, tuning
from lite_selfplay.models.logprobs.batch import Batch
from tests.models.sampled import asked as request
from tests.models.sampled import assert_alike, completions
from tests.models.watch import noted

TRIM = ("malloc_trim", 0)
on_a_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a card has memory of its own")

FAULTS = """
import resource, torch
from lite_selfplay.models.backends.tuning import keep_what_is_freed, trim_heap

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(2**24)  # 64 MiB, freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))

asked_for = [faults() for _ in range(3)]
keep_what_is_freed()
torch.zeros(5 * 2**22)  # a larger one first: a tensor is aligned within what was freed, and needs a few bytes more
kept = [faults() for _ in range(6)]
held = resident()
trim_heap()
print(min(asked_for), min(kept), held - resident())  # a tensor may lie elsewhere now and then
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_what_is_freed_is_used_again_and_goes_back_when_asked():
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    asked_for, kept, returned = map(int, done.stdout.split())
    if asked_for < 1000:
        pytest.skip("pages of this system are large: there is little to save")
    assert kept < asked_for / 50
    assert returned > 60_000  # KiB


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls to a C library that is not there."""
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(tuning, "_from_glibc", lambda name: lambda *values: found.append((name, *values)))
    monkeypatch.setattr(tuning, "_asking", 0)
    return found


@on_a_cpu
def test_it_ends_with_the_last_backend_that_asked(make_backend, asked):
    first, second = make_backend(), make_backend()
    first.close()
    first.close()
    assert asked == [("mallopt", -3, 2**30), ("mallopt", -1, -1)] * 2
    second.close()
    assert asked[4:] == [("mallopt", -3, 131072), ("mallopt", -1, 131072), TRIM]


@on_a_cpu
def test_a_base_whose_activations_are_computed_again_keeps_no_large_tensor(make_backend, asked):
    backend = make_backend(gradient_checkpointing=True)
    within, after = ([("mallopt", -3, size * 2**20), ("mallopt", -1, -1)] for size in (1, 10))
    assert asked == after
    with backend.updating():
        assert asked[2:] == [TRIM]  # what sampling freed
    assert asked[3:] == [TRIM]  # what the update freed
    backend.generate(request("A", [[1, 2, 3]], 1, max_tokens=2))
    assert asked[4:] == [TRIM, *within, TRIM, *after]


@on_a_cpu
def test_a_base_without_room_to_copy_its_weights_expands_them_at_every_token(make_backend, asked, monkeypatch):
    backend = make_backend("4bit", compute_dtype="fp32", gradient_checkpointing=True)
    monkeypatch.setattr(backend.adapters, "dense_bytes", lambda dtype: [2**20, 5 * 2**20])
    copied = noted(monkeypatch, backend.adapters, "inference_packed", lambda seat, dense: seat)

    def said():
        asked.clear()
        return completions(backend, request("A", [[1, 2, 3]], 16, max_tokens=4))

    roomy = said()
    assert (copied, asked[1]) == (["A"], ("mallopt", -3, 2**20))
    backend._samples_dense = False
    tight = said()
    # A weight of 5 MiB is freed at each token: kept for the next one, as is what is smaller.
    assert (copied, asked[1]) == (["A"], ("mallopt", -3, 5 * 2**20 + 4096))
    assert_alike(tight, roomy)


@on_a_cpu
@pytest.mark.parametrize(("dtype", "lean"), [("fp32", True), ("bf16", False)])
def test_a_lean_base_gives_back_within_the_passes_of_an_update(make_backend, asked, monkeypatch, dtype, lean):
    monkeypatch.setattr(transformers, "_LAYERS_OF_GAPS", 1)
    backend = make_backend("4bit", compute_dtype=dtype, gradient_checkpointing=True)
    layers = len(backend.adapters.model.get_base_model().model.layers)
    batch = Batch.of([([1, 2, 3], [4, 5])], backend.way())
    asked.clear()
    with torch.no_grad():
        backend.token_logprobs(batch)
    assert asked == []
    with backend.updating():
        asked.clear()
        logprobs, _ = backend.token_logprobs(batch)
        assert asked == [TRIM] * (layers if lean else 0)
        asked.clear()
        logprobs.sum().backward()
        assert set(asked) == ({TRIM} if lean else set())
        assert len(asked) >= (layers if lean else 0)
    assert backend.tokens_at_once(RunSection()) == (896 if lean else 1280)
    assert backend.tokens_at_once(RunSection(microbatch_tokens=40)) == 40


@on_a_cpu
def test_a_child_process_inherits_nothing(make_backend, monkeypatch):
    seen = noted(monkeypatch, torch.nn.functional, "linear", lambda *given: dict(os.environ))
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    before = dict(os.environ)
    tuning.tune(make_backend, torch.float32)()
    assert dict(os.environ) == before
    # While oneDNN reads them, both are set: what the user chose, and what nobody did.
    assert seen[0]["LRU_CACHE_CAPACITY"] == "7"
    assert seen[0]["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "64"


def test_activations_are_recomputed_by_the_name_of_the_release():
    calls = []

    class Older:
        def gradient_checkpointing_enable(self, how):
            calls.append(("older", how))

    class Newer(Older):
        def activation_checkpointing_enable(self, how):
            calls.append(("newer", how))

    for base in (Older(), Newer()):
        transformers.recompute_activations(base, {"use_reentrant": False})
    assert calls == [("older", {"use_reentrant": False}), ("newer", {"use_reentrant": False})]
