"""Constants of a model, and their contents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from graphopt.ir._onnx_ir_without_sympy import onnx_ir

#: Metadata keys with this prefix are graphopt's own and never reach a saved file.
NAMESPACE = "graphopt."
#: Key in ``graph.meta`` of the main graph: the model's IR version (set by the Editor and the loader).
IR_VERSION = "graphopt.ir_version"
#: Key in ``graph.meta`` of the main graph: whether loading inserted copies that onnxruntime requires.
COPIED_OUTPUTS = "graphopt.copied_outputs"
#: Key in ``graph.meta`` of the main graph: remarks about changes by loading.
LOADED_WITH = "graphopt.loaded_with"
#: Key in ``graph.meta`` of the main graph: identifiers of the functions of the loaded model.
FUNCTIONS = "graphopt.functions"
#: Key in ``graph.meta`` of the main graph: whether its nodes refer to attributes outside of any function.
LOOSE_REFERENCES = "graphopt.loose_references"
#: Key in ``tensor.meta``: the common value of all elements, or ``None``.
_FILL = "graphopt.fill"
#: Key in ``graph.meta`` of the main graph: the files that the model's external data was read from.
DATA_FILES = "graphopt.data_files"
#: Key in ``graph.meta``: names of the initializers that training info updates.
UPDATED_OUTSIDE = "graphopt.updated_outside"
#: Key in ``graph.meta`` of the main graph and its bodies: the record of constants that rewrites depend on.
READ_RECORD = "graphopt.contents"
#: Key in ``graph.meta`` of the main graph and its bodies: the computation of constants from weights.
CONSTANT_GRAPH = "graphopt.constant_graph"


def is_overridable(value: onnx_ir.Value) -> bool:
    """Whether a caller may feed another value for this initializer.

    From IR version 4 on, an initializer that is also a graph input is only a default. In older versions, all
    initializers are listed as inputs, and are constants (ONNX IR, section Graphs).
    """
    graph = value.graph
    if graph is None:
        return value.is_graph_input()
    notes = graph.meta.data  # faster than the store's own lookup; called for each operand of each match
    if UPDATED_OUTSIDE in notes and value.name in notes[UPDATED_OUTSIDE]:
        return True
    return value.is_graph_input() and bool(notes.get(IR_VERSION, 4) >= 4)


@contextmanager
def as_variables(graph: onnx_ir.Graph, names: Iterable[str]) -> Iterator[None]:
    """Treat initializers of the main graph as variables in the ``with`` block: their contents will change."""
    before = graph.meta.get(UPDATED_OUTSIDE, frozenset())
    graph.meta[UPDATED_OUTSIDE] = before | frozenset(names)
    try:
        yield
    finally:
        graph.meta[UPDATED_OUTSIDE] = before


def copy_variables(source: onnx_ir.Graph, target: onnx_ir.Graph) -> None:
    """Treat those initializers of ``target`` as variables that are variables in ``source``."""
    target.meta[UPDATED_OUTSIDE] = source.meta.get(UPDATED_OUTSIDE, frozenset())


def constant_of(value: onnx_ir.Value | None) -> onnx_ir.TensorProtocol | None:
    """The tensor that ``value`` always equals, or ``None``.

    Initializers and outputs of Constant nodes are constants; overridable initializers, weights that change
    later (:func:`computable`), Constant nodes that refer to a function's attribute, and sparse constants are
    not.
    """
    if value is None:
        return None
    if value.is_initializer():
        return None if is_overridable(value) or depends_on_weights(value) else value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or node.domain != "":
        return None
    if value.const_value is None:
        value.const_value = _tensor_of_constant_node(node)
    return value.const_value


def depends_on_weights(value: onnx_ir.Value) -> bool:
    """Whether ``value`` is a weight that changes later, or a constant computed from such weights."""
    graph = None if value.graph is None else value.graph.meta.data.get(CONSTANT_GRAPH)
    return graph is not None and bool(graph.depends(value))


def computable(value: onnx_ir.Value | None) -> onnx_ir.TensorProtocol | None:
    """The contents of ``value`` that a rewrite may compute with; ``None`` if it is not constant.

    Unlike the result of :func:`constant_of`, they may belong to a weight that changes later
    (:mod:`graphopt.ir.constant_graph`), so that they must not decide a rewrite.
    """
    if value is not None and depends_on_weights(value):
        return value.const_value
    return constant_of(value)


#: The types of the attributes of Constant; a file may contain others.
_TYPES = {
    "value": "TENSOR",
    **{"value_int": "INT", "value_ints": "INTS", "value_float": "FLOAT", "value_floats": "FLOATS"},
    **{"value_string": "STRING", "value_strings": "STRINGS"},
}


def _tensor_of_constant_node(node: onnx_ir.Node) -> onnx_ir.TensorProtocol | None:
    if len(node.attributes) != 1:
        return None
    name, attribute = next(iter(node.attributes.items()))
    if attribute.is_ref():
        return None
    value = attribute.value
    if attribute.type.name != _TYPES.get(name):
        return None
    match name:
        case "value":
            tensor: onnx_ir.TensorProtocol = value
            return tensor
        case "value_int":
            return onnx_ir.tensor(np.array(value, np.int64))
        case "value_ints":
            return onnx_ir.tensor(np.array(value, np.int64))
        case "value_float":
            return onnx_ir.tensor(np.array(value, np.float32))
        case "value_floats":
            return onnx_ir.tensor(np.array(value, np.float32))
        case "value_string":
            text = value.encode() if isinstance(value, str) else value
            return onnx_ir.StringTensor([text], shape=onnx_ir.Shape([]))
        case "value_strings":
            texts = [text.encode() if isinstance(text, str) else text for text in value]
            return onnx_ir.StringTensor(texts, shape=onnx_ir.Shape([len(texts)]))
    return None


def read(*values: onnx_ir.Value | None) -> None:
    """Record a read of the contents of constants, which takes effect with the next edit."""
    for value in values:
        if value is not None and value.graph is not None:
            record = value.graph.meta.data.get(READ_RECORD)
            if record is not None:
                record.note_read(value)


def read_to_compute(value: onnx_ir.Value) -> None:
    """Record that the contents of a weight are read, only to compute new constants."""
    if value.graph is not None:
        record = value.graph.meta.data.get(READ_RECORD)
        if record is not None:
            record.note_operand(value)


def read_for_facts(value: onnx_ir.Value) -> None:
    """Record that facts, on which any later edit may rely, depend on the contents of a constant."""
    if value.graph is not None:
        record = value.graph.meta.data.get(READ_RECORD)
        if record is not None:
            record.note_read_for_facts(value)


def fill_of_tensor(tensor: onnx_ir.TensorProtocol) -> np.generic | None:
    """The common value of all elements of ``tensor``, compared bit by bit, or ``None``."""
    if _FILL not in tensor.meta:
        tensor.meta[_FILL] = _common_number(tensor)
    number: np.generic | None = tensor.meta[_FILL]
    return number


def _common_number(tensor: onnx_ir.TensorProtocol) -> np.generic | None:
    if tensor.size == 0 or tensor.dtype == onnx_ir.DataType.STRING:
        return None
    array = tensor.numpy().reshape(-1)
    first: np.generic = array[0]
    data = first.tobytes()
    if array[-1].tobytes() != data or array[array.size // 2].tobytes() != data:
        return None  # a few pages of a large weight suffice
    bits = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}.get(array.dtype.itemsize)
    if array.size > 2 and (bits is None or not np.all(array.view(bits) == np.frombuffer(data, bits))):
        return None
    return first


def scalar_of(value: onnx_ir.Value | None) -> int | float | bool | None:
    """The only element of the constant ``value``, of any rank; ``None`` for other values."""
    tensor = constant_of(value)
    if tensor is None or tensor.size != 1 or tensor.dtype == onnx_ir.DataType.STRING:
        return None
    read(value)
    number = tensor.numpy().reshape(())[()]
    if tensor.dtype == onnx_ir.DataType.BOOL:
        return bool(number)
    if tensor.dtype.is_floating_point():
        return float(number)
    return int(number) if tensor.dtype.is_integer() else None
