"""A variant that becomes a branch of one model."""

from __future__ import annotations

from graphopt import ir
from graphopt.profile import Guard
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Branch:
    """A model that is correct where its guard holds.

    Attributes:
        name: the suffix of the names of its nodes and values.
        guard: its assumptions.
        model: the model; it has the signature of the original, except that inputs may be more specific.
        pins: inputs with a Reshape to the sizes that the guard checks, because onnxruntime infers no sizes of
            outer values in a branch.
    """

    name: str
    guard: Guard
    model: ir.Model
    pins: frozenset[str] = frozenset()
