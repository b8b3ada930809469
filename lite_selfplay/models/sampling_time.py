"""The least time that a step's sampling takes on a card, from its bandwidth and what a launch costs.

Tokens of a row follow each other, so a step has at least as many tokens in a row as its longest completion, and more
where not all rows fit at once. For each of them a card reads every weight of the linear layers and the head, and every
key and value that is held; and without CUDA graphs the host launches every kernel. Arithmetic, attention's own kernels
and everything between them are left out: these are floors, and have not been compared with a card.
"""

import math
from dataclasses import dataclass

from lite_selfplay.config import RunConfig
from lite_selfplay.models.memory import Load, compute_bytes
from lite_selfplay.models.shapes import Shape

KERNELS_OF_A_LAYER, KERNELS_BESIDE = 29, 68
"""Of a decoded token, as the tests count them on a pretend card (`tests/card/test_token.py`), in a model like Qwen3."""
LAUNCH_US = 5.0
"""Microseconds that a launch costs a host: assumed where nobody says otherwise."""


@dataclass(frozen=True)
class SamplingTime:
    """What the sampling of a step comes to, at the most tokens that its completions may have.

    `together` completions are sampled side by side, `tokens` of theirs follow each other; each reads `bytes` and
    launches `kernels`.
    """

    together: int
    tokens: int
    bytes: float
    kernels: int

    def reading(self, bandwidth: float) -> float:
        """Seconds, at so many bytes per second."""
        return self.tokens * self.bytes / bandwidth

    def launching(self, launch_us: float) -> float:
        """Seconds, at so many microseconds a launch, without CUDA graphs."""
        return self.tokens * self.kernels * launch_us * 1e-6


def sampling_time(config: RunConfig, shape: Shape, load: Load, completions: int) -> SamplingTime:
    """Of a step of so many completions, by a configuration that is filled in.

    A row that ends makes room for another one, so that the places are always taken, but for the last rows.
    """
    together = max(1, min(load.rows, config.run.generation_tokens // load.row))
    compute = compute_bytes(config)
    weights = compute * (shape.linear_parameters + shape.vocabulary * shape.hidden)
    held = together * (load.prompt_tokens + load.completion_tokens / 2)
    return SamplingTime(
        together=together,
        tokens=math.ceil(completions / together) * load.completion_tokens,
        bytes=weights + held * shape.layers * 2 * shape.keys * compute,
        kernels=shape.layers * KERNELS_OF_A_LAYER + KERNELS_BESIDE,
    )
