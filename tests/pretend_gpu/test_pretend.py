"""The pretend GPU itself: what it refuses, counts and remembers."""

import pytest
import torch

from tests.pretend_gpu import pretend


def test_numbers_are_right_and_devices_do_not_mix(t4: pretend.Card):
    x = torch.arange(3.0, device="cuda", requires_grad=True)
    assert (type(x), x.is_cuda, str(x.device)) == (torch.Tensor, True, "cuda:0")
    (x * x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 2.0, 4.0]
    with pytest.raises(RuntimeError, match=r"at least two devices, cuda:0 and cpu! .* shape \[3\]"):
        x + torch.ones(3)
    assert (x + torch.tensor(1.0)).tolist() == [1.0, 2.0, 3.0]  # a single number may come from the host
    with pytest.raises(RuntimeError, match="indices should be"):
        torch.ones(3)[x.long()]
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device="cuda", generator=torch.Generator())
    with pytest.raises(TypeError, match=r"Use Tensor\.cpu"):
        x.detach().numpy()


def test_kernels_and_waits_are_counted(t4: pretend.Card):
    x = torch.ones(4, 4, device="cuda")
    with t4.watch(with_operations=True) as seen:
        y = (x @ x)[0].view(2, 2)  # views launch nothing
        assert seen.syncs == 0
        assert float(y.sum()) == 16
    assert seen.operations == [("mm", ((4, 4), (4, 4))), ("sum", ((2, 2),)), ("_local_scalar_dense", ((),))]
    assert seen.sizes == [3 * 64, 20, 4]
    assert [wait.kind for wait in seen.waits] == ["read"]
    with t4.watch() as seen:
        torch.ones(3).to("cuda")
        torch.ones(3).pin_memory().to("cuda", non_blocking=True)
        x[x > 0]
        x.cpu()
    assert sorted(wait.kind for wait in seen.waits.elements()) == ["read", "shape", "write"]


def test_memory_is_counted_and_runs_out(t4: pretend.Card):
    before = torch.cuda.memory_allocated()
    x = torch.empty(2**20, device="cuda")
    assert torch.cuda.memory_allocated() - before == 2**22
    torch.cuda.set_per_process_memory_fraction(2**23 / t4.model.memory)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        torch.empty(2**22, device="cuda")
    del x
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() >= 2**22


def test_its_randomness_is_its_own(t4: pretend.Card):
    before = torch.get_rng_state()
    torch.cuda.manual_seed(3)
    first = torch.rand(3, device="cuda").tolist()
    torch.cuda.manual_seed(3)
    assert torch.rand(3, device="cuda").tolist() == first
    assert torch.equal(torch.get_rng_state(), before)
