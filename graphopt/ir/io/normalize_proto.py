"""Normalize models that onnxruntime accepts, but ONNX or onnx-ir do not.

Before onnx-ir reads a proto: initializers without a name are removed (they can't be read); among constants
with one name, and among imports of one domain, only the last is kept; an Identity is added to a body that
returns a value of an outer graph, or a value that onnxruntime returns correctly only as a copy
(:mod:`graphopt.ir.body_outputs`). Afterwards: a function declares every attribute that its nodes refer to,
and no value of a body has the name of an outer value that is visible in the body.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import onnx
import onnx.numpy_helper

from graphopt.errors import InvalidModel
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.body_outputs import outputs_to_copy
from graphopt.ir.constants import LOOSE_REFERENCES
from graphopt.ir.name_references import rename
from graphopt.ir.nested_graphs import bodies, graphs_of, in_order, walk_nodes, with_bodies

_Attribute = onnx.AttributeProto
#: Maximum number of names in a remark.
_LISTED = 3
#: The opset version from which Identity accepts values that are not tensors.
_IDENTITY_SINCE = {"sequence_type": 14, "optional_type": 16}


def normalize(proto: onnx.ModelProto) -> tuple[list[str], list[str]]:
    """Rewrite the parts of ``proto`` that onnx-ir rejects or misinterprets, in place.

    Returns remarks about removed definitions, and the names of outputs of bodies that were replaced by copies
    because onnxruntime computes them incorrectly. Among constants with one name, and among imports of one
    domain, the last is kept, as in onnxruntime.

    Raises:
        InvalidModel: the model has duplicate definitions, or a name that is not UTF-8.
    """
    for holder in (proto, *proto.functions):
        if not _are_utf8([entry.domain for entry in holder.opset_import]):
            raise InvalidModel("the domain of an opset import is not UTF-8")
    remarks = _keep_last_imports(proto, "the model")
    for function in proto.functions:
        remarks += _keep_last_imports(function, f"function {function.name!r}")
    _check_functions(proto.functions)
    remarks += _keep_last_definitions(proto.graph)
    _repair_text(proto.graph)
    _check_attributes(proto.graph.node)
    version = _standard_version(proto)
    pending = [(version, holder, body) for holder, body in _bodies(proto.graph.node)]
    for function in proto.functions:
        _repair_text(function)
        _check_attributes(function.node)
        version = _standard_version(function)
        pending += [(version, holder, body) for holder, body in _bodies(function.node)]
    copied: list[str] = []
    while pending:
        version, holder, body = pending.pop()
        remarks += _keep_last_definitions(body)
        _repair_text(body)
        _check_attributes(body.node)
        _return_own_values(body)
        copied += _return_copies(body, holder, version)
        pending += [(version, *inner) for inner in _bodies(body.node)]
    return remarks, list(dict.fromkeys(copied))


def _bodies(nodes: Iterable[onnx.NodeProto]) -> list[tuple[onnx.NodeProto, onnx.GraphProto]]:
    """The bodies of ``nodes``, each after its node."""
    found: list[tuple[onnx.NodeProto, onnx.GraphProto]] = []
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == _Attribute.GRAPH:
                found.append((node, attribute.g))
            elif attribute.type == _Attribute.GRAPHS:
                found += [(node, graph) for graph in attribute.graphs]
    return found


def _standard_version(holder: onnx.ModelProto | onnx.FunctionProto) -> int:
    """The opset version of ai.onnx that ``holder`` imports; 0 if it imports none."""
    return next((entry.version for entry in holder.opset_import if entry.domain in ("", "ai.onnx")), 0)


def _repair_text(holder: onnx.GraphProto | onnx.FunctionProto) -> None:
    """Replace bytes that are not UTF-8 in names of nodes and doc strings, which onnx-ir could not write.

    Raises:
        InvalidModel: such bytes are in an operator or a domain.
    """
    texts = [holder.name, holder.doc_string]
    for node in holder.node:
        texts += (node.op_type, node.domain, node.name, node.doc_string)
    if _are_utf8(texts):
        return
    for item in (holder, *holder.node):
        item.name, item.doc_string = _repaired(item.name), _repaired(item.doc_string)
    for node in holder.node:
        if not _are_utf8([node.op_type, node.domain]):
            raise InvalidModel(f"the operator of node {node.name!r} is not UTF-8: {node.op_type!a}")


def _are_utf8(texts: list[str]) -> bool:
    try:
        "".join(texts)
    except TypeError:  # protobuf returns bytes for invalid UTF-8
        return False
    return True


def _repaired(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


def _keep_last_definitions(graph: onnx.GraphProto) -> list[str]:
    """Keep one definition of each name; returns remarks about duplicate constants.

    Raises:
        InvalidModel: a name has several definitions that are not all constants.
    """
    listed = [info.name for info in graph.input]
    defaults = frozenset(listed)
    initializers = [tensor.name for tensor in graph.initializer]
    constants, others = list(initializers), list(listed)
    for node in graph.node:
        (constants if _is_constant(node) else others).extend(node.output)
    if not _are_utf8(others) or not _are_utf8(constants):
        raise InvalidModel(f"a name in graph {graph.name!r} is not UTF-8")
    names = Counter([name for name in initializers if name not in defaults])
    names.update(constants[len(initializers) :])
    names.update(others)
    optional = names.pop("", 0)
    own = len(names) + len({name for name in initializers if name in defaults})
    if own + optional != len(others) + len(constants) or not all(initializers):
        several = [name for name, count in Counter(constants).items() if name and count > 1]
        different = _different(graph, frozenset(several))
        last = Counter(constants)
        _keep_last(graph.initializer, last, lambda tensor: tensor.name)
        _keep_last(graph.node, last, lambda node: node.output[0] if _is_constant(node) else None)
        once = [name for name in dict.fromkeys(constants) if name not in defaults]
        made = [node.output[0] for node in graph.node if _is_constant(node) and node.output[0] in defaults]
        for name, count in Counter([*others, *once, *made]).items():
            if count > 1 and name:
                raise InvalidModel(f"{name!r} is defined {count} times in graph {graph.name!r}")
        equal = [name for name in several if name not in different]
        unequal = [name for name in several if name in different]
        kinds = [(equal, "with the same contents"), (unequal, "with different contents: the last is used")]
        return [
            f"the model defines {_listed(names)} more than once, {note}" for names, note in kinds if names
        ]
    return []


def _listed(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    text = ", ".join(map(repr, names[:_LISTED]))
    return text if len(names) <= _LISTED else f"{text} and {len(names) - _LISTED} other constants"


def _different(graph: onnx.GraphProto, names: Container[str]) -> frozenset[str]:
    """The names of constants that are defined with different contents."""
    held: dict[str, tuple[object, ...]] = {}
    found_different: list[str] = []
    found = [(tensor.name, tensor) for tensor in graph.initializer if tensor.name in names]
    nodes = [(node.output[0], node) for node in graph.node if _is_constant(node) and node.output[0] in names]
    for name, item in (*found, *nodes):
        contents = _contents(item)
        if held.setdefault(name, contents) != contents:
            found_different.append(name)
    return frozenset(found_different)


def _contents(item: onnx.TensorProto | onnx.NodeProto) -> tuple[object, ...]:
    """A key for the contents of a constant, independent of the field that stores them."""
    if isinstance(item, onnx.NodeProto):
        if len(item.attribute) != 1 or item.attribute[0].type != _Attribute.TENSOR:
            return tuple(attribute.SerializeToString() for attribute in item.attribute)
        item = item.attribute[0].t
    if item.data_location == onnx.TensorProto.EXTERNAL:
        return tuple((entry.key, entry.value) for entry in item.external_data)
    try:
        array = onnx.numpy_helper.to_array(item)
    except Exception:  # malformed: a later check reports it
        return (item.SerializeToString(),)
    return item.data_type, array.shape, array.tolist() if array.dtype.kind == "O" else array.tobytes()


def _is_constant(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and len(node.output) == 1


def _keep_last(items: Any, counts: Counter[str], name_of: Callable[[Any], str | None]) -> None:
    """Remove constants with the name of a later constant, and constants without a name."""
    kept = []
    for item in items:
        name = name_of(item)
        if name is not None:
            counts[name] -= 1
            if not name or counts[name] > 0:
                continue
        kept.append(item)
    if len(kept) != len(items):
        del items[:]
        items.extend(kept)


def _keep_last_imports(holder: onnx.ModelProto | onnx.FunctionProto, owner: str) -> list[str]:
    """Keep the last import of each domain; returns remarks about domains with several versions."""
    entries: dict[str, list[onnx.OperatorSetIdProto]] = {}
    for entry in holder.opset_import:
        entries.setdefault(entry.domain or "ai.onnx", []).append(entry)
    remarks = []
    for domain, found in entries.items():
        versions = dict.fromkeys(entry.version for entry in found)
        if len(versions) > 1:
            listed = ", ".join(map(str, versions))
            remarks.append(f"{owner} imports {domain} in versions {listed}: {found[-1].version} is used")
    if len(entries) != len(holder.opset_import):
        kept = [found[-1] for found in entries.values()]
        del holder.opset_import[:]
        holder.opset_import.extend(kept)
    return remarks


def _check_functions(functions: Sequence[onnx.FunctionProto]) -> None:
    """Check that the names of functions are unique, and the names of the values in each function."""
    keys = Counter((function.domain, function.name, function.overload) for function in functions)
    for (domain, name, overload), count in keys.items():
        if count > 1:
            suffix = f", overload {overload!r}" if overload else ""
            raise InvalidModel(f"{count} functions have the name {domain}::{name}{suffix}")
    for function in functions:
        names = Counter(function.input)
        names.update(output for node in function.node for output in node.output if output)
        for value, count in names.items():
            if count > 1:
                raise InvalidModel(f"{value!r} is defined {count} times in function {function.name!r}")


def _check_attributes(nodes: Iterable[onnx.NodeProto]) -> None:
    """Check that no node has duplicate attributes."""
    for node in nodes:
        if len(node.attribute) > 1:
            for name, count in Counter(attribute.name for attribute in node.attribute).items():
                if count > 1:
                    raise InvalidModel(f"{node.op_type} {node.name!r} has attribute {name!r} {count} times")


def _return_own_values(body: onnx.GraphProto) -> None:
    """Let ``body`` return copies of values of outer graphs."""
    own = _own_names(body)
    for info in body.output:
        if info.name not in own:
            _return_copy(body, info, own)


def _return_copies(body: onnx.GraphProto, holder: onnx.NodeProto, version: int) -> list[str]:
    """Let ``body`` return copies where onnxruntime requires them; returns the names of the copied values."""
    if holder.domain not in ("", "ai.onnx"):
        return []
    inputs, outputs = ([info.name for info in infos] for infos in (body.input, body.output))
    copied = []
    for index in outputs_to_copy(holder.op_type, inputs, outputs):
        info = body.output[index]
        since = _IDENTITY_SINCE.get(info.type.WhichOneof("value"), 1)
        if version >= since:
            copied.append(info.name)
            _return_copy(body, info, _own_names(body))
    return copied


def _own_names(body: onnx.GraphProto) -> set[str]:
    """The names of the values of ``body``."""
    own = {info.name for info in body.input}
    own.update(tensor.name for tensor in body.initializer)
    for node in body.node:
        own.update(node.output)
    return own


def _return_copy(body: onnx.GraphProto, info: onnx.ValueInfoProto, own: set[str]) -> None:
    """Let ``body``, whose values have the names ``own``, return a copy as the output ``info``."""
    name = f"{info.name}_returned"
    while name in own:
        name += "_"
    own.add(name)
    body.node.add(op_type="Identity", input=[info.name], output=[name])
    info.name = name


def declare_references(model: onnx_ir.Model) -> None:
    """Declare the attributes that nodes of functions refer to; record references outside functions."""
    for node in walk_nodes(model.graph):
        if node.attributes and any(attribute.is_ref() for attribute in node.attributes.values()):
            model.graph.meta[LOOSE_REFERENCES] = True
    for function in model.functions.values():
        for graph in with_bodies(function.graph):
            for node in graph:
                for attribute in node.attributes.values() if node.attributes else ():
                    name = attribute.ref_attr_name
                    if name and name not in function.attributes:
                        function.attributes.add(onnx_ir.Attr(name, onnx_ir.AttributeType.UNDEFINED, None))


def unshadow(model: onnx_ir.Model) -> None:
    """Rename values of bodies that shadow outer values.

    onnxruntime allows initializers of a body to shadow outer names. If a pass moved a value into such a body,
    its readers would read the wrong value. Bodies of vendor operators keep their names, which may have a
    meaning for the operator. Graphs must be sorted.
    """
    taken: set[str] = set()
    for root in (model.graph, *(function.graph for function in model.functions.values())):
        if not any(node.attributes and bodies(node) for node in root):
            continue
        visible: set[str] = set()
        own: list[list[str]] = []  # the names of each open graph
        for step, graph, node in in_order(root):
            values: Iterable[onnx_ir.Value] = ()
            if step == "enter":
                own.append([])
                values = [
                    *graph.inputs,
                    *(value for value in graph.initializers.values() if not value.is_graph_input()),
                ]
                for value in values if node is not None and node.domain == "" else ():
                    if value.name in visible:
                        taken, before = taken or _all_names(model), value.name or ""
                        _rename(value, taken)
                        rename(model, before, value.name or "", within=graph)
            elif step == "leave":
                visible.difference_update(own.pop())
            elif step == "define" and node is not None:
                values = node.outputs
            for value in values:
                if value.name and value.name not in visible:
                    visible.add(value.name)
                    own[-1].append(value.name)


def _rename(value: onnx_ir.Value, taken: set[str]) -> None:
    number, name = 1, f"{value.name}_1"
    while name in taken:
        number, name = number + 1, f"{value.name}_{number + 1}"
    taken.add(name)
    value.name = name


def _all_names(model: onnx_ir.Model) -> set[str]:
    names: set[str] = set()
    for graph in graphs_of(model):
        names.update(value.name for value in graph.inputs if value.name)
        names.update(graph.initializers)
        for node in graph:
            names.update(output.name for output in node.outputs if output.name)
    return names
