"""The results of constant folding that are kept as constants, by the bytes that they add to the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence

from graphopt import ir
from graphopt.context import Context
from graphopt.transforms.scalar._foldable import named_outputs, nbytes_of, remark_unfolded

#: Size above which a tensor of one repeated number is written as ConstantOfShape, in bytes.
_FILL_BYTES = 1024
#: Operators whose result is one repeated number.
_FILLS = frozenset({"ConstantOfShape", "Expand"})
#: The opset version that introduced ConstantOfShape.
_SINCE = 9
#: Maximum number of nodes visited to compute the bytes that a result frees.
_CONE_LIMIT = 512


def affordable_results(
    nodes_by_graph: Sequence[tuple[ir.Graph, list[ir.Node]]], cx: Context, limit: int | None, most: int
) -> list[list[ir.Value]]:
    """The results to keep, per graph; results of similar size may add at most ``most`` bytes together."""
    results = (output for _, nodes in nodes_by_graph for node in nodes for output in named_outputs(node))
    if limit is not None and sum(nbytes_of(result, cx) or 0 for result in results) <= limit:
        limit = None  # all results fit
    refused: set[int] = set()
    while True:
        growth: Counter[int] = Counter()
        wanted = [_worth_keeping(graph, nodes, cx, limit, growth, refused) for graph, nodes in nodes_by_graph]
        over = {size for size, total in growth.items() if total > most}
        if not over:
            return wanted
        refused |= over


def _worth_keeping(
    graph: ir.Graph,
    nodes: Sequence[ir.Node],
    cx: Context,
    limit: int | None,
    growth: Counter[int],
    refused: Container[int],
) -> list[ir.Value]:
    """The results of ``nodes`` to keep as constants.

    The search proceeds backwards from results that other nodes read. If a result is too large, or the graph
    does not support such a constant, its node remains, and the operands of the node become constants instead.

    Args:
        limit: maximum size of a result that frees no constants, in bytes; ``None`` for no limit.
        growth: for each bit length of a size, the bytes that results of such sizes add; updated here.
        refused: bit lengths of sizes; no result of such a size is kept.
    """
    inside = dict.fromkeys(nodes)
    kept_nodes: dict[ir.Node, None] = {}
    wanted: list[ir.Value] = []
    for node in reversed(nodes):
        read = [
            output
            for output in named_outputs(node)
            if output.is_graph_output()
            or any(user not in inside or user in kept_nodes for user in ir.readers(output))
        ]
        if not read:
            continue
        dtypes = [dtype for output in read if (dtype := cx.dtype(output)) is not None]
        if not all(cx.edit.supports_constant(graph, dtype) for dtype in dtypes):
            kept_nodes[node] = None
            remark_unfolded(node, "the function's opset has no Constant of its type", cx)
            continue
        if node.op_type in _FILLS and is_shortest_as_fill(node.outputs[0], cx):
            kept_nodes[node] = None
            remark_unfolded(node, "it is one repeated number in a few bytes", cx)
            continue
        if limit is None:
            wanted += read
            continue
        size = sum(0 if is_shortest_as_fill(o, cx) else nbytes_of(o, cx) or 0 for o in read)
        gain = _freed_by(node, inside, cx)
        grown = max(0, size - gain)
        if size > max(limit, gain) or grown.bit_length() in refused:
            kept_nodes[node] = None
            remark_unfolded(node, f"its result takes {size} bytes and frees {gain}", cx)
            continue
        growth[grown.bit_length()] += grown
        wanted += read
    return wanted


def is_shortest_as_fill(value: ir.Value, cx: Context) -> bool:
    """Whether ``value`` is one repeated number for which ConstantOfShape is the shortest form.

    Other forms are shorter if the result is tiny, or an existing constant of its size can be reused.
    """
    node, size = value.producer(), nbytes_of(value, cx)
    if node is None or len(node.outputs) > 1 or size is None or size <= _FILL_BYTES:
        return False
    if any(tensor.nbytes >= size for x in node.inputs if (tensor := ir.computable(x)) is not None):
        return False
    number = cx.fill(value)
    return number is not None and number.dtype.kind in "biuf" and cx.version(node) >= _SINCE


def _freed_by(node: ir.Node, inside: Mapping[ir.Node, None], cx: Context) -> int:
    """Bytes of the constants that become unused if the result of ``node`` is kept.

    The count contains the constants read only within the node's maximum fanout-free cone: the largest set of
    constant nodes whose results have no readers outside of the set.
    """
    freed = 0
    reads: Counter[ir.Value] = Counter()
    pending = [node]
    for _ in range(_CONE_LIMIT):
        if not pending:
            break
        for value in pending.pop().inputs:
            if value is None:
                continue
            reads[value] += 1
            if reads[value] < ir.use_count(value) or value.is_graph_output():
                continue
            tensor = ir.computable(value)
            producer = value.producer()
            if tensor is not None:
                freed += 0 if cx.is_tied(value) else tensor.nbytes
            elif producer is not None and producer in inside and _only_output_read(producer, value):
                pending.append(producer)
    return freed


def _only_output_read(node: ir.Node, value: ir.Value) -> bool:
    return all(output is value or not ir.use_count(output) for output in node.outputs)
