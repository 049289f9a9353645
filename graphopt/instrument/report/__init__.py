"""The report of one optimization, for people and for programs."""

from graphopt.instrument.report.json import verdict_dict
from graphopt.instrument.report.report import Dropped, Report
from graphopt.instrument.report.text import cost, details, kept, not_verified, verdict_lines

__all__ = ["Dropped", "Report", "cost", "details", "kept", "not_verified", "verdict_dict", "verdict_lines"]
