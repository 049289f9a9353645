"""Which nodes of the original model a node comes from.

Origins travel in the nodes' metadata, in graphopt's private namespace, so that they survive
cloning, outlining and inlining; saving strips them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphopt.ir.carrier import NAMESPACE
from graphopt.ir.onnxir import onnx_ir

_ORIGIN = NAMESPACE + "origin"
_BY = NAMESPACE + "by"
_SEPARATOR = "\n"
#: A node made out of very many keeps this many origins.
_KEPT = 16


def origins(node: onnx_ir.Node) -> tuple[str, ...]:
    """Names of the original nodes that ``node`` stands for; its own name if it is original."""
    recorded = node.metadata_props.get(_ORIGIN)
    if recorded is not None:
        return tuple(recorded.split(_SEPARATOR))
    return (label(node),)


def made_by(node: onnx_ir.Node) -> str | None:
    """The rule or pass that made ``node``; ``None`` for an original one."""
    return node.metadata_props.get(_BY)


def derive(nodes: Iterable[onnx_ir.Node], sources: Sequence[onnx_ir.Node], by: str) -> None:
    """Record that ``nodes`` were made out of ``sources`` by the rule or pass ``by``."""
    names = dict.fromkeys(name for source in sources for name in origins(source))
    text = _SEPARATOR.join(list(names)[:_KEPT])
    for node in nodes:
        node.metadata_props[_ORIGIN] = text
        node.metadata_props[_BY] = by


def label(node: onnx_ir.Node) -> str:
    """What to call ``node`` in messages: its name, or its op and first output."""
    if node.name:
        return node.name
    output = next((value.name for value in node.outputs if value.name), "")
    return f"{node.op_type}({output})"
