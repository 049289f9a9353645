# mypy: implicit-reexport
"""What fused operators cost relative to what they replace: figures, their measurement, and decisions."""

from graphopt.cost.table import Axis, Costs, Decision, Estimate, Grid, shipped
