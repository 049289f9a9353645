"""Predict where default sessions of onnxruntime change results around QuantizeLinear and DequantizeLinear.

Such sessions insert pairs of these operators around operators that move elements, and merge pairs.
onnxruntime 1.31 fails or changes results in four cases:

- After a DequantizeLinear of int8, from opset 21 on, the new pair declares int8 and then becomes uint8: the
  model does not load (QDQPropagationTransformer, then QDQS8ToU8Transformer).
- After a DequantizeLinear, a body reads the moved elements: the process aborts (QDQPropagationTransformer).
- Before a Transpose that only a QuantizeLinear reads, the pair is inserted after the operand of the
  Transpose, for all readers of the operand. A graph output, or a value that a body reads, is then also
  quantized (transpose optimizer).
- Two adjacent pairs with different parameters, without other readers between them, become one pair, which
  rounds once instead of twice (DoubleQDQPairsRemover).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.rewrite.graph_view import View
from graphopt.rewrite.proposed_rewrite import ProposedRewrite

#: The operators after which onnxruntime inserts pairs.
MOVERS = ("MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
#: The two operators of a pair.
QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear"})
#: Operators that onnxruntime removes before it merges pairs.
_DROPPED = ("Dropout", "Identity")
#: The opset version from which onnxruntime declares the result type of an inserted QuantizeLinear.
_DECLARED_SINCE = 21
_DOMAINS = ("", ir.MICROSOFT)
#: Maximum number of inspected readers of a value; if a value has more, other readers remain after a rewrite.
MAX_READERS = 16


def has_quantizers(cx: Context) -> bool:
    """Whether the model has quantizers; this module applies only to such models."""
    return not QUANTIZERS.isdisjoint(cx.edit.inventory.operators)


def _is(node: ir.Node | None, *op_types: str, domains: tuple[str, ...] = ("",)) -> bool:
    return node is not None and node.domain in domains and node.op_type in op_types


def is_miscompiled(cx: Context, node: ir.Node) -> bool:
    """Whether default sessions of onnxruntime fail, abort, or quantize further values at ``node``."""
    return node.op_type in MOVERS and (quantizes_other_readers(node) or fails_to_load(cx, node))


def fails_to_load(cx: Context, mover: ir.Node, view: View | None = None) -> bool:
    """Whether default sessions of onnxruntime fail or abort because of ``mover``.

    ``mover`` is an operator of :data:`MOVERS` after a DequantizeLinear, perhaps with other movers in between.
    """
    if not _is(mover, *MOVERS):
        return False
    if view is None:
        assert mover.graph is not None
        view = View(mover.graph)
    first = mover
    while (above := view.producer(view.input(first))) is not None and _is(above, *MOVERS):
        first = above
    if above is None or not _is(above, "DequantizeLinear", domains=_DOMAINS):
        return False
    scale, point = ((cx.constant(value), value) for value in (*above.inputs[1:3], None)[:2])
    if scale[0] is None or scale[0].size != 1 or (point[0] is None and point[1] is not None):
        return False
    declared = above.domain == "" and _version(cx, view.graph) >= _DECLARED_SINCE
    return _breaks(view, first, declared and point[0] is not None and point[0].dtype == np.int8)


def _version(cx: Context, graph: ir.Graph) -> int:
    return ir.standard_version(cx.edit.scopes.imports(graph))


def _breaks(view: View, first: ir.Node, declares_int8: bool) -> bool:
    """Whether a pair after ``first`` or its movers fails: the pair is int8, or a body reads its operand."""
    pending, visited = [first], {first}
    while pending:
        output = pending.pop().outputs[0]
        edges = [node for node in view.readers(output) if not _is(node, "QuantizeLinear", domains=_DOMAINS)]
        if any(node.graph not in (view.graph, None) for node in edges):
            return True
        if declares_int8 and len(edges) + view.is_output(output) == 1:
            return True
        more = [node for node in edges if _is(node, *MOVERS) and node not in visited]
        pending += more
        visited.update(more)
    return False


def quantizes_other_readers(mover: ir.Node, view: View | None = None) -> bool:
    """Whether default sessions of onnxruntime quantize the operand of a Transpose also for other readers."""
    if not _is(mover, "Transpose"):
        return False
    if view is None:
        assert mover.graph is not None
        view = View(mover.graph)
    source = view.input(mover)
    above = view.producer(source)
    if source is None or above is None or _is(above, "DequantizeLinear", domains=_DOMAINS):
        return False
    if not _is_quantized(view, mover):
        return False
    same, has_inside, has_outside = [source], False, False
    for node in _remaining_readers(view, mover, same):
        if node.graph not in (view.graph, None):
            has_outside = True
        elif has_inside:
            return False
        else:
            has_inside = True
    return has_inside and (has_outside or any(map(view.is_output, same)))


def _remaining_readers(view: View, mover: ir.Node, same: list[ir.Value]) -> Iterator[ir.Node]:
    """The readers of the only value in ``same``, after onnxruntime removed Transposes that cancel each other.

    Adds the results of the second Transposes to ``same``.
    """
    for node in view.readers(same[0]):
        is_left, undone = node is mover, []
        for user in view.readers(node.outputs[0]) if _is(node, "Transpose") else ():
            if _undoes(user, node):
                undone.append(user.outputs[0])
            else:
                is_left = True
        same += undone
        if is_left or not undone or view.is_output(node.outputs[0]):
            yield node
    for value in same[1:]:
        yield from view.readers(value)


def _undoes(node: ir.Node, mover: ir.Node) -> bool:
    """Whether ``node`` and ``mover`` are Transposes that cancel each other."""
    first, second = (one.attributes.get("perm") for one in (mover, node))
    if (
        not (_is(node, "Transpose") and _is(mover, "Transpose"))
        or first is None
        or second is None
        or first.is_ref()
        or second.is_ref()
    ):
        return False
    perm = first.as_ints()
    return [perm[axis] for axis in second.as_ints()] == sorted(perm)


def _is_quantized(view: View, mover: ir.Node) -> bool:
    """Whether a QuantizeLinear is the only reader of ``mover``, perhaps through movers.

    Readers that undo ``mover`` do not count.
    """
    first = mover
    while True:
        output = mover.outputs[0]
        others = (node for node in view.readers(output) if mover is not first or not _undoes(node, mover))
        readers = list(islice(others, 2))
        if view.is_output(output) or len(readers) != 1:
            return False
        mover = readers[0]
        if not _is(mover, *MOVERS) or mover.graph not in (view.graph, None):
            return _is(mover, "QuantizeLinear", domains=_DOMAINS)


def dequantized_before(quantize: ir.Node) -> ir.Node | None:
    """The DequantizeLinear whose result ``quantize`` reads, perhaps through nodes that onnxruntime removes.

    ``None`` for any other node.
    """
    if quantize.op_type != "QuantizeLinear" or quantize.domain not in _DOMAINS:
        return None
    assert quantize.graph is not None
    above = _producer(View(quantize.graph), quantize)
    return above if _is(above, "DequantizeLinear", domains=_DOMAINS) else None


def merges_pairs(cx: Context, dequantize: ir.Node, view: View | None = None) -> ir.Node | None:
    """The QuantizeLinear of the pair that onnxruntime merges with the pair of ``dequantize`` by default.

    ``None`` if they merge none, or both have the same parameters, so that merging changes nothing.
    onnxruntime merges no pairs in bodies, and removes Identity and Dropout before it merges pairs.
    """
    if not _is(dequantize, "DequantizeLinear", domains=_DOMAINS):
        return None
    if view is None:
        assert dequantize.graph is not None
        view = View(dequantize.graph)
    first = _producer(view, dequantize)
    if not _is(first, "QuantizeLinear", domains=_DOMAINS) or cx.edit.scopes.holder(view.graph) is not None:
        return None
    assert first is not None
    if _only_reader(view, first) is not dequantize:
        return None
    quantize = _only_reader(view, dequantize)
    if quantize is None or not _is(quantize, "QuantizeLinear", domains=_DOMAINS):
        return None
    readers = list(_readers(view, quantize))
    last = [node for node in readers if node is not None and _is(node, "DequantizeLinear", domains=_DOMAINS)]
    if not last or len(last) < len(readers):
        return None
    pairs = [_parameters(cx, view, node) for node in (first, dequantize, quantize, *last)]
    if None in pairs or pairs[0] != pairs[1] or any(other != pairs[2] for other in pairs[3:]):
        return None
    return quantize if pairs[0] != pairs[2] else None


def _producer(view: View, node: ir.Node) -> ir.Node | None:
    """The producer of ``node``'s operand, ignoring nodes that onnxruntime removes."""
    above = view.producer(view.input(node))
    while above is not None and _is(above, *_DROPPED):
        above = view.producer(view.input(above))
    return above


def _only_reader(view: View, node: ir.Node) -> ir.Node | None:
    """The only reader of ``node``, ignoring nodes that onnxruntime removes."""
    readers = list(islice(_readers(view, node), 2))
    return readers[0] if len(readers) == 1 else None


def _readers(view: View, node: ir.Node) -> Iterator[ir.Node | None]:
    """The readers of ``node``, ignoring nodes that onnxruntime removes.

    Yields ``None`` for a graph output, and for each reader in a body.
    """
    pending = [node]
    while pending:
        output = pending.pop().outputs[0]
        if view.is_output(output):
            yield None
        for reader in view.readers(output):
            if reader.graph not in (view.graph, None):
                yield None
            elif _is(reader, *_DROPPED):
                pending.append(reader)
            else:
                yield reader


def _parameters(cx: Context, view: View, node: ir.Node) -> tuple[float, int] | None:
    """The scale and zero point of ``node``, if onnxruntime merges pairs with these."""
    scale, point = (cx.constant(view.input(node, index)) for index in (1, 2))
    if scale is None or point is None or scale.size != 1 or point.size != 1:
        return None
    if scale.dtype != np.float32 or point.dtype not in (np.int8, np.uint8):
        return None
    return scale.item(), point.item()


def _near(view: View, values: Iterable[ir.Value | None]) -> list[ir.Node]:
    """The producers and readers of ``values``, except constants and values with many readers."""
    found: dict[ir.Node, None] = {}
    for value in values:
        if value is None or ir.constant_of(value) is not None:
            continue
        producer = view.producer(value)
        if producer is not None:
            found[producer] = None
        if ir.use_count(value) <= MAX_READERS:
            found |= dict.fromkeys(view.readers(value))
    return [node for node in found if node not in view.removed]


def would_miscompile(cx: Context, rewrite: ProposedRewrite) -> bool:
    """Whether onnxruntime would miscompile quantized values after ``rewrite``, but not before it.

    A workaround moves operators before a DequantizeLinear, so that a model that fails to load is loaded.
    """
    root, matched, made = rewrite.root, rewrite.matched, tuple(rewrite.made)
    replacements, workaround = rewrite.replacements(), rewrite.is_followed_by_workaround
    removed = _nodes_to_remove(rewrite, replacements)
    concerned = dict.fromkeys((root, *matched, *made, *removed))
    touched = dict.fromkeys(value for node in concerned for value in (*node.inputs, *node.outputs))
    touched |= dict.fromkeys(replacements.values())
    producers = (value.producer() for value in replacements.values())
    graphs = dict.fromkeys([root.graph, *(node.graph for node in producers if node is not None)])
    for graph in graphs:
        if graph is None:
            continue
        now, then = View(graph), View(graph, replacements, made, removed)
        after = _faults(cx, then, touched, workaround=workaround)
        if after and not after.keys() <= _faults(cx, now, touched, workaround=workaround).keys():
            return True
        merges = _merges(cx, then, touched)
        if merges and len(merges) > len(_merges(cx, now, touched)):
            return True
    return False


def _merges(cx: Context, view: View, values: Iterable[ir.Value | None]) -> dict[ir.Node, None]:
    """The DequantizeLinears around ``values`` whose pair onnxruntime merges with another pair."""
    near: dict[ir.Node, None] = {}
    for node in _near(view, values):
        known = node if not _is(node, *_DROPPED) else _producer(view, node)
        above = _producer(view, known) if _is(known, "QuantizeLinear", domains=_DOMAINS) and known else None
        near |= dict.fromkeys(one for one in (known, above) if one is not None)
    return dict.fromkeys(node for node in near if merges_pairs(cx, node, view) is not None)


def _faults(
    cx: Context, view: View, values: Iterable[ir.Value | None], *, workaround: bool
) -> dict[ir.Node, None]:
    """The movers around ``values`` that onnxruntime miscompiles."""
    near: dict[ir.Node, None] = {}
    for node in _near(view, values):
        is_quantizer = _is(node, "QuantizeLinear", domains=_DOMAINS)
        above = view.producer(view.input(node)) if is_quantizer else node
        while above is not None and above not in near and _is(above, *MOVERS):
            near[above] = None
            above = view.producer(view.input(above))
    return dict.fromkeys(
        node
        for node in near
        if quantizes_other_readers(node, view)
        or (not (workaround and len(node.outputs) == 1) and fails_to_load(cx, node, view))
    )


def _nodes_to_remove(
    rewrite: ProposedRewrite, replacements: Mapping[ir.Value, ir.Value]
) -> dict[ir.Node, None]:
    """The nodes that a rewrite makes unused: the root, some of the matched ones, and their producers."""
    kept = {value for node in rewrite.made for value in node.inputs} | set(replacements.values())
    removed: dict[ir.Node, None] = {}
    pending = [*rewrite.matched, rewrite.root]
    while pending:
        node = pending.pop()
        if node.graph is None or node in removed:
            continue
        unread = (
            output in replacements
            or (
                output not in kept
                and not output.is_graph_output()
                and ir.use_count(output) <= MAX_READERS
                and all(reader in removed for reader in ir.readers(output))
            )
            for output in node.outputs
        )
        if all(unread):
            removed[node] = None
            producers = (value.producer() for value in node.inputs if value is not None)
            pending += [producer for producer in producers if producer is not None]
    return removed
