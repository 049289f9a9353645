"""Compute constants of an optimized model from its weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphopt import ir
from graphopt.errors import UsageError
from graphopt.folding.constant_evaluator import to_tensor
from graphopt.ort import session

_HINT = "optimize the model with the new weights"


def compute_constants(
    model: ir.Model, weights: Mapping[str, ir.TensorProtocol], conditions: Mapping[str, str]
) -> dict[str, ir.TensorProtocol]:
    """The constants that a constants model computes from ``weights``, by name.

    Args:
        model: the constants model.
        weights: the contents of its inputs.
        conditions: the name of the constant for each output that is a condition.

    Raises:
        UsageError: a computation is not valid for the weights.
        RuntimeFailure: onnxruntime fails.
    """
    feeds = {value.name: weights[value.name].numpy() for value in model.graph.inputs if value.name}
    names = [value.name or "" for value in model.graph.outputs]
    if not names:
        return {}
    made = session.create(ir.to_bytes(model), optimizations="off")
    types = {output.name: output.type for output in made.get_outputs()}
    results = dict(zip(names, session.run(made, feeds, names), strict=True))
    invalid = [constant for name, constant in conditions.items() if not np.all(results[name])]
    if invalid:
        raise UsageError(
            f"{invalid[0]!r} can't be computed from the new weights: it is not finite, or loses digits",
            hint=_HINT,
        )
    tensors: dict[str, ir.TensorProtocol] = {}
    for name, array in results.items():
        tensor = None if name in conditions else to_tensor(array, types[name])
        if tensor is not None:
            tensors[name] = tensor
    return tensors
