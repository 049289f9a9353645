"""Bailouts: leave a run of a model in its middle, and let another graph do the rest from there.

The seed is ``bailout_graph.cpp`` of PyTorch's JIT. Its interpreter can stop anywhere; onnxruntime can't, so
that the run up to a place is a graph of its own here (:mod:`graphopt.specialization.deopt.prefix`).
"""

from graphopt.specialization.deopt.exit_points import Place, places_behind, places_of_guards
from graphopt.specialization.deopt.splice import Inserted, insert_bailouts
from graphopt.specialization.deopt.split import Bailout, bailout_at

__all__ = [
    "Bailout",
    "Inserted",
    "Place",
    "bailout_at",
    "insert_bailouts",
    "places_behind",
    "places_of_guards",
]
