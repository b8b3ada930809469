"""A run's memory, estimated from its configuration and the shape of its base alone.

Bytes of weights, adapters, optimizer state, keys and values follow from the shapes; activations are those that a block
keeps for its backward pass. Allocator waste and library overhead are allowances, named as such. No weight is read,
nothing is downloaded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lite_selfplay.config import ModelSection, RunConfig, RunSection
from lite_selfplay.models.generation.layout import Layout
from lite_selfplay.models.shapes import Shape

GIB = 2**30
HEAD_ELEMENTS, HEAD_ELEMENTS_IF_LEAN = 2**24, 2**22
"""Logits that an update holds at once, and a lean base's: 64 and 16 MiB in float32. A large GPU holds more."""
HEAD_SHARE = 600
"""Bytes of a GPU for each logit that an update holds at once: a 60th of its memory, for copies in three types."""
HEAD_POSITIONS = 64
"""The fewest positions per product with the head: with fewer, reading the head's weight dominates."""

NF4_BYTES = 0.5 + 4 / 64
"""Bytes of a 4-bit weight: half a byte, and a float32 scale for each block of 64."""

CONTEXT_BYTES, WASTE = 0.9 * GIB, 0.1
"""Allowances: memory of CUDA, libraries or the process before any model, and the allocators' waste of the rest."""
SPARE = 0.1
"""The share of a GPU's free memory that stays free when 4-bit weights are expanded."""
KEYS_SHARE, ROOMY, ACTIVATIONS_SHARE = 0.4, 0.5, 0.4
"""Shares of a GPU's memory without weights: the most for keys and values during sampling; the least free beside them if
they are to stay during an update; the most for activations that are not recomputed."""
TOKENS_ON_CPU = 65536
"""Tokens whose keys and values a CPU holds at once during sampling."""

KEPT_ON_CPU = 10**6
"""The most bytes that a CPU keeps of a token for the backward pass: all activations if they fit, otherwise the results
of products if they fit, otherwise only a block's input. SmolLM2-135M has 1.01 MB of activations in float32, 0.7 MB of
them from products, and half as much in bfloat16."""

_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True)
class Card:
    """A GPU: its name, its memory in bytes, and whether it multiplies in bf16."""

    name: str
    memory: int
    bf16: bool = True


CARDS = {
    key: Card(name, round(gib * GIB), bf16)
    for key, (name, gib, bf16) in {
        "t4": ("Tesla T4", 14.6, False),
        "v100": ("Tesla V100 16 GB", 15.8, False),
        "rtx4060": ("RTX 4060 8 GB", 7.6, True),
        "rtx2080ti": ("RTX 2080 Ti", 10.8, False),
        "rtx3060": ("RTX 3060 12 GB", 11.7, True),
        "rtx3090": ("RTX 3090", 23.6, True),
        "rtx4060ti": ("RTX 4060 Ti 16 GB", 15.6, True),
        "rtx4090": ("RTX 4090", 23.5, True),
        "rtx5090": ("RTX 5090", 31.4, True),
        "l4": ("L4", 22.0, True),
        "a10g": ("A10G", 22.1, True),
        "a100-40": ("A100 40 GB", 39.4, True),
        "a100": ("A100 80 GB", 79.2, True),
        "h100": ("H100 80 GB", 79.1, True),
        "h200": ("H200", 139.8, True),
    }.items()
}


@dataclass(frozen=True)
class Part:
    """One part of the memory: its name, its bytes, and the phases that need it."""

    name: str
    bytes: float
    generating: bool = True
    updating: bool = True


@dataclass(frozen=True)
class Estimate:
    """All parts, and each phase's peak with allowances, in bytes."""

    parts: Sequence[Part]

    @property
    def generating(self) -> float:
        return CONTEXT_BYTES + (1 + WASTE) * sum(part.bytes for part in self.parts if part.generating)

    @property
    def updating(self) -> float:
        return CONTEXT_BYTES + (1 + WASTE) * sum(part.bytes for part in self.parts if part.updating)

    @property
    def peak(self) -> float:
        return max(self.generating, self.updating)


@dataclass(frozen=True)
class Load:
    """The work in flight at once: completions sampled together, and tokens of a prompt and of a completion."""

    rows: int
    prompt_tokens: int
    completion_tokens: int

    @property
    def row(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def tokens(self) -> int:
        return self.rows * self.row


def estimate(
    config: RunConfig, shape: Shape, load: Load, *, on_cpu: bool = False, card: Card | None = None
) -> Estimate:
    """The memory of a run with a complete configuration, on a GPU (or a CPU) that expands 4-bit weights for sampling. A
    given `card` expands them only if they fit."""
    run, section = config.run, config.model
    compute, memory = compute_bytes(config, on_cpu=on_cpu), None if card is None else card.memory
    numbers = sum(seat.rank for seat in config.seats.values()) * sum(map(sum, shape.linears))
    lean = is_lean(section, shape, compute, on_cpu=on_cpu)
    tokens = run.generation_tokens or tokens_held(section, shape, compute, memory)
    together = min(load.rows, max(1, tokens // load.row))
    positions = together * load.row
    if not on_cpu:
        mixed = compute == 2 and (card is None or card.bf16)
        layout = Layout.of(load.rows, load.prompt_tokens, load.completion_tokens, tokens, mixed=mixed)
        together, positions = min(load.rows, layout.rows), layout.held(tokens)
    held = min(max(run.tokens_at_once(on_cpu=on_cpu, lean=lean), load.row), load.tokens)
    logits = min(head_elements(shape.vocabulary, lean=lean, memory=memory), held * shape.vocabulary)
    logit_bytes = (8 + compute) * logits
    kept = activation_bytes(shape, compute)
    activations = held * sum(kept)
    if recomputes(section, shape, compute, on_cpu=on_cpu, tokens=microbatch_tokens(run), memory=memory):
        inputs = shape.layers * shape.hidden * compute
        if keeps_products(section, shape, compute, on_cpu=on_cpu):
            inputs += shape.layers * product_bytes(shape, compute)
        # A block is recomputed after the logits are freed, so the larger of the two counts. Its backward pass holds
        # what it keeps, and gradients of as much; a state's chunks, which are counted, free theirs one by one.
        block = max(kept) if shape.counts and shape.counts.kept else 2 * max(kept)
        activations = held * inputs + max(0, held * block - logit_bytes)
    states = 4 * together * shape.counts.state if shape.counts else 0
    parts = [
        Part("base", weight_bytes(section, shape, compute)),
        Part("adapters", 4 * numbers),
        Part("optimizer", 8 * numbers),
        Part("gradients", 4 * numbers, generating=False),
        Part("keys and values", positions * shape.token_numbers * compute + states, updating=False),
        Part("logits, sampling", 16 * together * shape.vocabulary, updating=False),
        Part("activations", activations, generating=False),
        Part("logits, update", logit_bytes, generating=False),
    ]
    if on_cpu or (section.precision == "4bit" and expands(section, shape, compute, memory)):
        copied = shape.linear_parameters + on_cpu * shape.vocabulary * shape.hidden
        parts.append(Part("dense weights", copied * compute, updating=False))
    if memory is not None and memory - Estimate(parts).generating >= ROOMY * memory:
        parts = [replace(part, updating=part.updating or part.name != "logits, sampling") for part in parts]
    return Estimate(parts)


def microbatch_tokens(run: RunSection) -> int:
    """The most tokens of a microbatch on a GPU; a longer row is a microbatch of its own."""
    return max(run.tokens_at_once(on_cpu=False), run.max_prompt_tokens + (run.max_completion_tokens or 0))


def weight_bytes(section: ModelSection, shape: Shape, compute: int) -> float:
    weight = NF4_BYTES if section.precision == "4bit" else compute
    return shape.linear_parameters * weight + shape.embedding_parameters * compute


def tokens_held(section: ModelSection, shape: Shape | None, compute: int, memory: int | None) -> int:
    """The default size of the KV cache for sampling, in tokens: a share of a GPU's `memory` (its total bytes, not the
    free ones), and a constant if `memory` is None (a CPU)."""
    if memory is None or shape is None:
        return TOKENS_ON_CPU
    free = memory - CONTEXT_BYTES - weight_bytes(section, shape, compute)
    return max(1, int(KEYS_SHARE * free / max(1, shape.token_numbers * compute)))


def expands(section: ModelSection, shape: Shape | None, compute: int, memory: int | None) -> bool:
    """Whether 4-bit weights are expanded for sampling: on a GPU with `memory` bytes in all, if the expanded weights and
    the KV cache leave a tenth of the rest free. Always on a CPU (`memory` is None)."""
    if memory is None or shape is None:
        return True
    free = memory - CONTEXT_BYTES - weight_bytes(section, shape, compute)
    return (1 + WASTE) * (shape.linear_parameters * compute + KEYS_SHARE * free) <= (1 - SPARE) * free


def recomputes(
    section: ModelSection,
    shape: Shape | None,
    compute: int,
    *,
    on_cpu: bool,
    tokens: int = 0,
    memory: int | None = None,
) -> bool:
    """Whether activations are recomputed, by `model.gradient_checkpointing`. `auto` does so on a CPU if a token keeps
    more than 1 MB, and on a GPU if those of `tokens`, a microbatch, take too large a share of its `memory`."""
    if section.gradient_checkpointing != "auto":
        return section.gradient_checkpointing
    if shape is None:
        return not on_cpu
    kept = sum(activation_bytes(shape, compute))
    if on_cpu:
        return kept > KEPT_ON_CPU
    return memory is None or tokens * kept > ACTIVATIONS_SHARE * (memory - weight_bytes(section, shape, compute))


def keeps_products(section: ModelSection, shape: Shape | None, compute: int, *, on_cpu: bool) -> bool:
    """Whether activations are recomputed without their products: see `models/linear.py`. An explicit
    `model.gradient_checkpointing` recomputes everything, with the least memory."""
    fits = on_cpu and shape is not None and shape.layers * product_bytes(shape, compute) <= KEPT_ON_CPU
    return fits and section.gradient_checkpointing == "auto" and recomputes(section, shape, compute, on_cpu=on_cpu)


def is_lean(section: ModelSection, shape: Shape | None, compute: int, *, on_cpu: bool) -> bool:
    """Whether memory matters more than a few percent of time: for a base whose activations a CPU recomputes in float32,
    where products are slow and everything is twice as large."""
    return on_cpu and compute == _BYTES["fp32"] and recomputes(section, shape, compute, on_cpu=True)


def head_elements(vocabulary: int, *, lean: bool, memory: int | None = None) -> int:
    """How many logits an update computes at once, on a GPU with `memory` bytes or on a CPU (None)."""
    if lean:
        return max(HEAD_ELEMENTS_IF_LEAN, HEAD_POSITIONS * vocabulary)
    return max(HEAD_ELEMENTS, 1 << (int((memory or 0) / HEAD_SHARE).bit_length() - 1) if memory else 0)


def compute_bytes(config: RunConfig, *, on_cpu: bool = False) -> int:
    """Bytes of a number in the type of products."""
    held, multiplied = config.model.precision, config.model.compute_dtype
    return _BYTES.get(multiplied if held == "4bit" else held, 4 if on_cpu else 2)


def activation_bytes(shape: Shape, compute: int) -> list[float]:
    """Bytes that each block keeps of a token for its backward pass. Inputs of the linear layers, queries, keys, values
    and the MLP's factors in the compute type, and the two norms' inputs in float32; of other
    models the counted bytes."""
    if shape.counts is not None and shape.counts.kept:
        return [compute * numbers + others for numbers, others in shape.counts.kept]
    kept = compute * (3 * shape.intermediate + 2 * shape.hidden + 2 * shape.queries + 2 * shape.keys)
    return shape.layers * [kept + 4.0 * 2 * shape.hidden]


def product_bytes(shape: Shape, compute: int) -> int:
    """Average bytes per token of the results of one block's linear layers and attention."""
    return compute * (sum(outer for _, outer in shape.linears) // shape.layers + shape.queries)


def advise(config: RunConfig, shape: Shape, load: Load, card: Card) -> list[str]:
    """Advice, one sentence each: a precision that the GPU supports, and settings that make the run fit its memory."""
    found = []
    if not card.bf16 and (config.model.compute_dtype == "bf16" or config.model.precision == "bf16"):
        found.append(
            f"{card.name} has no bf16: use --precision 4bit with model.compute_dtype=fp16 (--preset t4), or fp16"
        )
    if estimate(config, shape, load, card=card).peak <= card.memory:
        return found
    smaller, settings = config, list[str]()
    for section, key, value in _steps_down(config, load.row):
        smaller = smaller.having({section: {key: value}})
        settings = [text for text in settings if not text.startswith(f"{section}.{key}=")]
        settings.append(f"{section}.{key}={str(value).lower() if isinstance(value, bool) else value}")
        peak = estimate(smaller, shape, load, card=card).peak
        if peak <= card.memory:
            flags = " ".join(f"--set {text}" for text in settings)
            return [*found, f"{flags} brings it to about {peak / GIB:.1f} GiB, which fits"]
    return [*found, "no setting makes it fit: take a smaller model"]


def _steps_down(config: RunConfig, row: int) -> Iterator[tuple[str, str, int | str | bool]]:
    """Settings to try, the cheapest first; none changes what is learned, except 4 bits."""
    if config.model.gradient_checkpointing is False:
        yield "model", "gradient_checkpointing", True
    held = {
        "generation_tokens": config.run.generation_tokens or TOKENS_ON_CPU,
        "microbatch_tokens": config.run.tokens_at_once(on_cpu=False),
    }
    for key, tokens in held.items():
        while tokens // 2 >= row:
            tokens //= 2
            yield "run", key, tokens
    if config.model.precision != "4bit":
        yield "model", "precision", "4bit"
