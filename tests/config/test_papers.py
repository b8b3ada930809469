"""docs/papers.md is made of the presets, the experiments and the rules of papers.yaml: it cannot go stale.

LITE_SELFPLAY_WRITE_PAGES=1 writes it.
"""

import os
import re
from pathlib import Path

import yaml

from lite_selfplay.config import preset_layer
from lite_selfplay.evaluation.result import as_markdown
from lite_selfplay.extras.reproduce.experiment import experiment_names, load_experiment
from tests.config.test_presets import cited, resolved, text_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "papers.md"
HEAD = """# The papers, as printed

This page lists, paper by paper, what is printed and where, and where and why this library differs. If a row has none
of our values, ours is as in the paper; nothing is claimed about values without a row. `-` means that the paper, or
its release, does not say. Arms without a figure in their paper are omitted. Adapters learn at `lr`;
`full_finetune_lr` is only a record. No figure of a paper has been reproduced here. One claim of each paper (a
direction, not a figure) has [a check](../experiments/papers/README.md) of some minutes on a GPU, on another base and
with smaller sizes; none has been run yet.

Four keys have a row only where they are printed, because their reasons are always the same: `model.precision=bf16`
(adapters over half-precision weights; most papers train all weights), `model.gradient_checkpointing` and
`run.microbatch_tokens` (an 80 GB GPU), and `seats.*.lr=3e-05` (the papers' rates for all weights are too low for
adapters).
"""
USUAL = ("model.precision", "model.gradient_checkpointing", "run.microbatch_tokens", "seats.*.lr")
"""Keys with the same reason in every preset: said once, in the head."""
PAPERS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "Agon": ("agon", ("agon-paper",), "agon"),
    "PasoDoble": ("pasodoble", ("pasodoble-paper",), "pasodoble"),
    "SQLM": ("sqlm", ("sqlm-paper", "sqlm-paper-algebra", "sqlm-paper-code"), "sqlm"),
    "CPMobius": ("cpmobius", ("cpmobius-paper",), "cpmobius"),
    "Absolute Zero": ("absolute-zero", ("absolute-zero-paper",), "absolute-zero"),
    "SPICE": ("spice", ("spice-paper",), "spice"),
    "SPC": ("spc", ("spc-paper", "spc-release"), "spc"),
}
"""Of each paper its page, its presets, and how the names of its experiments begin."""
RULES: dict[str, list[list[str | None]]] = yaml.safe_load(
    (Path(__file__).parent / "papers.yaml").read_text(encoding="utf-8")
)
"""What no key says, by paper: place, what is printed, what is ours where that differs, why."""


def of_presets(names: tuple[str, ...], *, printed: bool) -> list[list[str]]:
    """What presets set, by where it is printed, or by why it is ours: of a later one as far as it differs from the
    first, and under its name."""
    rows: dict[tuple[str, str], list[str]] = {}
    first = cited(text_of(names[0]))
    for name in names:
        for key, (value, where) in cited(text_of(name)).items():
            differs = name == names[0] or first.get(key, ("",))[0] != value
            ours = where.startswith("ours:")
            if differs and printed != ours and not (ours and key in USUAL):
                text = str(value).strip("`")
                shown = f"`{key}={value:g}`" if isinstance(value, float) else f"`{key}={text}`"
                why = re.sub("the paper is silent(?:[;:] )?", "", where.removeprefix("ours: "))
                rows.setdefault((name, why), []).append(shown)
    return [[f"`{n}`: " * (n != names[0]) + ", ".join(settings), why] for (n, why), settings in rows.items()]


def line(*cells: str | None) -> str:
    return "| " + " | ".join((cell or "").replace("|", "\\|") for cell in cells) + " |"


def page() -> str:
    lines = [HEAD]
    for paper, (game, presets, prefix) in PAPERS.items():
        lines += [f"## {paper}", "", f"Its rules: [{paper}](games/{game}.md).", ""]
        lines += ["| place | printed | ours | why |", "| --- | --- | --- | --- |"]
        lines += [line(place, printed, ours, why) for place, printed, ours, why in RULES[paper]]
        for printed, what in ((True, "printed | where"), (False, "not printed | why")):
            lines += ["", f"| `{presets[0]}`, {what} |", "| --- | --- |"]
            lines += [line(*row) for row in of_presets(presets, printed=printed)]
        setting = ""
        for name in [name for name in experiment_names() if name.startswith(prefix)]:
            found = load_experiment(name)
            tasks = list(dict.fromkeys(task for arm in found.arms.values() for task in arm.paper))
            rows = [[a, *(each.paper.get(task, "-") for task in tasks)] for a, each in found.arms.items() if each.paper]
            where = "as above" if found.paper == setting else found.paper
            lines += ["", f"`lite-selfplay reproduce {name}` (printed: {found.source}; {where}):", ""]
            setting = found.paper
            lines += [as_markdown(["arm", *tasks], rows)]
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def test_the_page_of_the_papers_is_made_of_presets_experiments_and_rules():
    if os.environ.get("LITE_SELFPLAY_WRITE_PAGES"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()


def test_only_that_page_says_as_in_the_paper():
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")
    }
    assert [name for name, text in texts.items() if re.search(r"as in the paper", text, re.IGNORECASE)] == [
        "docs/papers.md"
    ]
    for paper, (game, _, _) in PAPERS.items():
        assert "../papers.md#" + paper.lower().replace(" ", "-") in texts[f"docs/games/{game}.md"]


SIZES = re.compile(r"run\.(?!minibatches)|model\.(?!thinking)|tasks\.train|eval\.(tasks|limit|every)")
"""Keys that a bare run chooses by the machine and the problems."""


def bare_run(game: str) -> str:
    """What a game's page says of a bare run, behind its first commands."""
    text = (ROOT / "docs" / "games" / f"{game}.md").read_text(encoding="utf-8")
    paragraph = text.split("```\n", 2)[2].strip().split("\n\n")[0]
    assert paragraph.startswith("**A bare run** "), game
    return " ".join(paragraph.split())


def test_every_games_page_says_where_a_bare_run_differs_from_the_paper():
    pages = {path.stem for path in (ROOT / "docs" / "games").glob("*.md")} - {"own"}
    said = {game: bare_run(game) for game in pages}
    for preset in (
        "agon-paper",
        "pasodoble-paper",
        "sqlm-paper",
        "cpmobius-paper",
        "rzero-paper",
        "spc-paper",
        "spice-paper",
    ):
        paper = resolved(preset_layer(preset))
        game = preset_layer(preset)["game"]["name"]
        bare = resolved({"game": game, "model": {"name": "Qwen3-0.6B"}, "tasks": {"train": "stories"}})
        differ = {key for key, value in paper.items() if bare.get(key) != value and not SIZES.match(key)}
        keys = {re.sub(r"^(roles|seats)\.\w+\.", r"\1.*.", key) for key in differ}
        assert keys == {key for key in re.findall(r"`([a-z_.*]+)[=`]", said[game]) if "." in key}, game
        assert f"`--preset {preset}`" in said[game]
