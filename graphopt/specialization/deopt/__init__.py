"""Deoptimization: leave a run at an exit point, and continue in another graph from there (a bailout).

Modelled on ``bailout_graph.cpp`` of PyTorch's JIT, whose interpreter can stop anywhere. onnxruntime can't
stop, so the run up to an exit point is a separate model (:mod:`graphopt.specialization.deopt.prefix_writer`).
"""

from graphopt.specialization.deopt.bailout_insertion import ModelWithBailouts, insert_bailouts
from graphopt.specialization.deopt.exit_points import ExitPoint, exit_points_after, exit_points_of_guards
from graphopt.specialization.deopt.split_model import Bailout, bailout_at

__all__ = [
    "Bailout",
    "ExitPoint",
    "ModelWithBailouts",
    "bailout_at",
    "exit_points_after",
    "exit_points_of_guards",
    "insert_bailouts",
]
