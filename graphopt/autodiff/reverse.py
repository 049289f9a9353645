"""Reverse mode: from gradients of what a graph computes to gradients of what it is computed from.

The graph is walked three times, without recursion: up from the outputs for what they need, down from
what gradients are asked of for what depends on it, and up again through the nodes that are both, which
writes nodes at the end of the graph. A gradient that is zero is the absence of one: no tensor and no
node stands for it. Nothing of the forward graph is computed again, and nothing in it changes, but that
a node may give a further output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from graphopt import ir
from graphopt.autodiff import registry as known
from graphopt.autodiff.builder import GraphBuilder
from graphopt.autodiff.primal import PrimalNode
from graphopt.autodiff.registry import Gradient, NoGradient, NonDifferentiable, StoppedGradient, UnknownType
from graphopt.context import Context
from graphopt.opset import convert
from graphopt.parameters.selection import FLOATS


@dataclass
class Walk:
    """What :func:`backward` found.

    Attributes:
        gradients: by value, its gradient; those that are zero are absent.
        stopped: nodes on the way that let no gradient through, or only a part of it.
    """

    gradients: dict[ir.Value, ir.Value] = field(default_factory=dict)
    stopped: list[StoppedGradient] = field(default_factory=list)


def is_real(value: ir.Value, cx: Context) -> bool:
    """Whether ``value`` may have a gradient: a tensor of floating-point numbers, or of unknown type."""
    dtype = cx.dtype(value)
    if dtype is not None:
        return dtype in FLOATS
    type_ = cx.facts.type(value)
    return type_ is None or type_.dtype in FLOATS or type_.dtype == ir.DataType.UNDEFINED


def backward(
    op: GraphBuilder, graph: ir.Graph, given: Mapping[ir.Value, ir.Value], wrt: Iterable[ir.Value]
) -> Walk:
    """The gradients of ``wrt``, for gradients ``given`` of some values of ``graph``.

    Args:
        op: writes the nodes, at the end of ``graph`` or in a graph that sees all of its values.
        graph: the main graph or a body. Its nodes as they are when this is called are walked.
        given: by value of ``graph``, its gradient, of the same shape and element type.
        wrt: inputs, initializers or inner values of ``graph``, or outer values that it reads.

    Raises:
        NoGradient: a gradient leads through an operator without one.
        NeedsOpset: it takes a newer opset.
    """
    walk = _walk(op, list(graph), given, wrt)
    walk.stopped += op.stopped
    op.prefix = "grad"
    return walk


def _walk(
    op: GraphBuilder, nodes: Sequence[ir.Node], given: Mapping[ir.Value, ir.Value], wrt: Iterable[ir.Value]
) -> Walk:
    cx = op.cx
    wrt = list(dict.fromkeys(wrt))
    walk = Walk()
    reached = dict.fromkeys(wrt)
    needed = dict.fromkeys(given)
    way = _between(nodes, needed, reached, walk, cx)
    sums = _Sums(op, given)
    for node, rule in reversed(way):
        cotangents = [sums.total(output) for output in node.outputs]
        if all(dy is None for dy in cotangents):
            continue
        forward = PrimalNode(node, cx, reached, needed)
        op.prefix = f"{forward.label}_grad"
        for value, dx in _gradients(op, forward, rule, cotangents):
            sums.add(value, dx)
    for value in wrt:
        total = sums.total(value)
        if total is not None:
            walk.gradients[value] = total
    return walk


def _between(
    nodes: Sequence[ir.Node],
    needed: dict[ir.Value, None],
    reached: dict[ir.Value, None],
    walk: Walk,
    cx: Context,
) -> list[tuple[ir.Node, Gradient | None]]:
    """The nodes from ``reached`` to ``needed``, with their gradients.

    ``reached`` grows by what they compute, ``needed`` by what they read.
    """
    needing = []
    for node in reversed(nodes):
        if any(output in needed for output in node.outputs):
            needing.append(node)
            needed.update(dict.fromkeys(ir.reads(node)))
    way: list[tuple[ir.Node, Gradient | None]] = []
    for node in reversed(needing):
        if not any(value in reached for value in ir.reads(node)):
            continue
        real = [output for output in node.outputs if output.name and is_real(output, cx)]
        rule = known.find(node.domain, node.op_type, cx.version(node))
        if isinstance(rule, NonDifferentiable) or not real:
            if not isinstance(rule, NonDifferentiable) or not rule.quiet:
                reason = (
                    rule.reason if isinstance(rule, NonDifferentiable) else "its results are no real numbers"
                )
                walk.stopped.append(StoppedGradient(node.op_type, ir.label(node), reason))
            continue
        way.append((node, rule))
        reached.update(dict.fromkeys(real))
    return way


def active_carries(
    graph: ir.Graph,
    given: Iterable[ir.Value],
    wrt: Iterable[ir.Value],
    carried: Sequence[tuple[ir.Value, ir.Value]],
    cx: Context,
) -> list[int]:
    """Through which carried values gradients flow back from one iteration of a body to the one before.

    Args:
        graph: the body.
        given: outputs of it that have gradients at first.
        wrt: values of which gradients are asked at first.
        carried: for each carried value, the input of the body, and the output that is its next value.
    """
    nodes = list(graph)
    everything = [value for node in nodes for value in (*ir.reads(node), *node.outputs)]
    ends, starts = dict.fromkeys(given), dict.fromkeys(wrt)
    while True:
        # what a gradient of the one leads to need not lie, within one iteration, on a way to the other
        reached = dict(starts)
        _between(nodes, dict.fromkeys(everything), reached, Walk(), cx)
        way = _between(nodes, dict(ends), dict.fromkeys(everything), Walk(), cx)
        read = {**ends, **dict.fromkeys(value for node, _ in way for value in ir.reads(node))}
        size = len(ends) + len(starts)
        for start, end in carried:
            if end in reached and is_real(start, cx):
                starts[start] = None
            if start in read:
                ends[end] = None
        if len(ends) + len(starts) == size:
            return [k for k, (start, end) in enumerate(carried) if start in starts and end in ends]


class _Sums:
    """What flows back into each value from all that read it."""

    def __init__(self, op: GraphBuilder, given: Mapping[ir.Value, ir.Value]) -> None:
        self._op = op
        self._terms = {value: [dy] for value, dy in given.items()}

    def add(self, value: ir.Value, dx: ir.Value) -> None:
        """Add ``dx`` to the gradient of ``value``."""
        self._terms.setdefault(value, []).append(dx)

    def total(self, value: ir.Value) -> ir.Value | None:
        """The gradient of ``value``, once all that read it are done; ``None`` for zero."""
        terms = self._terms.get(value)
        if terms is None:
            return None
        while len(terms) > 1:
            last = terms.pop()
            self._op.prefix = f"{value.name}_grad"
            terms[-1] = self._op.added(terms[-1], last)
        return terms[0]


def _gradients(
    op: GraphBuilder, node: PrimalNode, rule: Gradient | None, cotangents: Sequence[ir.Value | None]
) -> list[tuple[ir.Value, ir.Value]]:
    """The gradients of what ``node`` reads, as far as they are asked for and not zero."""
    mark, before = op.mark(), len(op.stopped)
    try:
        told: Any = (
            vjp_of_standard_function(op, node, cotangents)
            if rule is None
            else rule.function(op, node, *cotangents)
        )
    except UnknownType as error:
        raise node.unknown("element type", error.value, node.cx.dtype) from error
    except NoGradient as error:
        if any(made.name == error.node for made in op.made_since(mark)):
            raise node.refusal(f"{error.op} in it: {error.reason}", hint=error.hint) from error
        raise
    spelt = {made.name for made in op.made_since(mark)} if len(op.stopped) > before else set()
    for index, item in enumerate(op.stopped[before:], before):
        if item.node in spelt:  # of what the gradient goes through in place of ``node``
            op.stopped[index] = replace(item, op=node.op_type, node=node.label)
    pairs: list[tuple[ir.Value | None, ir.Value | None]]
    if isinstance(told, Mapping):
        pairs = list(told.items())
    else:
        results = told if isinstance(told, (tuple, list)) else (told,)
        if len(results) > len(node.inputs) and any(dx is not None for dx in results[len(node.inputs) :]):
            raise ValueError(f"the gradient of {node.op_type} tells of more inputs than {node.label} has")
        pairs = list(zip(node.inputs, results, strict=False))
    found = [(x, dx) for x, dx in pairs if x is not None and dx is not None and node.needs_grad_of(x)]
    if rule is not None and rule.broadcasts:
        found = [(x, op.reduce_to(dx, x, node.y)) for x, dx in found]
    op.drop_unread(mark, [dx for _, dx in found])
    return found


def vjp_of_decomposition(
    op: GraphBuilder,
    node: PrimalNode,
    cotangents: Sequence[ir.Value | None],
    write: Callable[[], ir.Value | Sequence[ir.Value | None]],
) -> dict[ir.Value, ir.Value]:
    """The gradient of ``node`` by that of simpler operators, which compute again what it computes.

    Only what the node keeps for itself is left of them: gradients read its outputs in place of theirs.

    Args:
        outer: the gradients of its outputs.
        write: writes operators that read the node's inputs, and returns what its outputs are; ``None`` for
            those that it does not tell.
    """
    mark = op.mark()
    told = write()
    results = [told] if isinstance(told, ir.Value) else told
    given = [(result, dy) for result, dy in zip(results, cotangents, strict=False) if result is not None]
    found = vjp_to_inputs(op, node, mark, given)
    for result, output in zip(results, node.outputs, strict=False):
        if result is not None and op.has_made(result) and output.name and result not in found.values():
            op.cx.edit.replace(result, output)
    return found


def vjp_to_inputs(
    op: GraphBuilder, node: PrimalNode, mark: int, given: Iterable[tuple[ir.Value, ir.Value | None]]
) -> dict[ir.Value, ir.Value]:
    """The gradients of what ``node`` reads, through the nodes made since ``mark``.

    Args:
        given: what those nodes compute, or inputs of ``node``, and gradients; ``None`` for zero.
    """
    summed: dict[ir.Value, ir.Value] = {}
    for value, dy in given:
        if dy is not None:
            summed[value] = op.added(summed[value], dy) if value in summed else dy
    wrt = [x for x in (*node.inputs, *node.captured) if x is not None and node.needs_grad_of(x)]
    return vjp_since(op, mark, summed, wrt)


def vjp_since(
    op: GraphBuilder, mark: int, given: Mapping[ir.Value, ir.Value], wrt: Iterable[ir.Value]
) -> dict[ir.Value, ir.Value]:
    """The gradients of ``wrt``, for gradients ``given`` of values that nodes made since ``mark`` compute."""
    return _walk(op, op.made_since(mark), given, wrt).gradients


def vjp_of_standard_function(
    op: GraphBuilder, node: PrimalNode, cotangents: Sequence[ir.Value | None]
) -> dict[ir.Value, ir.Value]:
    """The gradient of ``node`` through the operators of its standard definition.

    Raises:
        NoGradient: it has none, or not one that means the same here.
    """
    spelt = ir.standard_function(node.raw, node.version, [_kind(node, x) for x in node.inputs])
    if spelt is None or not _is_of_here(op, spelt.function):
        raise _unknown(node)

    def write() -> list[ir.Value | None]:
        results: list[ir.Value | None] = [None] * (max(spelt.outputs, default=0) + 1)
        for index, result in zip(
            spelt.outputs, op.call(spelt.function, node.inputs, node.raw.attributes), strict=True
        ):
            results[index] = result
        return results

    return vjp_of_decomposition(op, node, cotangents, write)


def _is_of_here(op: GraphBuilder, function: ir.Function) -> bool:
    """Whether the operators of ``function``, all of the standard, mean the same in the graph."""
    there = ir.standard_version(function.opset_imports)
    return all(convert.still_means_the_same(node.op_type, there, op.version) for node in function.graph)


def _kind(node: PrimalNode, x: ir.Value | None) -> ir.TensorKind | None:
    dtype = None if x is None else node.cx.dtype(x) or x.dtype
    if x is None or dtype is None:
        return None
    shape = node.shape(x)
    return ir.TensorKind(
        dtype, None if shape is None else [dim if isinstance(dim, int) else None for dim in shape]
    )


def _unknown(node: PrimalNode) -> NoGradient:
    """Why there is no gradient through ``node``, of which nothing is known."""
    key = node.raw.op_identifier()
    if key in node.cx.model.functions:
        return node.refusal("the function's call can't be replaced by its body")
    if node.raw.domain not in ("", "ai.onnx.ml"):
        return node.refusal(f"its domain {node.raw.domain} is not the standard's")
    return node.refusal("no gradient is declared for it")
