"""Run folders written by hand, as for the charts that are drawn here."""

from tests.runs.report.conftest import family, write_run

__all__ = ["family", "write_run"]
