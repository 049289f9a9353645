"""Run a model without inputs, in this process or in a child."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphopt.ort import session
from graphopt.util.ort_array_conversion import to_ort_value


def run_constant_model(
    data: bytes, large: Mapping[str, tuple[Any, str]] | None = None, seconds: float | None = None
) -> dict[str, tuple[Any, str]]:
    """The outputs of a serialized model without inputs, without optimizations, on one thread.

    Args:
        data: the model.
        large: contents and onnxruntime's types of initializers that ``data`` only declares as external. They
            are not copied unless numpy lacks their element type.
        seconds: limit on CPU seconds; the run is stopped between two operators.

    Returns:
        Values and onnxruntime's names of their types, by output name.

    Raises:
        RuntimeFailure: onnxruntime refuses the model, or the run fails.
        ResourceLimit: the time limit is exceeded.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if large:
        # OrtValues share the memory of the arrays: both must outlive the session
        values = [to_ort_value(array, type_) for array, type_ in large.values()]
        options.add_external_initializers(list(large), values)
    made = session.create(data, optimizations="off", threads=1, options=options)
    outputs = made.get_outputs()
    results = session.run(made, {}, seconds=seconds)
    return {output.name: (value, output.type) for output, value in zip(outputs, results, strict=True)}
