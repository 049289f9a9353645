"""Contents of sequences that are values of onnxruntime."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from graphopt.errors import RuntimeFailure
from graphopt.ort import session
from graphopt.ort.error_text import explain

if TYPE_CHECKING:
    from onnxruntime import OrtValue

_TYPE = re.compile(r"seq\(tensor\((\w+)\)\)")


def list_of(value: OrtValue) -> list[np.ndarray]:
    """The arrays of a sequence of tensors.

    onnxruntime converts only results of sessions to lists, so a session returns the value.

    Raises:
        RuntimeFailure: the value is no sequence of tensors, or numpy lacks their type.
    """
    type_ = value.data_type()
    match = _TYPE.fullmatch(type_)
    if match is None:
        raise RuntimeFailure(f"onnxruntime can't convert a value of type {type_} to arrays")
    try:
        identity = session.create(_identity_model(match[1]), optimizations="off", threads=1)
        binding = identity.io_binding()
        binding.bind_ortvalue_input("x", value)
        binding.bind_output("y")
        identity.run_with_iobinding(binding)
        arrays: list[np.ndarray] = binding.copy_outputs_to_cpu()[0]
        return arrays
    except RuntimeFailure:
        raise
    except Exception as error:  # onnxruntime's errors have no common base class
        raise RuntimeFailure(f"onnxruntime failed: {explain(error)}") from error


def _identity_model(element: str) -> bytes:
    """A model that returns its input, a sequence of tensors."""
    import onnx

    helper = onnx.helper
    tensor = helper.make_tensor_type_proto(getattr(onnx.TensorProto, element.upper()), None)
    kind = helper.make_sequence_type_proto(tensor)
    infos = [helper.make_value_info(name, kind) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", infos[:1], infos[1:])
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, ir_version=8, opset_imports=imports).SerializeToString()
