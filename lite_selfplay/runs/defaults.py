"""What a run does where nobody said otherwise: each such choice as data, with its reason and the flag to change it.

Before a model is loaded `choices_of` takes problems, an evaluation and a size; `after_a_look` goes on from what the
untouched base was seen to do: whether it thinks aloud, how long its answers may be, whether it is taught the format.
`filled_in` lays what they set under what was given, a dry run shows it, and a run writes it down: of a configuration
that says everything, as a run's own does, nothing is chosen.
"""

import importlib.util
import shutil
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lite_selfplay.config import RunConfig, merge, nested, preset_about, preset_layer, set_key, spread
from lite_selfplay.config.user_files import DATA_FILE
from lite_selfplay.errors import ConfigError, LiteSelfPlayError
from lite_selfplay.games import Game, make_game
from lite_selfplay.games.modes import find_mode
from lite_selfplay.models.memory import CARDS, GIB, Card, Load, estimate
from lite_selfplay.models.packages import install
from lite_selfplay.models.shapes import shape_of
from lite_selfplay.models.sources import suggested
from lite_selfplay.runs.report.diagnosis import FEWEST_WELL_FORMED
from lite_selfplay.stats import is_above
from lite_selfplay.tasks.benchmarks import missing
from lite_selfplay.tasks.split import DEFAULT_LIMIT
from lite_selfplay.training.ranks import here

RANDOM = "tiny"
"""The base whose weights are random."""
TOYS = {RANDOM: "letters", "smollm2-135m": "arithmetic"}
"""Bases that learn on a CPU, and problems of which they get some right."""
TAUGHT = {"cold_start.enabled": True, "cold_start.steps": 7, "cold_start.lr": 1e-3}
"""The cold start of SmolLM2-135M, of which one answer of 120 had the format, and half were cut off before: docs/demo.md
has what it learns from it."""
PUBLIC, PUBLIC_OF_PRESETS = "gsm8k", {"agon-paper": "deepmath"}
"""The public problems that every game takes where they can be had, and those that a preset's paper names."""
MADE = "stories"
"""Problems that need no network."""
SIZES = (("datacenter-80gb", 70.0, True), ("consumer-24gb", 21.0, True), ("t4", 0.0, False))
"""Presets for a card by the GiB that it must have, and whether it must multiply in bf16: the largest first."""
MOST_CUT, ENOUGH = 1 / 5, 36
"""The share of answers that may be cut off before thinking is switched off, or answers may be longer; and of how many
answers none is fewer than a tenth, with 95% confidence."""
LONGEST = 8
"""How many times as long as they were to be answers may become."""
_SIZE = ("steps", "group_size", "problems_per_step")
_PROMPT_TOKENS = _TAUGHT_TOKENS = 512


Streams = Mapping[str, Mapping[str, Any]]
"""What each role was seen to do, under the keys of `metrics.jsonl`: see `lite_selfplay.runs.preflight`."""


class Default(NamedTuple):
    """What nobody said: the line of a plan that it is about, the values of the keys that it sets, why it does so, and
    the flag that says otherwise."""

    what: str
    values: Mapping[str, Any] = {}
    why: str = ""
    flag: str = ""


def layer_of(choices: Iterable[Default]) -> dict[str, Any]:
    """What choices set, as a layer of a configuration."""
    layer: dict[str, Any] = {}
    for choice in choices:
        for key, value in choice.values.items():
            set_key(layer, key, value)
    return layer


def filled_in(config: RunConfig, chosen: Iterable[Default] = (), game: Game | None = None) -> tuple[RunConfig, Game]:
    """A configuration with what was chosen and the game's recipe laid under it, and its game at the sizes of its steps.
    Tasks are not looked at.

    `game`: the configuration's, of any size, where it was made before. Raises ConfigError or UnknownNameError.
    """
    game = game or make_game(config.game.name, config.game.options)
    resolved = _layered(game, config, layer_of(chosen))
    return resolved, sized(game, resolved.run.group_size, resolved.run.problems_per_step)


def sized(game: Game, group_size: int, problems_per_step: int) -> Game:
    """A game anew, as it is before its first step, with steps of another size."""
    return type(game)(game.options, group_size=group_size, problems_per_step=problems_per_step)


def _layered(game: Game, config: RunConfig, chosen: Mapping[str, Any]) -> RunConfig:
    """The game's recipe, what was chosen, what the model suggests and the user's own keys, with `*` spread over roles
    and seats. Raises ConfigError for a recipe that sets switches of its game, whose defaults are in its `Options`."""
    if "game" in nested(game.recipe):
        raise ConfigError(f"the recipe of {type(game).__name__} sets keys of game: their defaults stand in its Options")
    hints: dict[str, Any] = {}
    for dotted, value in suggested(config.model.name).items():
        if not (game.without_tasks and dotted.startswith("seats.")):  # what a toy base suggests is for problems
            set_key(hints, dotted, value)
    merged: dict[str, Any] = {}
    sections = {"seats": game.trained_seats(), "roles": game.roles}
    for layer in (game.recipe, chosen, hints, config.chosen()):
        spread_out: Mapping[str, Any] = nested(layer)
        for section, names in sections.items():
            spread_out = spread(spread_out, section, names)
        merged = merge(merged, spread_out)
    for section, names in sections.items():
        merged[section] = {name: merged.get(section, {}).get(name, {}) for name in names}
    return RunConfig.of(merged)


def choices_of(config: RunConfig, game: Game) -> list[Default]:
    """What is chosen before a base is loaded. A hub that stays silent is waited for once, for a few seconds."""
    card = None if _toy(config) else _card(config)
    problems = _problems(config, game)
    measured, sized = _evaluation(config, game, problems), size(config, game, card)
    asked = " or ".join(open_questions(config, game).values())
    look = [Default("before the first step", {}, "nobody said", asked)] if asked else []
    return [*problems, *_cold_start(config, problems), *measured, *sized, *_backend(config, card), *look]


def given(config: RunConfig, key: str) -> bool:
    """Whether a configuration says something of a key: `run.steps`."""
    section, _, name = key.partition(".")
    return name in getattr(config, section).model_fields_set


def _toy(config: RunConfig) -> str | None:
    """The problems of a base that learns on a CPU."""
    return TOYS.get(config.model.name.strip().lower())


def _problems(config: RunConfig, game: Game) -> list[Default]:
    if config.tasks.train is not None or game.without_tasks:
        return []
    if game.default_tasks is not None:
        tasks, why = game.default_tasks, "the game's own"
    elif toy := _toy(config):
        tasks, why = toy, "so small a base gets some of them right"
        if "cold_start" in game.recipe:
            tasks, why = MADE, "the game begins with what worked solutions teach"
    else:
        public = PUBLIC_OF_PRESETS.get(config.run.preset or "", PUBLIC)
        problem = missing(public, config.tasks.data_dir)
        tasks, why = (MADE, f"in place of {public}: {problem}") if problem else (public, "public, and to be had here")
    values: dict[str, Any] = {"tasks.train": tasks}
    if tasks == MADE and "cold_start" in game.recipe:  # what it teaches is longer than their solutions
        values |= {} if given(config, "run.max_completion_tokens") else {"run.max_completion_tokens": _TAUGHT_TOKENS}
    return [Default("tasks", values, why, "--tasks T")]


def _cold_start(config: RunConfig, problems: list[Default]) -> list[Default]:
    """A base that is known never to have the format needs no look, on problems that are known to teach it."""
    if not problems or not _toy(config) or _is_random(config) or given(config, "cold_start.enabled"):
        return []
    values = {key: value for key, value in TAUGHT.items() if not given(config, key)}
    return [Default("cold start", values, "this base never has the format", "--no-cold-start")]


def _evaluation(config: RunConfig, game: Game, problems: list[Default]) -> list[Default]:
    """Where the problems are chosen, held-out ones of the same, in modes that measure on such. Of a file that is given
    for both, so many that the rest can be trained on."""
    tasks = config.tasks.train or ""
    is_file = DATA_FILE.fullmatch(f"{tasks}:") is not None
    if is_file and config.eval.tasks == tasks and not given(config, "eval.limit"):
        return [Default("evaluation", {"eval.limit": DEFAULT_LIMIT}, "the others are trained on", "--eval-limit N")]
    if not problems or given(config, "eval.tasks") or find_mode(game.evaluation().mode).tasks is not None:
        return []
    values = {"eval.tasks": problems[0].values["tasks.train"]}
    values |= {} if given(config, "eval.limit") else {"eval.limit": DEFAULT_LIMIT}
    return [Default("evaluation", values, "the same problems, held out", "--eval-tasks T, or none,")]


def size(config: RunConfig, game: Game, card: Card | None) -> list[Default]:
    """The sizes of the preset that fits a card, or a CPU, as far as neither the configuration nor the game's own recipe
    says them; nothing where they are said, or a preset is given."""
    if config.run.preset is not None or all(given(config, f"run.{key}") for key in _SIZE):
        return []
    if card is None or _toy(config):
        return [_sizes_of("cpu", config, game, "for what learns on a CPU")]
    memory = card.memory / GIB
    names = [name for name, least, needs in SIZES if memory >= least and (card.bf16 or not needs)]
    found = [_sizes_of(name, config, game, f"for {memory:.1f} GiB") for name in names]
    return [next((one for one in found if _fits(one, config, game, card)), found[-1])]


def size_for(config: RunConfig, name: str) -> list[Default]:
    """The same for a card by its name in `lite_selfplay.models.memory.CARDS`, or `cpu`."""
    return size(config, make_game(config.game.name, config.game.options), CARDS.get(name.lower()))


def _sizes_of(preset: str, config: RunConfig, game: Game, why: str) -> Default:
    layer = preset_layer(preset)
    for key in ("name", "compute_dtype"):  # the base is given, and its arithmetic follows from the hardware
        layer["model"].pop(key, None)
    given_already = merge(nested(game.recipe), config.chosen())
    values = {
        f"{section}.{key}": value
        for section, keys in layer.items()
        for key, value in keys.items()
        if given_already.get(section, {}).get(key) is None
    }
    return Default("a step", values, f"sizes of the preset {preset}, {why}", "--preset P")


def _fits(choice: Default, config: RunConfig, game: Game, card: Card) -> bool:
    """Whether a run of such a size fits into a card's memory, as far as that is known before anything is loaded."""
    try:
        shape = shape_of(config.model.name)
    except LiteSelfPlayError:
        return True
    whole, game = filled_in(config, [choice], game)
    rows = game.rollouts_per_step() or whole.run.group_size * whole.run.problems_per_step
    load = Load(rows // len(game.roles), _PROMPT_TOKENS, whole.run.max_completion_tokens or _PROMPT_TOKENS)
    return estimate(whole, shape, load, card=card).peak <= card.memory


def _card(config: RunConfig) -> Card | None:
    """The card that a run would use. torch is loaded only where there is a driver."""
    there = "torch" in sys.modules or shutil.which("nvidia-smi")
    if not there or getattr(config.model, "device", "auto") == "cpu":
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return Card(found.name, found.total_memory, torch.cuda.is_bf16_supported(False))


def shorter(config: RunConfig, length: float, times: float) -> str:
    """Sizes of which a step takes so many times less, as flags: fewer problems, a limit of tokens that is still twice
    the mean `length` of completions, the next smaller preset; where none will do, one small group."""
    run, names = config.run, [name for name, *_ in SIZES]
    problems, tokens = int(run.problems_per_step / times), int((run.max_completion_tokens or 0) / times)
    smaller = names[names.index(run.preset) + 1 :] if run.preset in names else []
    found = {"problems-per-step": problems, "max-completion-tokens": tokens if tokens > 2 * length else 0}
    flags = [f"--{key} {value}" for key, value in found.items() if value] + [f"--preset {name}" for name in smaller[:1]]
    return " or ".join(flags) or "--problems-per-step 1 --group-size 4"


def without_its_card(config: RunConfig) -> str:
    """What is said where a preset is made for a card and there is none; empty elsewhere."""
    preset = config.run.preset
    if preset is None or " GB GPU" not in preset_about(preset) or _card(config) is not None:
        return ""
    return (
        f"the preset {preset} is for a card, and this machine has none: steps take very long; --preset cpu is smaller"
    )


def _backend(config: RunConfig, card: Card | None) -> list[Default]:
    """The one line about a library for cards that is not there."""
    if card is None or config.model.backend != "auto" or importlib.util.find_spec("unsloth"):
        return []
    why = f"Unsloth is not installed, and what it would save has not been measured: {install('unsloth')}"
    return [Default("backend", {}, why, "--backend B")]


def open_questions(config: RunConfig, game: Game) -> dict[str, str]:
    """What a look at the untouched base is to decide, and the flag that says it instead; nothing where the run takes no
    look, starts from other seats, samples elsewhere or has several processes."""
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
    """Whether a little is played before the first step: where nobody says, for every base that is not random, except in
    the demo, whose base and problems are known to suit each other."""
    asked, demo = config.run.preflight, preset_layer("demo")
    known = (config.model.name, config.tasks.train) == (demo["model"]["name"], demo["tasks"]["train"])
    return not (_is_random(config) or known) if asked is None else asked


def _is_random(config: RunConfig) -> bool:
    return config.model.name.strip().lower() == RANDOM


# After a look at the untouched base


def left_open(streams: Streams, most: float = MOST_CUT) -> list[str]:
    """What is not settled of each role's answers, as what is assumed: whether no more than so many are cut off, and
    whether enough have the format, for sure, or as it seems of so many that none would have been too few for sure."""
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


def after_a_look(asked: Iterable[str], tokens: int, limit: int, thinks: bool, streams: Streams) -> Default | None:
    """What the untouched base was seen to need, the first thing first; None where that is nothing, or not to be chosen.

    `asked` is what may be decided, `tokens` the limit of a completion and `limit` the most it may become, `thinks`
    whether the base was to think aloud. What was cut off says nothing of the format, and no cold start mends it. No
    limit cures a loop.
    """
    loud = thinks and "thinking" in asked
    cut, count, too_many = _cut_off(streams, loops=loud)
    if too_many or (too_many is None and count and cut >= MOST_CUT * count):
        why = f"{cut} of {count} answers were cut off at {tokens:,} tokens"
        if loud:
            return Default("thinking", {"model.thinking": "off"}, f"with it {why}", "--set model.thinking=on")
        if "the token limit" in asked and 2 * tokens <= limit:
            values = {"run.max_completion_tokens": 2 * tokens}
            return Default("a step", values, f"{why}, now twice as many", "--max-completion-tokens N")
        return None
    judged = {role: s for role, s in streams.items() if s["judged"]}
    never = [r for r, s in judged.items() if is_above(s["well_formed"], s["judged"], FEWEST_WELL_FORMED) is False]
    if "a cold start" not in asked or not never:
        return None
    count = sum(streams[role]["judged"] for role in never)
    shaped = round(sum(streams[role]["judged"] * streams[role]["well_formed"] for role in never))
    why = f"{shaped} of {count} answers of the base had the format"
    return Default("cold start", {"cold_start.enabled": True}, why, "--no-cold-start")


def _cut_off(streams: Streams, *, loops: bool = False) -> tuple[int, int, bool | None]:
    """How many answers were cut off at their limit, or in a loop, of how many, and whether too many are."""
    count = sum(stream["completions"] for stream in streams.values())
    shares = [(s["truncated"] - (0 if loops else s["loops"]), s["completions"]) for s in streams.values()]
    cut = round(sum(share * n for share, n in shares))
    return cut, count, is_above(cut / max(count, 1), count, MOST_CUT)
