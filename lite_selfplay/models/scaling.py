"""How long a step takes on several cards, from a configuration, the shape of its base and what sharing it out costs.

What is shared out, sampling and the update, is worked out from a card's data sheet, and has not been measured on one.
What sharing costs was measured (`benchmarks/ranks.py`): messages, what is gathered, what is added up, and the Python
that every process runs for every completion. A step on N cards is

    tokens of the longest completion * one token of a card's rows  +  its rows' update  +  what sharing costs
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lite_selfplay.config import RunConfig
from lite_selfplay.models.memory import NF4_BYTES, Card, Load, compute_bytes
from lite_selfplay.models.shapes import Shape

SHEETS: dict[str, tuple[float, float]] = {
    "Tesla T4": (320, 65),
    "Tesla V100 16 GB": (900, 125),
    "RTX 2080 Ti": (616, 54),
    "RTX 3060 12 GB": (360, 25),
    "RTX 3090": (936, 71),
    "RTX 4060 Ti 16 GB": (288, 44),
    "RTX 4090": (1008, 165),
    "RTX 5090": (1792, 209),
    "L4": (300, 121),
    "A10G": (600, 70),
    "A100 40 GB": (1555, 312),
    "A100 80 GB": (2039, 312),
    "H100 80 GB": (3350, 989),
    "H200": (4800, 989),
}
"""A card's memory bandwidth in GB/s, and dense products in 16 bits in TFLOP/s, by its data sheet."""
USED = 0.35
"""The share of those products that an update comes to: an assumption."""
LAYER_S = 1e-3
"""Seconds that a layer with its adapter takes at the least for a token, however few rows: an assumption."""
UPDATE_PASSES = 3
"""Forward, once more for what is recomputed, and backward to the activations: two products a weight and token each."""

MESSAGES = 10
"""What processes tell each other in a step of Agon, each to all, counted."""
TOKEN_BYTES = 8
"""Of a completion's token as it travels: its id and its log-probability."""
HELD_BYTES = 72
"""Of a completion's token as every process holds it; measured."""
PROMPT_BYTES = 8
"""Of a prompt's token, in each of its completions: a reference to the id."""
STEP_S, COMPLETION_S = 0.19, 2.6e-4
"""Processor seconds that every process spends on a step, and on each completion of it; measured with 30 tokens each."""

PAYS = 1.3
"""Twice the cards pay as long as a step is so many times as fast."""


@dataclass(frozen=True)
class Link:
    """What sending costs: seconds of a message from one to the next, and of a megabyte gathered (of all together) and
    added up."""

    message_s: float
    gather_s_a_mb: float
    sum_s_a_mb: float

    def over(self, gigabits: float) -> "Link":
        """The same where machines are joined by a network of so many gigabits a second."""
        wire = 8e-3 / gigabits
        return Link(self.message_s, max(self.gather_s_a_mb, wire), max(self.sum_s_a_mb, wire))


HERE = Link(message_s=7.6e-4, gather_s_a_mb=2.9e-3, sum_s_a_mb=2.4e-3)
"""Between two processes of a machine, over gloo; measured. NCCL adds up faster where cards see each other."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step in so many processes, by part, and the bytes of completions that each holds."""

    processes: int
    sampling: float
    update: float
    telling: float
    adding_up: float
    python: float
    held: float

    @property
    def total(self) -> float:
        return self.sampling + self.update + self.telling + self.adding_up + self.python


def step_time(
    config: RunConfig, shape: Shape, load: Load, rollouts: int, card: Card, processes: int, link: Link = HERE
) -> StepTime:
    """A step of `rollouts` completions, `load.rows` of them asked for at once, in so many processes of a card each."""
    bandwidth, products = (number * unit for number, unit in zip(SHEETS[card.name], (1e9, 1e12), strict=True))
    compute, tokens = compute_bytes(config), load.completion_tokens
    weight = NF4_BYTES if config.model.precision == "4bit" else compute
    base = shape.linear_parameters * weight + shape.embedding_parameters * compute
    asked, room = -(-load.rows // processes), max(1, config.run.generation_tokens // load.row)
    rows = min(asked, room)
    keys = rows * (load.prompt_tokens + tokens / 2) * shape.layers * 2 * shape.keys * compute
    token = max(shape.layers * LAYER_S, (base + keys) / bandwidth, 2 * shape.parameters * rows / (USED * products))
    calls = -(-rollouts // load.rows) * -(-asked // rows)
    own = -(-rollouts // processes)
    learned = 2 * UPDATE_PASSES * shape.parameters * own * load.row / (USED * products)
    others, megabytes = processes - 1, rollouts * tokens * TOKEN_BYTES / 1e6
    adapters = 4e-6 * sum(shape.adapter_parameters(seat.rank) for seat in config.seats.values())
    return StepTime(
        processes,
        sampling=calls * tokens * token,
        update=learned,
        telling=(MESSAGES * others * link.message_s + megabytes * link.gather_s_a_mb) if others else 0.0,
        adding_up=2 * others / processes * adapters * link.sum_s_a_mb,
        python=STEP_S + rollouts * COMPLETION_S,
        held=rollouts * (tokens * HELD_BYTES + load.prompt_tokens * PROMPT_BYTES),
    )


def scaling(
    config: RunConfig,
    shape: Shape,
    load: Load,
    rollouts: int,
    card: Card,
    processes: int,
    on_a_machine: int,
    gigabits: float,
) -> list[StepTime]:
    """Steps in 1, 2, 4, ... and in `processes`, of which a machine has `on_a_machine`."""
    counts = sorted({processes, *(2**k for k in range(processes.bit_length()) if 2**k <= processes)})
    links = {n: HERE if n <= on_a_machine else HERE.over(gigabits) for n in counts}
    return [step_time(config, shape, load, rollouts, card, n, links[n]) for n in counts]


def pays_up_to(steps: Sequence[StepTime]) -> int:
    """The number of processes up to which each doubling still pays."""
    best = steps[0]
    for step in steps[1:]:
        wanted = 1 + (PAYS - 1) * (step.processes / best.processes - 1)
        if best.total / step.total < wanted:
            break
        best = step
    return best.processes


def lines(card: Card, steps: Sequence[StepTime]) -> list[str]:
    """A table of the steps, and up to where more cards pay."""
    first = steps[0].total
    found = [
        f"a step on several {card.name}: seconds by a model of it, sampling and update by the card's data sheet",
        f"{'cards':>5}{'step':>9}{'sampling':>10}{'update':>8}{'telling':>9}{'adding up':>11}{'Python':>8}"
        f"{'faster':>8}{'held, MB':>10}",
    ]
    found += [
        f"{s.processes:>5}{s.total:>9.1f}{s.sampling:>10.1f}{s.update:>8.1f}{s.telling:>9.2f}{s.adding_up:>11.2f}"
        f"{s.python:>8.2f}{first / s.total:>8.1f}{s.held / 1e6:>10.0f}"
        for s in steps
    ]
    most = pays_up_to(steps)
    asked = steps[-1].processes
    if most == asked:
        return [*found, f"twice the cards still made a step {PAYS:g} times as fast up to all {asked}"]
    return [
        *found,
        f"beyond {most} card{'s' if most > 1 else ''} it stops to pay: twice as many make a step less than {PAYS:g} "
        "times as fast. More completions a step pay longer (--group-size, --problems-per-step): the longest "
        "completion takes as long on any number of cards",
    ]
