import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from lite_selfplay.models.backends.transformers import recompute_activations
from lite_selfplay.models.logprobs.batch import Batch, Row
from lite_selfplay.models.logprobs.reading import shares_prefixes
from lite_selfplay.models.logprobs.token_logprobs import FrozenHead, is_frozen, token_logprobs
from tests.models.small import small
from tests.models.watch import noted
from tests.near import near

# Three prompts of two rows each, two of them alike at the beginning, and completions of several lengths.
PROMPTS = [[5, 6, 7, 8, 9, 10, 11]] * 2 + [[5, 6, 7, 8, 9, 20, 21, 22]] * 2 + [[30, 31, 32, 33, 34]] * 2
COMPLETIONS = [[40, 41, 42], [43], [44, 45], [46, 47, 48, 49], [50], [51, 52]]
ROWS: list[Row] = list(zip(PROMPTS, COMPLETIONS, strict=True))


def qwen3() -> Any:
    return small("qwen3", head_dim=8)


def gemma2_with_softcap() -> Any:
    return small("gemma2", head_dim=8, final_logit_softcapping=0.5, sliding_window=8)


def granite_with_scaled_logits() -> Any:
    return small("granite", logits_scaling=4.0)


def plain_row(model: Any, prompt: list[int], completion: list[int], temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of a completion, by the plain forward pass of its row."""
    logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    log_p = (logits / temperature).log_softmax(-1)
    return log_p.gather(-1, torch.tensor(completion)[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("make", [qwen3, gemma2_with_softcap, granite_with_scaled_logits])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_equal_to_the_plain_forward_of_each_row(make, temperature):
    model = make().eval()
    prompts, completions = [[3, 4, 5, 6], [7], [8, 9]], [[10, 11], [12, 13, 14, 15], [16]]
    batch = Batch.of(zip(prompts, completions, strict=True))
    found = token_logprobs(model, batch, temperature, head_elements=90 * 3)  # pieces of three positions
    assert [x.shape for x in found] == [(7,), (7,)]
    for prompt, completion, got, entropies in zip(prompts, completions, *map(batch.split, found), strict=True):
        assert all(map(near, (got, entropies), plain_row(model, prompt, completion, temperature)))


def test_rows_that_are_read_whole_need_no_mask_and_no_positions(monkeypatch):
    """A base may drop both in training: tokens see no padding behind their row."""
    model = qwen3()
    asked = noted(monkeypatch, model.model, "forward", lambda **inputs: {k for k, v in inputs.items() if v is not None})
    token_logprobs(model, Batch.of(ROWS))
    assert asked == [{"input_ids", "use_cache"}]


def test_a_cache_that_forgets_positions_is_not_shared():
    assert not shares_prefixes(gemma2_with_softcap())
    model = qwen3()
    assert shares_prefixes(model)
    recompute_activations(model, {"use_reentrant": False})
    assert not shares_prefixes(model.train())
    assert shares_prefixes(model.eval())


def frozen_linear(bias: bool = False, vocabulary: int = 50) -> nn.Linear:
    head = nn.Linear(16, vocabulary, bias=bias).requires_grad_(False)
    head.weight.mul_(6)
    return head


def plain_scores(
    head: nn.Module, hidden: Tensor, targets: Tensor, softcap: float | None = None, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    logits = head(hidden).float()
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    log_p = (logits / temperature).log_softmax(-1)
    return log_p.gather(-1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def gradient(scores: tuple[Tensor, Tensor], hidden: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """The gradient of the weighted sum of log-probabilities, and of entropies if they have weights."""
    total = torch.stack([(s * w).sum() for s, w in zip(scores, weights, strict=False)]).sum()
    return torch.autograd.grad(total, hidden)[0]


@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("bias", [False, True])
def test_a_frozen_head_equals_plain_autograd(bias, softcap, temperature, entropy_gradient):
    torch.manual_seed(1)
    head, hidden, targets = frozen_linear(bias), torch.randn(12, 16, requires_grad=True), torch.randint(0, 50, (12,))
    weights = tuple(torch.randn(2 if entropy_gradient else 1, 12))
    expected = plain_scores(head, hidden, targets, softcap, temperature)
    expected_gradient = gradient(expected, hidden, weights)
    for size in (1, 4, 5, 100):  # single rows, an exact multiple, a remainder, all at once
        got = FrozenHead.of(head, size, softcap, temperature).scores(hidden, targets, entropy_gradient)
        assert got[1].requires_grad == entropy_gradient
        assert near(got[0], expected[0])
        assert near(got[1], expected[1]) if entropy_gradient else not got[1].any()  # nobody asked for them
        assert near(gradient(got, hidden, weights), expected_gradient)


def test_a_frozen_head_by_hand():
    """Two words with logits log 3 and 0: p = (3/4, 1/4), and d log p(second) / d logits = (-3/4, 3/4)."""
    head = FrozenHead(torch.eye(2), None, 1)
    hidden = torch.tensor([[math.log(3), 0.0]], requires_grad=True)
    logprobs, entropies = head.scores(hidden, torch.tensor([1]), entropy_gradient=True)
    assert logprobs.item() == pytest.approx(math.log(0.25))
    assert entropies.item() == pytest.approx(math.log(4) - 0.75 * math.log(3))
    (of_logprob,) = torch.autograd.grad(logprobs, hidden, retain_graph=True)
    assert of_logprob[0].tolist() == pytest.approx([-0.75, 0.75])
    # -p (log p + H): H exceeds -log(3/4) by log(3) / 4.
    (of_entropy,) = torch.autograd.grad(entropies, hidden)
    assert of_entropy[0].tolist() == pytest.approx([-0.1875 * math.log(3), 0.1875 * math.log(3)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_frozen_head_in_half_precision_is_right_within_its_rounding(dtype, autocast):
    torch.manual_seed(2)
    exact = frozen_linear(bias=True, vocabulary=400).to(dtype).float()
    hidden, targets = torch.randn(9, 16).mul(0.3).to(dtype).float().requires_grad_(), torch.randint(0, 400, (9,))
    weights = tuple(torch.randn(2, 9))
    expected = plain_scores(exact, hidden, targets, temperature=0.7)
    with torch.autocast("cpu", dtype, enabled=autocast):
        head = FrozenHead.of(exact if autocast else deepcopy(exact).to(dtype), 4, None, 0.7)
        given = hidden if autocast else hidden.to(dtype)
        got = head.scores(given, targets, entropy_gradient=True)
        found = gradient(got, hidden, weights)
    assert head.weight.dtype == dtype
    assert {each.dtype for each in (*got, found)} == {torch.float32}
    assert all(torch.allclose(value, plain, atol=0.05) for value, plain in zip(got, expected, strict=True))
    plain_gradient = gradient(expected, hidden, weights)
    assert torch.cosine_similarity(found.flatten(), plain_gradient.flatten(), dim=0) > 0.999


def test_probabilities_below_what_fp16_holds_keep_their_gradient():
    """A token with probability 1e-8 and its own weight: its gradient is -1e-8, not 0."""
    hidden = torch.tensor([[1.0, 0.0]], dtype=torch.float16)
    weight = torch.tensor([[0.0, 0.0], [-18.42, 1.0]], dtype=torch.float16)
    *_, vector = FrozenHead(weight, None, 1).compute(hidden, torch.tensor([0]), gradients=1)
    assert vector.dtype == torch.float32
    assert vector[0, 1].item() == pytest.approx(-1e-8, rel=0.1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_a_frozen_head_makes_none(mode, monkeypatch):
    monkeypatch.setattr(FrozenHead, "_toward_hidden", None)
    head, hidden, targets = frozen_linear(), torch.randn(5, 16, requires_grad=True), torch.randint(0, 50, (5,))
    expected = plain_scores(head, hidden, targets)
    with mode():
        found = [FrozenHead.of(head, 2, None, 1.0).scores(hidden, targets, True)]
    found.append(FrozenHead.of(head, 2, None, 1.0).scores(hidden.detach(), targets, True))
    for scores in found:
        assert not any(s.requires_grad for s in scores)
        assert all(map(near, scores, expected))


def test_only_a_plain_untrained_matrix_counts_as_frozen():
    class Scaled(nn.Linear):
        pass

    model = get_peft_model(qwen3(), LoraConfig(target_modules="all-linear"))
    assert is_frozen(model.get_base_model().get_output_embeddings())
    assert is_frozen(frozen_linear(bias=True))
    assert not is_frozen(nn.Linear(4, 9))
    assert not is_frozen(Scaled(4, 9).requires_grad_(False))
    assert not is_frozen(nn.Sequential(frozen_linear()))
    hooked = frozen_linear()
    hooked.register_forward_hook(lambda module, args, out: out * 2)
    assert not is_frozen(hooked)


@pytest.mark.parametrize("make", [qwen3, gemma2_with_softcap])
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_a_frozen_head_and_a_trained_one_lead_to_the_same_gradients(make, entropy_gradient):
    model, batch = make(), Batch.of(ROWS)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())  # no longer the embedding's
    found = []
    for trained in (True, False):
        model.zero_grad()
        model.lm_head.requires_grad_(trained)
        options: dict[str, Any] = {"entropy_gradient": entropy_gradient, "head_elements": 90 * 4}  # in pieces
        lp, entropy = token_logprobs(model, batch, 0.7, **options)
        assert entropy.requires_grad == entropy_gradient
        loss = (lp * torch.arange(1, len(lp) + 1)).sum() + (entropy.sum() if entropy_gradient else 0)
        loss.backward()
        found.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    head = found[0].pop("lm_head.weight")
    assert found[0].keys() == found[1].keys()
    assert all(near(found[0][n], found[1][n]) for n in found[0])

    model.lm_head.requires_grad_(True)
    loss = torch.zeros(())
    weights = batch.split(torch.arange(1, len(batch.completion_ids) + 1))
    for (prompt, completion), weight in zip(batch.rows, weights, strict=True):
        logprobs, entropies = plain_row(model, prompt, completion, 0.7)
        loss = loss + (logprobs * weight).sum() + entropies.sum() * entropy_gradient
    (expected,) = torch.autograd.grad(loss, model.lm_head.weight)
    assert near(head, expected)
