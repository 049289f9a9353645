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
    model: ir.Model, weights: Mapping[str, ir.TensorProtocol]
) -> dict[str, ir.TensorProtocol]:
    """The constants that a constants model computes from ``weights``, by name.

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
    invalid = [
        name.removeprefix(ir.VALID)
        for name, valid in results.items()
        if name.startswith(ir.VALID) and not np.all(valid)
    ]
    if invalid:
        raise UsageError(
            f"{invalid[0]!r} can't be computed from the new weights: it is not finite, or loses digits",
            hint=_HINT,
        )
    tensors: dict[str, ir.TensorProtocol] = {}
    for name, array in results.items():
        tensor = None if name.startswith(ir.VALID) else to_tensor(array, types[name])
        if tensor is not None:
            tensors[name] = tensor
    return tensors
