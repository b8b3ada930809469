"""What happened in a run over its steps: tables, JSON and figures; the studies that its game declares. No torch."""

from lite_selfplay.runs.report.analysis.curves import Curve
from lite_selfplay.runs.report.analysis.runs import Analysis, Moment, Score, analyse, moments_table, part_table, to_json

__all__ = ["Analysis", "Curve", "Moment", "Score", "analyse", "moments_table", "part_table", "to_json"]
