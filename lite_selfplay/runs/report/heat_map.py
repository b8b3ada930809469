"""An arena as a heat map, drawn by matplotlib, which is an extra."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lite_selfplay.errors import RunFolderError
from lite_selfplay.runs.arena import Arena, conversion_rate
from lite_selfplay.runs.report.drawn import shown_label
from lite_selfplay.stats import clopper_pearson
from lite_selfplay.tasks.files import require_no_link

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Cell = tuple[float, str] | None
"""A share in [0, 1] and what is written over it; None where two did not meet."""


def save_heat_map(arena: Arena, path: Path) -> None:
    """Draw the win rates, and beside them who converts whom, to a `.png` or `.svg` file.

    Raises RunFolderError where it cannot be written.
    """
    from matplotlib.figure import Figure

    require_no_link(path)
    names, count = arena.ranking(), 2 if arena.drafts else 1
    size = max(4.0, 1.1 * len(names) + 2)
    figure = Figure(figsize=(count * (size + 0.8), size + 0.4), layout="constrained")
    title = f"{arena.n} problems of {Path(arena.tasks).name}; beside each share its 95% interval in percent"
    figure.suptitle(shown_label(title), fontsize="medium")
    panel = figure.add_subplot(1, count, 1)
    _drawn(
        panel, names, lambda row, column: _win(arena, row, column), "RdBu", "decided duels that the row won", "against"
    )
    if arena.drafts:
        panel = figure.add_subplot(1, count, 2)
        about = "wrong drafts after which the answer was right"
        _drawn(panel, names, lambda row, column: _converted(arena, row, column), "Greens", about, "answer by")
        panel.set_ylabel("draft by")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():  # of letters that the font does not have
            warnings.simplefilter("ignore")
            figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror or error}") from None


def _drawn(
    panel: "Axes", names: Sequence[str], cell: Callable[[str, str], Cell], colours: str, title: str, below: str
) -> None:
    from math import nan

    found = [[cell(row, column) for column in names] for row in names]
    shares = [[nan if each is None else each[0] for each in row] for row in found]
    image: Any = panel.imshow(shares, vmin=0, vmax=1, cmap=colours)
    for i, row in enumerate(found):
        for j, each in enumerate(row):
            if each is not None:
                dark = each[0] > 0.7 or (colours == "RdBu" and each[0] < 0.3)
                panel.text(j, i, each[1], ha="center", va="center", fontsize=7, color="white" if dark else "black")
    labels = [shown_label(name) for name in names]
    panel.set_xticks(range(len(names)), labels, rotation=45, ha="right")
    panel.set_yticks(range(len(names)), labels)
    panel.set_xlabel(below)
    panel.set_title(title, fontsize="medium")
    panel.figure.colorbar(image, ax=panel, shrink=0.7)


def _win(arena: Arena, row: str, column: str) -> Cell:
    won, of = arena.wins(row, column)
    return _cell(won, of) if of and row != column else None


def _converted(arena: Arena, row: str, column: str) -> Cell:
    duels = next((each for each in arena.duels if (each.first, each.second) == (row, column)), None)
    if duels is None or conversion_rate(duels) is None:
        return None
    return _cell(duels.conversions, duels.conversions + duels.both_wrong)


def _cell(part: int, whole: int) -> Cell:
    low, high = clopper_pearson(part, whole)
    return part / whole, f"{part} of {whole}\n[{100 * low:.0f}, {100 * high:.0f}]"
