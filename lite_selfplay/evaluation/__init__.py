"""How well seats solve problems they have not seen.

Reading order: `examiner` (how a mode of `lite_selfplay.games.modes` is carried out), `result` (what is found, and as
text). What is measured, a run or a model, is `lite_selfplay.runs.targets`'s business. Loads no torch.
"""

from lite_selfplay.evaluation.examiner import Exam, measure
from lite_selfplay.evaluation.result import Evaluation, as_markdown, as_text, change, comparison, headline
from lite_selfplay.evaluation.suites import Settings

__all__ = [
    "Evaluation",
    "Exam",
    "Settings",
    "as_markdown",
    "as_text",
    "change",
    "comparison",
    "headline",
    "measure",
]
