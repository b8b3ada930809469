"""What a run will hold in memory, from its configuration and the shape of its base alone.

Bytes of weights, adapters, optimizer state, keys and values follow from the shapes; activations are those that a block
keeps for its backward pass. What an allocator wastes and a library holds besides is an allowance, named as such. No
weight is read, nothing is downloaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lite_selfplay.config import ModelSection, RunConfig, RunSection
from lite_selfplay.models.generation.layout import Layout
from lite_selfplay.models.shapes import Shape

GIB = 2**30
HEAD_ELEMENTS, HEAD_ELEMENTS_IF_LEAN = 2**24, 2**22
"""Logits that an update holds at once, and that of a lean base: 64 and 16 MiB in float32. A large card holds more."""
HEAD_SHARE = 600
"""Bytes of a card for each logit that an update holds at once: a 60th of it all, with what they take in three types."""
HEAD_POSITIONS = 64
"""The fewest whose logits are computed at once: with fewer, a product waits for the head's weight to be read."""

MANY_ROWS = 16
"""Completions sampled together from which on expanding a 4-bit weight at every token costs little beside its product: a
tenth with 32 rows of SmolLM2-135M in float32."""

NF4_BYTES = 0.5 + 4 / 64
"""Of a weight in 4 bits: half a byte, and a float32 scale for each block of 64."""

CONTEXT_BYTES, WASTE = 0.9 * GIB, 0.1
"""Allowances: what CUDA, its libraries or the process hold before any model, and what allocators waste of the rest."""
SPARE = 0.1
"""The share of what is free that stays free where a card's 4-bit weights are expanded."""
KEYS_SHARE, ROOMY, ACTIVATIONS_SHARE = 0.4, 0.5, 0.4
"""Of a card without its weights: what keys and values may take while sampling; what has to be free beside them for them
to be kept during an update; and what activations may take without being computed again."""
TOKENS_ON_CPU = 65536
"""Whose keys and values a CPU holds at once while sampling."""

KEPT_ON_CPU = 10**6
"""What a CPU keeps of a token for the backward pass, in bytes: all activations where they are no more, else what the
products came to where that is no more, else a block's input alone. SmolLM2-135M has 1.01 MB of activations in float32,
0.7 MB of them from products, and half as much in bfloat16."""

_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True)
class Card:
    """A GPU by name: its memory in bytes, and whether it multiplies in bf16."""

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
    """One part of the memory: its name, its bytes, and the phases it is held in."""

    name: str
    bytes: float
    generating: bool = True
    updating: bool = True


@dataclass(frozen=True)
class Estimate:
    """All parts, and the peak of each phase with its allowances, in bytes."""

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
    """What is in flight at once: completions asked for together, and the tokens of a prompt and of a completion."""

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
    """The memory of a run whose configuration is filled in, on a card where 4-bit weights are expanded while a seat
    speaks; on `card` they are only if there is room for that."""
    run, section = config.run, config.model
    compute, memory = compute_bytes(config, on_cpu=on_cpu), None if card is None else card.memory
    numbers = sum(shape.adapter_parameters(seat.rank) for seat in config.seats.values())
    lean = is_lean(section, shape, compute, on_cpu=on_cpu)
    tokens = run.generation_tokens or tokens_held(section, shape, compute, memory)
    together = min(load.rows, max(1, tokens // load.row))
    columns = together * load.row
    if not on_cpu:
        mixed = compute == 2 and (card is None or card.bf16)
        layout = Layout.of(load.rows, load.prompt_tokens, load.completion_tokens, tokens, mixed=mixed)
        together, columns = min(load.rows, layout.rows), layout.held(tokens)
    held = min(max(run.tokens_at_once(on_cpu=on_cpu, lean=lean), load.row), load.tokens)
    logits = min(head_elements(shape.vocabulary, lean=lean, memory=memory), held * shape.vocabulary)
    kept = activation_bytes(shape, compute)
    per_token = shape.layers * kept
    if recomputes(section, shape, compute, on_cpu=on_cpu, tokens=microbatch_tokens(run), memory=memory):
        per_token = shape.layers * shape.hidden * compute + kept
    if keeps_products(section, shape, compute, on_cpu=on_cpu):
        per_token += shape.layers * product_bytes(shape, compute)
    states = 4 * together * shape.counts.state if shape.counts else 0
    parts = [
        Part("base", weight_bytes(section, shape, compute)),
        Part("adapters", 4 * numbers),
        Part("optimizer", 8 * numbers),
        Part("gradients", 4 * numbers, generating=False),
        Part("keys and values", columns * token_bytes(shape, compute) + states, updating=False),
        Part("logits, sampling", 16 * together * shape.vocabulary, updating=False),
        Part("activations", held * per_token, generating=False),
        Part("logits, update", (8 + compute) * logits, generating=False),
    ]
    if section.precision == "4bit":
        expanded = expands(section, shape, compute, memory) and not (lean and together >= MANY_ROWS)
        parts += [Part("dense weights", shape.linear_parameters * compute, updating=False)] * expanded
    if memory is not None and memory - Estimate(parts).generating >= ROOMY * memory:
        parts = [replace(part, updating=part.updating or part.name != "logits, sampling") for part in parts]
    return Estimate(parts)


def microbatch_tokens(run: RunSection) -> int:
    """The most tokens of a microbatch on a card: a row that has more is one of its own."""
    return max(run.tokens_at_once(on_cpu=False), run.max_prompt_tokens + (run.max_completion_tokens or 0))


def weight_bytes(section: ModelSection, shape: Shape, compute: int) -> float:
    """The base as it is held."""
    weight = NF4_BYTES if section.precision == "4bit" else compute
    return shape.linear_parameters * weight + shape.embedding_parameters * compute


def token_bytes(shape: Shape, compute: int) -> int:
    """Keys and values of a token."""
    return shape.token_numbers * compute


def tokens_held(section: ModelSection, shape: Shape | None, compute: int, memory: int | None) -> int:
    """The tokens whose keys and values are held at once while sampling, where a run does not say how many: on a card of
    so many bytes by a share of them, whatever else is on it; without `memory`, on a CPU, always as many."""
    if memory is None or shape is None:
        return TOKENS_ON_CPU
    free = memory - CONTEXT_BYTES - weight_bytes(section, shape, compute)
    return max(1, int(KEYS_SHARE * free / max(1, token_bytes(shape, compute))))


def expands(section: ModelSection, shape: Shape | None, compute: int, memory: int | None) -> bool:
    """Whether 4-bit weights are expanded while a seat speaks: on a card of so many bytes, where they and all keys and
    values that may be held leave a tenth of the rest free; by the same numbers in every run, whatever else is there."""
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
    """Whether `model.gradient_checkpointing` comes to recomputing activations: `auto` does so on a CPU where a token
    keeps more than 1 MB, and on a card where those of `tokens`, a microbatch, are too large a share of its `memory`."""
    if section.gradient_checkpointing != "auto":
        return section.gradient_checkpointing
    if shape is None:
        return not on_cpu
    kept = shape.layers * activation_bytes(shape, compute)
    if on_cpu:
        return kept > KEPT_ON_CPU
    return memory is None or tokens * kept > ACTIVATIONS_SHARE * (memory - weight_bytes(section, shape, compute))


def keeps_products(section: ModelSection, shape: Shape | None, compute: int, *, on_cpu: bool) -> bool:
    """Whether what is computed again is so without its products: see `models/linear.py`. Whoever asks for
    `model.gradient_checkpointing` by name has all computed again, with the least memory."""
    if section.gradient_checkpointing != "auto" or not recomputes(section, shape, compute, on_cpu=on_cpu):
        return False
    return on_cpu and shape is not None and shape.layers * product_bytes(shape, compute) <= KEPT_ON_CPU


def is_lean(section: ModelSection, shape: Shape | None, compute: int, *, on_cpu: bool) -> bool:
    """Whether memory comes before a few percent of time: for a base whose activations a CPU computes again in float32,
    where everything is twice as large and products are so slow that little else counts."""
    return on_cpu and compute == _BYTES["fp32"] and recomputes(section, shape, compute, on_cpu=True)


def head_elements(vocabulary: int, *, lean: bool, memory: int | None = None) -> int:
    """Logits that an update holds at once, on a card of so many bytes or, without `memory`, on a CPU."""
    if lean:
        return max(HEAD_ELEMENTS_IF_LEAN, HEAD_POSITIONS * vocabulary)
    return max(HEAD_ELEMENTS, 1 << (int((memory or 0) / HEAD_SHARE).bit_length() - 1) if memory else 0)


def compute_bytes(config: RunConfig, *, on_cpu: bool = False) -> int:
    """Bytes of a number that weights are multiplied in."""
    held, multiplied = config.model.precision, config.model.compute_dtype
    return _BYTES.get(multiplied if held == "4bit" else held, 4 if on_cpu else 2)


def activation_bytes(shape: Shape, compute: int) -> int:
    """Bytes that one block keeps of a token for its backward pass.

    Inputs of the linear layers, queries, keys, values and the MLP's factors in the compute type, and the two norms'
    inputs in float32.
    """
    kept = compute * (3 * shape.intermediate + 2 * shape.hidden + 2 * shape.queries + 2 * shape.keys)
    return kept + 4 * 2 * shape.hidden


def product_bytes(shape: Shape, compute: int) -> int:
    """Bytes that the results of one block's linear layers and of its attention have of a token, on average."""
    return compute * (sum(outer for _, outer in shape.linears) // shape.layers + shape.queries)


def advise(config: RunConfig, shape: Shape, load: Load, card: Card) -> list[str]:
    """What to set where a run is too large for a card, and what fits its arithmetic, a sentence each."""
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
    return [*found, "nothing that can be set makes it fit: take a smaller model"]


def _steps_down(config: RunConfig, row: int) -> list[tuple[str, str, int | str | bool]]:
    """Settings that cost the least first: none of them changes what is learned, but for 4 bits."""
    steps: list[tuple[str, str, int | str | bool]] = []
    run = config.run
    if config.model.gradient_checkpointing is False:
        steps.append(("model", "gradient_checkpointing", True))
    held = {
        "generation_tokens": run.generation_tokens or TOKENS_ON_CPU,
        "microbatch_tokens": run.tokens_at_once(on_cpu=False),
    }
    for key, tokens in held.items():
        while tokens // 2 >= row:
            tokens //= 2
            steps.append(("run", key, tokens))
    if config.model.precision != "4bit":
        steps.append(("model", "precision", "4bit"))
    return steps
