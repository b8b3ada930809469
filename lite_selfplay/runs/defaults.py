"""The settings that a run chooses if they are not given: each as data, with its reason and the flag that changes it.

Before a model is loaded, `choices_of` chooses problems, an evaluation and sizes. After a probe of the untouched base,
`after_probe` chooses whether it thinks, how long its answers may be, and whether it gets a cold start. `filled_in` adds
the choices to the keys that were given; a dry run shows them, and a run saves them. A run's own configuration is
complete, so nothing is chosen for it.
"""

import shutil
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lite_selfplay.config import RunConfig, merge, nested, preset_about, preset_layer, set_key, spread
from lite_selfplay.config.user_files import data_of
from lite_selfplay.errors import ConfigError, LiteSelfPlayError
from lite_selfplay.games import Game, make_game
from lite_selfplay.games.modes import find_mode
from lite_selfplay.models.memory import GIB, Card, Load, estimate
from lite_selfplay.models.shapes import shape_of
from lite_selfplay.models.sources import suggested
from lite_selfplay.runs.report.diagnosis import FEWEST_WELL_FORMED
from lite_selfplay.stats import is_above
from lite_selfplay.tasks.benchmarks import missing
from lite_selfplay.tasks.split import DEFAULT_LIMIT
from lite_selfplay.training.ranks import here

# The base with random weights.
RANDOM = "tiny"
# Bases that learn on a CPU, with problems of which they get some right.
TOYS = {RANDOM: "letters", "smollm2-135m": "arithmetic"}
# The cold start of SmolLM2-135M: without it, one answer of 120 had the format, and half were cut off (docs/demo.md).
TAUGHT = {"cold_start.enabled": True, "cold_start.steps": 7, "cold_start.lr": 1e-3}
# The public problems that are used if available, and those that a preset's paper names.
PUBLIC, PUBLIC_OF_PRESETS = "gsm8k", {"agon-paper": "deepmath"}
# Problems that need no network.
MADE = "stories"
# (preset, GiB of GPU memory that it needs, whether it needs bf16), the largest first.
SIZES = (("datacenter-80gb", 70.0, True), ("consumer-24gb", 21.0, True), ("t4", 0.0, False))
# The share of answers that may be cut off before thinking is switched off or the token limit raised; the number of
# answers of which none shows, with 95% confidence, that fewer than a tenth are.
MOST_CUT, ENOUGH = 1 / 5, 36
# How many times the token limit may grow.
LONGEST = 8
_SIZE = ("steps", "group_size", "problems_per_step")
_PROMPT_TOKENS = _TAUGHT_TOKENS = 512

# Each role's metrics in small steps, under the keys of `metrics.jsonl`: see `lite_selfplay.runs.preflight`.
Streams = Mapping[str, Mapping[str, Any]]


class Default(NamedTuple):
    """A choice: `what` names its line of the plan, `values` are the keys that it sets, `flag` changes it."""

    what: str
    values: Mapping[str, Any] = {}
    why: str = ""
    flag: str = ""


def layer_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted keys, as a layer of a configuration."""
    layer: dict[str, Any] = {}
    for key, value in values.items():
        set_key(layer, key, value)
    return layer


def filled_in(config: RunConfig, chosen: Iterable[Default] = (), game: Game | None = None) -> tuple[RunConfig, Game]:
    """The game's recipe, the choices, the model's suggestions and the user's keys, merged into a configuration with `*`
    expanded to roles and seats; and its game with the sizes of its steps.

    Does not look at tasks. `game`: the configuration's, with any sizes, if it was made before. Raises UnknownNameError,
    and ConfigError, also if the recipe sets options of its game, whose defaults belong into its `Options`.
    """
    game = game or make_game(config.game.name, config.game.options)
    if "game" in nested(game.recipe):
        raise ConfigError(f"the recipe of {type(game).__name__} sets keys of game: set their defaults in its Options")
    choices = layer_of(dict(pair for choice in chosen for pair in choice.values.items()))
    # A toy base's suggestions for seats are for problems.
    unfit = "seats." if game.without_tasks else ()
    hints = {key: value for key, value in suggested(config.model.name).items() if not key.startswith(unfit)}
    merged: dict[str, Any] = {}
    sections = {"seats": game.trained_seats(), "roles": game.roles}
    for layer in (game.recipe, choices, layer_of(hints), config.chosen()):
        spread_out: Mapping[str, Any] = nested(layer)
        for section, names in sections.items():
            spread_out = spread(spread_out, section, names)
        merged = merge(merged, spread_out)
    for section, names in sections.items():
        merged[section] = {name: merged.get(section, {}).get(name, {}) for name in names}
    whole = RunConfig.of(merged)
    return whole, sized(game, whole.run.group_size, whole.run.problems_per_step)


def sized(game: Game, group_size: int, problems_per_step: int) -> Game:
    """A new game of the same kind, before its first step, with steps of another size."""
    return type(game)(game.options, group_size=group_size, problems_per_step=problems_per_step)


def choices_of(config: RunConfig, game: Game) -> list[Default]:
    """The choices made before a base is loaded. Waits at most once, for a few seconds, for a hub."""
    problems = _problems(config, game)
    sized = size(config, game, None if _toy(config) else _gpu(config))
    asked = " or ".join(open_questions(config, game).values())
    probe = [Default("before the first step", {}, "no setting given", asked)] if asked else []
    return [*problems, *_cold_start(config, problems), *_evaluation(config, game, problems), *sized, *probe]


def given(config: RunConfig, key: str) -> bool:
    """Whether a key such as `run.steps` was given."""
    section, _, name = key.partition(".")
    return name in getattr(config, section).model_fields_set


def _toy(config: RunConfig) -> str | None:
    """The problems for a base that learns on a CPU; None for other bases."""
    return TOYS.get(config.model.name.strip().lower())


def _problems(config: RunConfig, game: Game) -> list[Default]:
    if config.tasks.train is not None or game.without_tasks:
        return []
    if game.default_tasks is not None:
        tasks, why = game.default_tasks, "the game's own"
    elif toy := _toy(config):
        tasks, why = toy, "a base this small gets some of them right"
        if "cold_start" in game.recipe:
            tasks, why = MADE, "the game begins by learning from worked solutions"
    else:
        public = PUBLIC_OF_PRESETS.get(config.run.preset or "", PUBLIC)
        problem = missing(public, config.tasks.data_dir)
        tasks, why = (MADE, f"instead of {public}: {problem}") if problem else (public, "public, and available here")
    values: dict[str, Any] = {"tasks.train": tasks}
    if tasks == MADE and "cold_start" in game.recipe:  # the examples are longer than the solutions
        values |= {} if given(config, "run.max_completion_tokens") else {"run.max_completion_tokens": _TAUGHT_TOKENS}
    return [Default("tasks", values, why, "--tasks T")]


def _cold_start(config: RunConfig, problems: list[Default]) -> list[Default]:
    """A toy base is known to need a cold start on its own problems, so it is not probed."""
    if not problems or not _toy(config) or _is_random(config) or given(config, "cold_start.enabled"):
        return []
    values = {key: value for key, value in TAUGHT.items() if not given(config, key)}
    return [Default("cold start", values, "this base never uses the answer format", "--no-cold-start")]


def _evaluation(config: RunConfig, game: Game, problems: list[Default]) -> list[Default]:
    """Held-out problems of the task, if that was chosen and the mode can use them; for a file given for both training
    and evaluation, a limit; two thirds are trained on."""
    tasks, limit = config.tasks.train or "", {} if given(config, "eval.limit") else {"eval.limit": DEFAULT_LIMIT}
    if (data_of(tasks) or tasks.startswith("{")) and config.eval.tasks == tasks:
        why = "at most a third of the file; the others are trained on"
        return [Default("evaluation", limit, why, "--eval-tasks OTHER, or a smaller --eval-limit,")]
    if not problems or given(config, "eval.tasks") or find_mode(game.evaluation().mode).tasks is not None:
        return []
    values = {"eval.tasks": problems[0].values["tasks.train"], **limit}
    return [Default("evaluation", values, "problems of the training task", "--eval-tasks T, or none,")]


def size(config: RunConfig, game: Game, gpu: Card | None) -> list[Default]:
    """The sizes of the preset that fits a GPU, or a CPU without one, for keys that neither the configuration nor the
    game's recipe sets. Empty if all are set, or a preset is given."""
    if config.run.preset is not None or all(given(config, f"run.{key}") for key in _SIZE):
        return []
    if gpu is None or _toy(config):
        return [_sizes_of("cpu", config, game, "for runs on a CPU")]
    memory = gpu.memory / GIB
    found = [
        _sizes_of(name, config, game, f"for {memory:.1f} GiB")
        for name, least, needs_bf16 in SIZES
        if memory >= least and (gpu.bf16 or not needs_bf16)
    ]
    return [next((one for one in found if _fits(one, config, game, gpu)), found[-1])]


def _sizes_of(preset: str, config: RunConfig, game: Game, why: str) -> Default:
    layer = preset_layer(preset)
    for key in ("name", "compute_dtype"):  # the base is given; its arithmetic depends on the hardware
        layer["model"].pop(key, None)
    given_already = merge(nested(game.recipe), config.chosen())
    values = {
        f"{section}.{key}": value
        for section, keys in layer.items()
        for key, value in keys.items()
        if given_already.get(section, {}).get(key) is None
    }
    return Default("a step", values, f"sizes of the preset {preset}, {why}", "--preset P")


def _fits(choice: Default, config: RunConfig, game: Game, gpu: Card) -> bool:
    """Whether a run of this size fits into a GPU's memory, by an estimate before anything is loaded."""
    try:
        shape = shape_of(config.model.name)
    except LiteSelfPlayError:
        return True
    whole, game = filled_in(config, [choice], game)
    rows = game.rollouts_per_step() or whole.run.group_size * whole.run.problems_per_step
    load = Load(rows // len(game.roles), _PROMPT_TOKENS, whole.run.max_completion_tokens or _PROMPT_TOKENS)
    return estimate(whole, shape, load, card=gpu).peak <= gpu.memory


def _gpu(config: RunConfig) -> Card | None:
    """The GPU that a run would use. Loads torch only if there is a driver."""
    there = "torch" in sys.modules or shutil.which("nvidia-smi")
    if not there or getattr(config.model, "device", "auto") == "cpu":
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return Card(found.name, found.total_memory, torch.cuda.is_bf16_supported(False))


def shorter(config: RunConfig, length: float, times: float) -> str:
    """Flags that make a step about `times` times faster: fewer problems, a token limit that is still twice the mean
    `length` of completions, the next smaller preset; if none applies, one small group."""
    run, names = config.run, [name for name, *_ in SIZES]
    problems, tokens = int(run.problems_per_step / times), int((run.max_completion_tokens or 0) / times)
    smaller = names[names.index(run.preset) + 1 :] if run.preset in names else []
    found = {"problems-per-step": problems, "max-completion-tokens": tokens if tokens > 2 * length else 0}
    flags = [f"--{key} {value}" for key, value in found.items() if value] + [f"--preset {name}" for name in smaller[:1]]
    return " or ".join(flags) or "--problems-per-step 1 --group-size 4"


def without_its_gpu(config: RunConfig) -> str:
    """A warning if a preset is for a GPU and there is none; empty otherwise."""
    preset = config.run.preset
    if preset is None or " GB GPU" not in preset_about(preset) or _gpu(config) is not None:
        return ""
    return f"the preset {preset} is for a GPU, and this machine has none: steps take very long; --preset cpu is smaller"


def open_questions(config: RunConfig, game: Game) -> dict[str, str]:
    """The choices left to a probe of the untouched base, each with the flag that makes it instead. Empty if the run has
    no probe, starts from other seats, samples on servers or has several processes."""
    elsewhere = config.run.init is not None or config.rollouts.servers or here().world > 1
    known = _toy(config) and config.tasks.train is None and not given(config, "cold_start.enabled")
    if not wanted(config) or elsewhere or known:
        return {}
    asked = {
        "thinking": ("model.thinking", "--set model.thinking=on"),
        "the token limit": ("run.max_completion_tokens", "--max-completion-tokens"),
        "a cold start": ("cold_start.enabled", "--no-cold-start"),
    }
    if _toy(config):
        asked.pop("thinking")
    if _is_random(config) or "max_completion_tokens" in nested(game.recipe).get("run", {}):
        asked.pop("the token limit")
    if "cold_start" in game.recipe:
        asked.pop("a cold start")
    return {what: flag for what, (key, flag) in asked.items() if not given(config, key)}


def wanted(config: RunConfig) -> bool:
    """Whether the run has a probe and a pre-flight. By default, it does unless its base is random, or base and problems
    are those of the demo, which are known to match."""
    asked = config.run.preflight
    return not (_is_random(config) or is_demo(config)) if asked is None else asked


def is_demo(config: RunConfig) -> bool:
    """Whether base and problems are those of the demo."""
    demo = preset_layer("demo")
    return (config.model.name, config.tasks.train) == (demo["model"]["name"], demo["tasks"]["train"])


def _is_random(config: RunConfig) -> bool:
    return config.model.name.strip().lower() == RANDOM


# After a probe of the untouched base


def left_open(streams: Streams, most: float = MOST_CUT) -> list[str]:
    """The assumptions about roles that are still uncertain: that at most a share `most` of a role's answers are cut
    off, and that enough have the format. `ENOUGH` answers make a good share certain."""
    found = [] if streams else ["that answers end and have the format"]
    for role, s in streams.items():
        cut, count, shaped, judged = s["truncated"], s["completions"], s["well_formed"], s["judged"]
        too_many = is_above(cut, count, most)
        if too_many is None and (cut >= most or count < ENOUGH):
            found.append(f"that the {role}'s answers {'end' if cut < most else 'are cut off'}")
        sure = not judged or too_many or is_above(shaped, judged, FEWEST_WELL_FORMED) is not None
        if not sure and (shaped <= FEWEST_WELL_FORMED or judged < ENOUGH):
            found.append(f"that the {role}'s answers have the format")
    return found


def after_probe(asked: Iterable[str], tokens: int, limit: int, thinks: bool, streams: Streams) -> Default | None:
    """The most urgent choice after a probe of the untouched base; None if nothing is to be changed.

    `asked`: what may be chosen. `tokens`: the token limit, which may grow to `limit`. `thinks`: whether the base
    thought aloud. Answers that were cut off tell nothing about the format, so no cold start is chosen for them, and
    longer limits do not help repetitive ones.
    """
    loud = thinks and "thinking" in asked  # repetitive answers count only then
    count = sum(stream["completions"] for stream in streams.values())
    cut = round(sum((s["truncated"] - (0 if loud else s["loops"])) * s["completions"] for s in streams.values()))
    too_many = is_above(cut / max(count, 1), count, MOST_CUT)
    if too_many or (too_many is None and count and cut >= MOST_CUT * count):
        why = f"{cut} of {count} answers were cut off at {tokens:,} tokens"
        if loud:
            return Default("thinking", {"model.thinking": "off"}, f"with it, {why}", "--set model.thinking=on")
        if "the token limit" in asked and 2 * tokens <= limit:
            doubled = {"run.max_completion_tokens": 2 * tokens}
            return Default("a step", doubled, f"{why}, so the limit is doubled", "--max-completion-tokens N")
        return None
    judged = [s for s in streams.values() if s["judged"]]
    never = [s for s in judged if is_above(s["well_formed"], s["judged"], FEWEST_WELL_FORMED) is False]
    if "a cold start" not in asked or not never:
        return None
    count, shaped = sum(s["judged"] for s in never), round(sum(s["judged"] * s["well_formed"] for s in never))
    why = f"{shaped} of {count} answers of the base had the format"
    return Default("cold start", {"cold_start.enabled": True}, why, "--no-cold-start")
