"""The rewrite engine: rules as pairs of pattern and function, applied by a worklist indexed by operator.

A file of rules imports its names from here: ``rule``, ``fusion``, ``Builder``, ``Match``, ``Outcome`` and the
classes of numerics.
"""

from graphopt.numerics import Numerics
from graphopt.rewrite.match import Match
from graphopt.rewrite.replacement_builder import Builder
from graphopt.rewrite.rule import Outcome, Rule, fusion, rule
from graphopt.rewrite.worklist import apply_rules

Exact = Numerics.EXACT
Reassociates = Numerics.REASSOCIATES
Approximates = Numerics.APPROXIMATES

__all__ = [
    "Approximates",
    "Builder",
    "Exact",
    "Match",
    "Outcome",
    "Reassociates",
    "Rule",
    "apply_rules",
    "fusion",
    "rule",
]
