"""docs/papers.md is made of the presets, the experiments and the rules of papers.yaml: it cannot go stale.

LITE_SELFPLAY_WRITE_PAGES=1 writes it.
"""

import os
import re
from pathlib import Path
from typing import Any

import yaml

from lite_selfplay.config import preset_layer
from lite_selfplay.evaluation.result import as_markdown
from lite_selfplay.extras.reproduce.experiment import experiment_names, load_experiment
from tests.config.test_presets import cited, resolved, text_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "papers.md"
HEAD = """# The papers, as printed

This page answers, paper by paper, what each one prints, what this library does, and why where the two differ. What is
printed and ours at once is as in the paper; of what has no row nothing is claimed. The rules of each game stand on its
page under [games](games/agon.md). `-` is what a paper, or its release, does not say. No figure of a paper has been
reproduced here. One claim of each paper, about a direction and not about a figure, has a check for some minutes of a
card, on another base and with smaller sizes ([the plan](../experiments/papers/README.md)); none has been run yet.
"""
PAPERS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "Agon": ("agon", ("agon-paper",), "agon"),
    "PasoDoble": ("pasodoble", ("pasodoble-paper",), "pasodoble"),
    "SQLM": ("sqlm", ("sqlm-paper", "sqlm-paper-algebra", "sqlm-paper-code"), "sqlm"),
    "CPMobius": ("cpmobius", ("cpmobius-paper",), "cpmobius"),
    "SPC": ("spc", ("spc-paper", "spc-release"), "spc"),
}
"""Of each paper its page, its presets, and how the names of its experiments begin."""
RULES: dict[str, list[list[str | None]]] = yaml.safe_load(
    (Path(__file__).parent / "papers.yaml").read_text(encoding="utf-8")
)
"""What no key says, by paper: place, what is printed, what is ours where that differs, why."""


def shown(value: Any) -> str:
    if isinstance(value, str) and "`" in value:
        return value
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def of_presets(names: tuple[str, ...]) -> list[list[str]]:
    """The values of presets, the paper's first: of several, those of a later one as far as they differ from the
    first's."""
    rows: dict[tuple[str, str], list[str]] = {}
    first = cited(text_of(names[0]))
    for name in names:
        for key, (value, where) in sorted(cited(text_of(name)).items(), key=lambda row: row[1][1].startswith("ours:")):
            if name != names[0] and key in first and first[key][0] == value:
                continue
            of, printed = f"{key} ({name})" if len(names) > 1 else key, not where.startswith("ours:")
            ours = ["as printed", ""] if printed else [shown(value), where.removeprefix("ours: ")]
            if key.endswith("full_finetune_lr"):
                ours = ["for the record", "adapters learn at `seats.*.lr`"]
            rows[name, key] = [where if printed else "-", f"`{of}`", shown(value) if printed else "-", *ours]
    return list(rows.values())


def line(*cells: str | None) -> str:
    return "| " + " | ".join((cell or "").replace("|", "\\|") for cell in cells) + " |"


def page() -> str:
    lines = [HEAD]
    for paper, (game, presets, prefix) in PAPERS.items():
        lines += [f"## {paper}", "", f"Its rules: [{paper}](games/{game}.md).", ""]
        lines += ["| place | printed | ours | why |", "| --- | --- | --- | --- |"]
        lines += [line(place, printed, ours or "the same", why) for place, printed, ours, why in RULES[paper]]
        made = " and ".join(f"`{name}`" for name in presets)
        lines += [
            "",
            f"The values of {made}:",
            "",
            "| place | key | printed | ours | why |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [line(*row) for row in of_presets(presets)]
        for name in [name for name in experiment_names() if name.startswith(prefix)]:
            found = load_experiment(name)
            tasks = list(dict.fromkeys(task for arm in found.arms.values() for task in arm.paper))
            rows = [[arm, *(section.paper.get(task, "-") for task in tasks)] for arm, section in found.arms.items()]
            lines += [
                "",
                f"`lite-selfplay reproduce {name}`, and what the paper prints ({found.source}; {found.paper}):",
                "",
            ]
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
        assert f"../papers.md#{paper.lower()}" in texts[f"docs/games/{game}.md"]


SIZES = re.compile(r"run\.(?!minibatches)|model\.(?!thinking)|tasks\.train|eval\.(tasks|limit|every)")
"""Keys that a bare run chooses by the machine and the problems."""


def bare_run(game: str) -> str:
    """What a game's page says of a bare run, behind its first commands."""
    text = (ROOT / "docs" / "games" / f"{game}.md").read_text(encoding="utf-8")
    paragraph = text.split("```\n", 2)[2].strip().split("\n\n")[0]
    assert paragraph.startswith("**A bare run** is "), game
    return " ".join(paragraph.split())


def test_every_games_page_says_where_a_bare_run_differs_from_the_paper():
    pages = {path.stem for path in (ROOT / "docs" / "games").glob("*.md")} - {"own"}
    said = {game: bare_run(game) for game in pages}
    for preset in ("agon-paper", "pasodoble-paper", "sqlm-paper", "cpmobius-paper", "rzero-paper", "spc-paper"):
        paper = resolved(preset_layer(preset))
        game = preset_layer(preset)["game"]["name"]
        bare = resolved({"game": game, "model": {"name": "Qwen3-0.6B"}, "tasks": {"train": "stories"}})
        differ = {key for key, value in paper.items() if bare.get(key) != value and not SIZES.match(key)}
        keys = {re.sub(r"^(roles|seats)\.\w+\.", r"\1.*.", key) for key in differ}
        assert keys == {key for key in re.findall(r"`([a-z_.*]+)[=`]", said[game]) if "." in key}, game
        assert f"`--preset {preset}` is." in said[game]
