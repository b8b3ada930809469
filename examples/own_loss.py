"""A loss of your own in one file: CISPO (MiniMax 2025, arXiv 2506.13585), and GRPO written out to start from.

    lite-selfplay train grpo --model tiny --tasks letters --steps 10 --set 'roles.*.loss=examples/own_loss.py:cispo'

A loss returns what is to become small: a term a completion, (B,), or a term a token, (B, T). It asks by name for what
it needs: `logprobs`, `old`, `reference` and `mask` are (B, T), `advantages` (B,); a key of the role, such as
`clip_ratio`, has the value that the run's configuration gives it.
"""

import torch

from lite_selfplay import RunConfig, train


def cispo(logprobs, old, advantages, clip_ratio):
    """The ratio weighs every token's log-probability, and its bound cuts no token's gradient off."""
    weights = (logprobs - old).exp().clamp(max=1 + clip_ratio).detach()
    return -weights * advantages[:, None] * logprobs


def grpo(logprobs, old, reference, advantages, mask, clip_ratio, beta):
    """The library's default: the mean over each completion's tokens, then over completions."""
    ratio, advantages = (logprobs - old).exp(), advantages[:, None]
    terms = -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_ratio, 1 + clip_ratio) * advantages)
    if reference is not None:
        gap = reference - logprobs
        terms = terms + beta * (gap.exp() - gap - 1)
    return (terms * mask).sum(-1) / mask.sum(-1)


if __name__ == "__main__":
    loss = f"{__file__}:cispo"
    run = train(
        RunConfig(game="grpo", model="tiny", tasks="letters", steps=10, roles={"*": {"loss": loss}}), progress=print
    )
    print("adapter:", run.seats["solver"])
