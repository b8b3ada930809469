"""If memory runs out, work is repeated in smaller pieces with the same result, or an error says what to change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lite_selfplay import RunConfig, train
from lite_selfplay.data import Sampling
from lite_selfplay.errors import TrainingError
from lite_selfplay.models.backends import transformers as backend_module
from lite_selfplay.models.backends.backend import is_out_of_memory
from lite_selfplay.models.backends.transformers import TransformersBackend
from lite_selfplay.models.generation.sampling import Decoding, GenerationRequest
from lite_selfplay.models.logprobs.batch import Batch

from .harness import episode, relative_error

SAMPLING = Sampling(max_tokens=6)
PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
SEEDS = [[3 * i + k for k in range(3)] for i in range(3)]


def test_what_counts_as_no_memory_left():
    allocator = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
    for error in (torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError(allocator)):
        assert is_out_of_memory(error)
    for error in (RuntimeError("shapes do not fit"), ValueError("can't allocate memory")):
        assert not is_out_of_memory(error)


def starving(work: Callable[..., Any], limit: int) -> Callable[..., Any]:
    """The generation loop on a machine that holds keys and values of at most `limit` tokens."""

    def short_of_memory(model: Any, request: GenerationRequest, decoding: Decoding) -> Any:
        if decoding.cache_tokens > limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return work(model, request, decoding)

    return short_of_memory


def test_sampling_is_tried_again_with_half_until_it_fits_and_says_the_same(make_backend: Any, monkeypatch: Any):
    whole = make_backend().generate(GenerationRequest("A", PROMPTS, 3, SAMPLING, SEEDS))
    said: list[str] = []
    backend = make_backend(cache_tokens=160, warn=said.append)
    monkeypatch.setattr(backend_module, "generate", starving(backend_module.generate, 40))
    again = backend.generate(GenerationRequest("A", PROMPTS, 3, SAMPLING, SEEDS))
    assert [[g.token_ids for g in row] for row in again] == [[g.token_ids for g in row] for row in whole]
    assert [text.split(":")[1] for text in said] == [
        " from now on at most 80 tokens at once. --set run.generation_tokens=80 starts with that",
        " from now on at most 40 tokens at once. --set run.generation_tokens=40 starts with that",
    ]
    backend.generate(GenerationRequest("A", PROMPTS, 3, SAMPLING, SEEDS))
    assert len(said) == 2  # remembered


def test_a_row_that_does_not_fit_says_what_to_set_and_no_other_error_does(make_backend: Any, monkeypatch: Any):
    def broken(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("shapes do not fit")

    backend, work = make_backend(cache_tokens=160), backend_module.generate
    for short_of_memory, error, says in (
        (starving(work, 5), TrainingError, r"one completion of up to 10 tokens .* max_completion_tokens"),
        (broken, RuntimeError, "shapes do not fit"),
    ):
        monkeypatch.setattr(backend_module, "generate", short_of_memory)
        with pytest.raises(error, match=says):
            backend.generate(GenerationRequest("A", PROMPTS, 3, SAMPLING, SEEDS))


def limited_to(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the log-probabilities of the update run out of memory on more rows than that."""
    work = TransformersBackend.token_logprobs

    def short_of_memory(backend: Any, batch: Batch, *arguments: Any, **options: Any) -> Any:
        if len(batch.rows) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return work(backend, batch, *arguments, **options)

    monkeypatch.setattr(TransformersBackend, "token_logprobs", short_of_memory)


def test_an_update_is_repeated_in_smaller_microbatches_with_the_same_result(harness: Any, monkeypatch: Any):
    whole = harness().step(episode())
    limited_to(2, monkeypatch)
    again = harness().step(episode())
    assert again.progress.warned
    assert all("out of memory in the update" in sentence for sentence in again.progress.warned)
    assert again.trainer.budget.tokens < whole.trainer.budget.tokens  # also for the next step
    for one, other in zip(whole.reports[0].streams, again.reports[0].streams, strict=True):
        assert (other.rows, other.loss) == (one.rows, pytest.approx(one.loss, abs=1e-5))
        assert relative_error(again.gradients[one.seat], whole.gradients[one.seat]) < 1e-5


def test_one_row_that_is_too_large_for_the_update_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    limited_to(0, monkeypatch)
    small = {"model": "tiny", "tasks": "letters", "precision": "fp32", "group_size": 4, "problems_per_step": 2}
    with pytest.raises(TrainingError, match=r"one completion of drafter \(seat A\).*max_completion_tokens"):
        train(RunConfig(game="agon", steps=1, run_dir=tmp_path / "run", **small))


def test_a_run_goes_on_with_the_microbatches_that_fitted(harness: Any, monkeypatch: Any):
    """Others would round otherwise than the run that was not stopped."""
    whole = harness().step(episode())
    assert "microbatch_tokens" not in whole.trainer.state()
    with monkeypatch.context() as short_of_memory:
        limited_to(2, short_of_memory)
        before = harness().step(episode()).trainer
    assert before.budget.tokens < (first := whole.trainer.budget.tokens)
    whole.trainer.restore({})
    assert whole.trainer.budget.tokens == first
    whole.trainer.restore(before.state())
    assert whole.trainer.budget.tokens == before.budget.tokens
