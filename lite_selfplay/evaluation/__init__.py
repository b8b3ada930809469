"""Measures how well a base model or a run's seats (LoRA adapters) solve problems they have not seen.

Reading order: `examiner` (runs a mode of `lite_selfplay.games.modes`), `result` (scores, and their text). The target, a
run or a model, is resolved by `lite_selfplay.runs.targets`. Does not import torch.
"""

from lite_selfplay.evaluation.examiner import Exam, measure
from lite_selfplay.evaluation.result import Evaluation, as_markdown, as_text, change, comparison, headline
from lite_selfplay.evaluation.suites import Settings

__all__ = ["Evaluation", "Exam", "Settings", "as_markdown", "as_text", "change", "comparison", "headline", "measure"]
