# mypy: implicit-reexport
"""Costs of fused operators relative to the nodes they replace: figures, their measurement, and decisions."""

from graphopt.cost.cost_model import Axis, Costs, Decision, Estimate, Grid, shipped
