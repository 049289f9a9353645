"""The nodes of a model that each node of onnxruntime's optimized graph computes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from graphopt import ir
from graphopt.ops import traits
from graphopt.timing.function_calls import INLINED, inline_calls
from graphopt.util.lazy_dataclass import dataclass

#: The name of a node that replaces another by the blocked layout: the name of its output, the kind of the
#: replaced node, and a number if the name exists (onnxruntime, nchwc_transformer.cc).
_BLOCKED_NAME = re.compile(r"(?P<output>.+?)(?P<kind>_bn|_mul)?_nchwc(_token_\d+)?")
#: The name of a value that onnxruntime casts to another float type, or computes in one
#: (insert_cast_transformer.cc).
_CAST_NAME = re.compile(r"Inserted(?:PrecisionFree)?Cast_(?P<value>.+)")
#: The name of a node that replaces another: by channels in the last dimension (nhwc_transformer.cc), or as
#: part of an operator that is a function, where the beginning is empty.
_TOKEN_NAME = re.compile(r"(?P<node>.*)_token_\d+")
#: Operators between a quantized operator and its QuantizeLinear that onnxruntime includes in its kernel.
_QUANTIZED_EPILOGUE = ("Relu", "LeakyRelu", "Clip", "Sigmoid", "QuantizeLinear")
#: Number of inputs of a blocked Conv that also adds its last input to the result.
_WITH_SUM = 4


def map_to_originals(ran: Mapping[str, ir.Node], model: ir.Model) -> dict[str, tuple[str, ...]]:
    """Names of the original nodes, by the name of a node that onnxruntime ran.

    A node computes the nodes of ``model`` between its inputs and its outputs. Values keep their names, except
    those of the blocked layout, which are identified by the nodes that create and read them, those in calls
    of functions (:mod:`graphopt.timing.function_calls`), and the results of inserted Casts. A node without
    identified inputs is mapped to the node that computes its output. Nodes that only change the layout or the
    type are mapped to the node that computes the value, and quantized operators to the nodes up to the
    QuantizeLinear of their result. A Cast of an input of the model, and a part of an operator that
    onnxruntime expands, are mapped to the nodes that read the result. Other nodes without identified outputs
    are omitted.

    Args:
        ran: the nodes that onnxruntime ran, by name, in the order of the graph.
        model: the model, with the provenance of its nodes.
    """
    model, names = inline_calls(model)
    known = _Originals.of(model)
    names = _value_names(ran, known, names)
    found: dict[str, tuple[str, ...]] = {}
    for name, node in ran.items():
        inputs = {names.get(value.name, value.name) for value in node.inputs if value is not None}
        outputs = [names.get(value.name, value.name) for value in node.outputs]
        ends = [known.producers[value] for value in outputs if value in known.producers]
        if not ends:
            continue
        is_inside = any(_is_inserted(names.get(value.name, value.name)) for value in ir.reads(node))
        is_whole = not is_inside and not inputs & {*outputs}
        covered = known.between(inputs, ends) if is_whole else None
        sources = ends if covered is None else covered
        found[name] = tuple(dict.fromkeys(origin for one in sources for origin in ir.origins(one)))
    _map_to_readers(ran, found)
    return found


def _map_to_readers(ran: Mapping[str, ir.Node], found: dict[str, tuple[str, ...]]) -> None:
    """Map inserted nodes that are not in ``found`` to the originals of the nodes that read their results."""
    readers: dict[str, dict[str, None]] = {}
    for name, node in ran.items():
        for value in ir.reads(node):
            readers.setdefault(value.name or "", {})[name] = None
    for name, node in reversed([*ran.items()]):
        if name not in found and any(_is_inserted(value.name) for value in node.outputs):
            reading = (reader for value in node.outputs for reader in readers.get(value.name or "", ()))
            originals = dict.fromkeys(origin for reader in reading for origin in found.get(reader, ()))
            if originals:
                found[name] = tuple(originals)


def _is_inserted(name: str | None) -> bool:
    """Whether onnxruntime created the value ``name``: by a Cast, or in an operator that it expands."""
    if name is None:
        return False
    is_part = name.startswith("_token_") and _TOKEN_NAME.fullmatch(name) is not None
    return is_part or name.startswith(INLINED) or _CAST_NAME.fullmatch(name) is not None


@dataclass
class _Originals:
    """The nodes of a model.

    Attributes:
        producers: nodes by the names of their outputs.
        by_name: nodes by name.
        by_inputs: nodes by operator and names of inputs that are not constant; the last of several.
        constant: names of values that depend on constants only.
    """

    producers: dict[str, ir.Node] = field(default_factory=dict)
    by_name: dict[str, ir.Node] = field(default_factory=dict)
    by_inputs: dict[tuple[str, ...], ir.Node] = field(default_factory=dict)
    constant: dict[str, None] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ir.Model) -> _Originals:
        found = cls()
        for graph in ir.graphs_of(model):
            for node in graph:
                varying = found._varying(node)
                if not varying and graph is model.graph and not traits.is_random(node):
                    found.constant |= {output.name: None for output in node.outputs if output.name}
                found.producers |= {output.name: node for output in node.outputs if output.name}
                found.by_inputs[node.op_type, *varying] = node
                if node.name:
                    found.by_name[node.name] = node
        return found

    def _varying(self, node: ir.Node) -> list[str]:
        """The names of inputs that are not constant."""
        return [value.name for value in ir.reads(node) if value.name and not self._is_constant(value)]

    def _is_constant(self, value: ir.Value) -> bool:
        return value.name in self.constant or ir.constant_of(value) is not None

    def reader(self, name: str, ops: tuple[str, ...]) -> ir.Node | None:
        """The only node that reads the value ``name``, if its operator is one of ``ops``."""
        (value,) = (output for output in self.producers[name].outputs if output.name == name)
        readers = list(ir.readers(value))
        return readers[0] if len(readers) == 1 and readers[0].op_type in ops else None

    def between(self, inputs: set[str | None], ends: list[ir.Node]) -> list[ir.Node] | None:
        """The nodes from values named in ``inputs`` to ``ends``; ``None`` if they read other model inputs."""
        found = dict.fromkeys(ends)
        queue = list(ends)
        while queue:
            for value in queue.pop().inputs:
                if value is None or value.name in inputs or self._is_constant(value):
                    continue
                producer = value.producer()
                if producer is None:
                    return None
                if producer not in found:
                    found[producer] = None
                    queue.append(producer)
        return list(reversed(found))


def _value_names(
    ran: Mapping[str, ir.Node], known: _Originals, inlined: Mapping[str | None, str]
) -> dict[str | None, str]:
    """Names of the original values that values of other names contain; ``inlined`` are those of calls."""
    names = dict(inlined)
    for node in ran.values():
        for one in (*ir.reads(node), *node.outputs):
            match = _CAST_NAME.fullmatch(one.name or "")
            if match is not None and one.name not in known.producers:
                names[one.name] = inlined.get(match["value"], match["value"])
    for node in ran.values():
        if node.op_type == "ReorderOutput" and not _transposes(node):
            names[_name(node.inputs[0])] = _name(node.outputs[0])
    for name, node in ran.items():
        output = node.outputs[0].name
        if output in names or output in known.producers:
            continue
        value = _computed(name, node, names, known)
        if value is not None:
            names[output] = value
    return names


def _name(value: ir.Value | None) -> str:
    return "" if value is None else value.name or ""


def _transposes(node: ir.Node) -> bool:
    """Whether a node that changes the layout also moves channels to the last axis."""
    attribute = node.attributes.get("channels_last")
    return attribute is not None and bool(attribute.value)


def _computed(name: str, node: ir.Node, names: Mapping[str | None, str], known: _Originals) -> str | None:
    """The name of the original value that ``node`` computes; ``None`` if it is unknown."""
    varying = [value for value in node.inputs if value is not None and ir.constant_of(value) is None]
    inputs = [names.get(value.name, _name(value)) for value in varying]
    if (node.op_type == "ReorderInput" and not _transposes(node)) or node.op_type == "Reshape":
        return inputs[0] if inputs else None  # blocked values are reshaped for operators with broadcasting
    match = _BLOCKED_NAME.fullmatch(name)
    if match is not None:
        replaced = match["output"] + (match["kind"] or "")
        replaced = replaced if replaced in known.producers else match["output"]
        return _with_epilogue(node, replaced, known) if replaced in known.producers else None
    match = _TOKEN_NAME.fullmatch(name)
    if match is not None and match["node"] in known.by_name:
        replaced = _name(known.by_name[match["node"]].outputs[0])
        return _quantized_result(replaced, known) if node.op_type.startswith("QLinear") else replaced
    original = known.by_name.get(name) or known.by_inputs.get((node.op_type, *filter(None, inputs)))
    if original is None and "/" in name.rstrip("/"):
        # the name of a fused node consists of those of its last node and of the fusion
        original = known.by_name.get(name.rstrip("/").rpartition("/")[0])
    if original is None and node.op_type == "Transpose" and inputs:
        return inputs[0]  # onnxruntime moves the channels of a value
    return None if original is None else _name(original.outputs[0])


def _quantized_result(value: str, known: _Originals) -> str:
    """The quantized form of ``value``, which a quantized operator computes; ``value`` if there is none."""
    result = value
    while (reader := known.reader(result, _QUANTIZED_EPILOGUE)) is not None and reader.outputs[0].name:
        result = reader.outputs[0].name
        if reader.op_type == "QuantizeLinear":
            return result
    return value


def _with_epilogue(node: ir.Node, value: str, known: _Originals) -> str:
    """The result of a blocked Conv, which has the name of ``value`` also after fusions with later nodes."""
    steps: list[tuple[str, ...]] = (
        [("Add", "Sum")] if len(node.inputs) == _WITH_SUM and node.op_type == "Conv" else []
    )
    activation = node.attributes.get("activation")
    if activation is not None and (steps or known.producers[value].op_type != activation.value):
        steps.append((str(activation.value),))
    for ops in steps:
        reader = known.reader(value, ops)
        if reader is None or not reader.outputs[0].name:
            break
        value = reader.outputs[0].name
    return value
