"""Take in what onnxruntime takes, though ONNX or onnx-ir do not.

Before onnx-ir reads a proto: initializers without a name go (nothing can read them); of several
constants with one name the last one counts, as in onnxruntime, which turns Constant nodes into
initializers; a body that returns a value of an outer graph directly gets an Identity for it.
Afterwards: a function declares every attribute that its nodes refer to, and a value of a body
does not bear the name of an outer value that the body could read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import onnx

from graphopt.errors import InvalidModel
from graphopt.ir.constants import LOOSE_REFERENCES
from graphopt.ir.onnxir import onnx_ir
from graphopt.ir.scopes import bodies, graphs_of, in_order, walk_nodes, with_bodies

_Attribute = onnx.AttributeProto


def admit(proto: onnx.ModelProto) -> None:
    """Rewrite the parts of ``proto`` that onnx-ir refuses or misreads, in place."""
    for holder in (proto, *proto.functions):
        if not _are_utf8([entry.domain for entry in holder.opset_import]):
            raise InvalidModel("the domain of an opset import is not UTF-8")
    _name_once(proto.graph)
    _mend_text(proto.graph)
    pending = _bodies(proto.graph.node)
    for function in proto.functions:
        _mend_text(function)
        pending += _bodies(function.node)
    while pending:
        body = pending.pop()
        _name_once(body)
        _mend_text(body)
        _return_own_values(body)
        pending += _bodies(body.node)


def _bodies(nodes: Iterable[onnx.NodeProto]) -> list[onnx.GraphProto]:
    found: list[onnx.GraphProto] = []
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == _Attribute.GRAPH:
                found.append(attribute.g)
            elif attribute.type == _Attribute.GRAPHS:
                found += attribute.graphs
    return found


def _mend_text(holder: onnx.GraphProto | onnx.FunctionProto) -> None:
    """Replace bytes that are not UTF-8 in what only people read, which onnx-ir could not write again.

    Raises:
        InvalidModel: they are in what has a meaning.
    """
    texts = [holder.name, holder.doc_string]
    for node in holder.node:
        texts += (node.op_type, node.domain, node.name, node.doc_string)
    if _are_utf8(texts):
        return
    for item in (holder, *holder.node):
        item.name, item.doc_string = _mended(item.name), _mended(item.doc_string)
    for node in holder.node:
        if not _are_utf8([node.op_type, node.domain]):
            raise InvalidModel(f"the operator of node {node.name!r} is not UTF-8: {node.op_type!a}")


def _are_utf8(texts: list[str]) -> bool:
    try:
        "".join(texts)
    except TypeError:  # protobuf gives bytes for what is not
        return False
    return True


def _mended(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


def _name_once(graph: onnx.GraphProto) -> None:
    """Keep one definition of each name.

    Raises:
        InvalidModel: a name has several definitions that are not all constants.
    """
    listed = [info.name for info in graph.input]
    defaults = frozenset(listed)
    constants = [tensor.name for tensor in graph.initializer if tensor.name not in defaults]
    others = list(listed)
    for node in graph.node:
        (constants if _is_constant(node) else others).extend(node.output)
    if not _are_utf8(others) or not _are_utf8(constants):
        raise InvalidModel(f"a name in graph {graph.name!r} is not UTF-8")
    names = Counter(others)
    names.update(constants)
    optional = names.pop("", 0)
    if len(names) + optional != len(others) + len(constants) or any(not t.name for t in graph.initializer):
        last = Counter(constants)
        _keep_last(graph.initializer, last, lambda tensor: tensor.name)
        _keep_last(graph.node, last, lambda node: node.output[0] if _is_constant(node) else None)
        for name, count in Counter([*others, *dict.fromkeys(constants)]).items():
            if count > 1 and name:
                raise InvalidModel(f"{name!r} is defined {count} times in graph {graph.name!r}")


def _is_constant(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and len(node.output) == 1


def _keep_last(items: Any, counts: Counter[str], name_of: Callable[[Any], str | None]) -> None:
    """Drop constants whose name another constant has later, and those without a name."""
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


def _return_own_values(body: onnx.GraphProto) -> None:
    own = {info.name for info in body.input}
    own.update(tensor.name for tensor in body.initializer)
    for node in body.node:
        own.update(node.output)
    for info in body.output:
        if info.name not in own:
            name = f"{info.name}_returned"
            while name in own:
                name += "_"
            own.add(name)
            body.node.add(op_type="Identity", input=[info.name], output=[name])
            info.name = name


def declare_references(model: onnx_ir.Model) -> None:
    """Let functions declare the attributes that their nodes refer to; note references outside functions."""
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
    """Rename values of bodies that bear the name of a value that the body could read.

    onnxruntime lets the initializers of a body shadow outer names. Once passes move values
    between graphs, a shadowed name would be read by mistake. Bodies of vendor operators keep
    their names, which may mean something to the operator. Graphs must be sorted.
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
                        taken = taken or _all_names(model)
                        _rename(value, taken)
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
