"""Reverse mode: propagate cotangents from the outputs of a graph to the values it depends on.

Three linear passes over the nodes: backwards for the *useful* values, which outputs depend on; forwards for
the *varied* values, which depend on the differentiated inputs; and backwards through the *active* nodes,
which are useful and varied, to apply their gradient rules. New nodes are appended to the graph. ``None``
represents a zero cotangent. Primal nodes are neither recomputed nor changed, except that rules may add
outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import wraps

from graphopt import ir
from graphopt.autodiff import rule_registry
from graphopt.autodiff.cotangent_sums import CotangentSums
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import (
    Cotangents,
    Gradient,
    NoGradient,
    NonDifferentiable,
    StoppedGradient,
    UnknownType,
    gradient,
)
from graphopt.context import Context
from graphopt.opset import convert
from graphopt.parameters.selection import FLOATS
from graphopt.util.argument_checks import checked
from graphopt.util.lazy_dataclass import dataclass


@dataclass
class Backward:
    """The result of :func:`backward`.

    Attributes:
        gradients: the gradient of each value, without zero gradients.
        stopped: active nodes through which the gradient flows only in part, or not at all.
    """

    gradients: dict[ir.Value, ir.Value] = field(default_factory=dict)
    stopped: list[StoppedGradient] = field(default_factory=list)


def may_be_float(value: ir.Value, cx: Context) -> bool:
    """Whether ``value`` may have a gradient: a floating-point tensor, or one of unknown type."""
    dtype = cx.dtype(value)
    if dtype is not None:
        return dtype in FLOATS
    type_ = cx.facts.type(value)
    return type_ is None or type_.dtype in FLOATS or type_.dtype == ir.DataType.UNDEFINED


class ByRule:
    """Differentiates each node by the rule of its operator.

    Attributes:
        lowering: a pipeline that replaces operators of ``graphopt.ad`` in the result.
    """

    lowering: str = ""

    def begin(self, cx: Context, ends: Sequence[str], wrt: Sequence[str]) -> None:
        """Prepare the model for the gradients of the values ``ends`` with respect to the values ``wrt``."""

    def sources(self, node: ir.Node, outputs: Sequence[ir.Value], cx: Context) -> Sequence[ir.Value]:
        """The values to which cotangents may flow from some outputs of ``node``."""
        return ir.reads(node)

    def excluded(self, cx: Context) -> Mapping[ir.Value, NoGradient]:
        """Values whose gradients depend on an operator without a gradient, if that is not an error."""
        return {}

    def add(self, op: GraphBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
        """The sum of two gradients of a value."""
        return op.sum_gradients(a, b)

    def rule(self, node: ir.Node, cx: Context) -> Gradient | NonDifferentiable | None:
        """The declaration for ``node``, if any."""
        return rule_registry.find(node.domain, node.op_type, cx.version(node))

    def has_gradient(self, output: ir.Value, cx: Context) -> bool:
        """Whether ``output`` of a node may have a gradient."""
        return bool(output.name) and may_be_float(output, cx)

    def apply(
        self,
        op: GraphBuilder,
        node: PrimalNode,
        rule: Gradient | None,
        cotangents: Sequence[ir.Value | None],
    ) -> Sequence[tuple[ir.Value, ir.Value]]:
        """The nonzero and needed cotangents of the values that ``node`` reads."""
        return _apply_rule(op, node, rule, cotangents)


_BY_RULE = ByRule()


def backward(
    op: GraphBuilder,
    graph: ir.Graph,
    cotangents: Mapping[ir.Value, ir.Value],
    wrt: Iterable[ir.Value],
    by: ByRule = _BY_RULE,
) -> Backward:
    """The gradients of ``wrt``, given cotangents of values of ``graph``.

    Args:
        op: appends nodes to ``graph``, or to a graph that can read its values.
        graph: the main graph or a body; nodes added during the walk are not visited.
        cotangents: the cotangents of values of ``graph``, of the same shape and element type.
        wrt: inputs, initializers or intermediate values of ``graph``, or values that it captures.
        by: differentiates a node.

    Raises:
        NoGradient: an active node has no gradient.
        NeedsOpset: a gradient rule requires a newer opset.
    """
    found = _backward(op, list(graph), cotangents, wrt, by)
    found.stopped += op.stopped
    op.prefix = "grad"
    return found


def _backward(
    op: GraphBuilder,
    nodes: Sequence[ir.Node],
    cotangents: Mapping[ir.Value, ir.Value],
    wrt: Iterable[ir.Value],
    by: ByRule = _BY_RULE,
) -> Backward:
    cx = op.cx
    wrt = list(dict.fromkeys(wrt))
    found = Backward()
    varied, useful = dict.fromkeys(wrt), dict.fromkeys(cotangents)
    active = _active_nodes(nodes, useful, varied, found, cx, by)
    accumulated = CotangentSums(op, cotangents, by.add)
    for node, rule in reversed(active):
        own = [accumulated.total(output) for output in node.outputs]
        if all(dy is None for dy in own):
            continue
        primal = PrimalNode(node, cx, varied, useful)
        op.prefix = f"{primal.label}_grad"
        for value, dx in by.apply(op, primal, rule, own):
            accumulated.add(value, dx)
    for value in wrt:
        total = accumulated.total(value)
        if total is not None:
            found.gradients[value] = total
    return found


def dependences(graph: ir.Graph, ends: Iterable[ir.Value], by: ByRule, cx: Context) -> dict[ir.Value, None]:
    """The values ``ends`` of ``graph``, and the values to which their cotangents may flow."""
    found = dict.fromkeys(ends)
    for node in reversed(list(graph)):
        outputs = [output for output in node.outputs if output in found and by.has_gradient(output, cx)]
        if outputs and not isinstance(by.rule(node, cx), NonDifferentiable):
            found.update(dict.fromkeys(by.sources(node, outputs, cx)))
    return found


def _active_nodes(
    nodes: Sequence[ir.Node],
    useful: dict[ir.Value, None],
    varied: dict[ir.Value, None],
    found: Backward,
    cx: Context,
    by: ByRule = _BY_RULE,
) -> list[tuple[ir.Node, Gradient | None]]:
    """The nodes between ``varied`` and ``useful`` values, with their rules.

    Adds the inputs of useful nodes to ``useful`` and the outputs of active nodes to ``varied``.
    """
    useful_nodes = []
    for node in reversed(nodes):
        if any(output in useful for output in node.outputs):
            useful_nodes.append(node)
            useful.update(dict.fromkeys(ir.reads(node)))
    active: list[tuple[ir.Node, Gradient | None]] = []
    for node in reversed(useful_nodes):
        if not any(value in varied for value in ir.reads(node)):
            continue
        real = [output for output in node.outputs if by.has_gradient(output, cx)]
        rule = by.rule(node, cx)
        if isinstance(rule, NonDifferentiable):
            if not rule.quiet:
                found.stopped.append(StoppedGradient(node.op_type, ir.label(node), rule.reason))
        elif not real:
            reason = "its results are not floating-point numbers"
            found.stopped.append(StoppedGradient(node.op_type, ir.label(node), reason))
        else:
            active.append((node, rule))
            varied.update(dict.fromkeys(real))
    return active


def active_carries(
    graph: ir.Graph,
    outputs: Iterable[ir.Value],
    wrt: Iterable[ir.Value],
    carried: Sequence[tuple[ir.Value, ir.Value]],
    cx: Context,
) -> list[int]:
    """The indices of the carried values through which cotangents flow to the previous iteration.

    Args:
        graph: the body of a loop.
        outputs: outputs of the body with cotangents from outside the loop.
        wrt: values of the body whose gradients are needed outside the loop.
        carried: for each carried value, the input of the body and the output that is its next value.
    """
    nodes = list(graph)
    everything = [value for node in nodes for value in (*ir.reads(node), *node.outputs)]
    ends, starts = dict.fromkeys(outputs), dict.fromkeys(wrt)
    while True:
        # the walks are independent: a value that depends on the carried state need not influence that state
        # within the same iteration
        varied = dict(starts)
        _active_nodes(nodes, dict.fromkeys(everything), varied, Backward(), cx)
        active = _active_nodes(nodes, dict(ends), dict.fromkeys(everything), Backward(), cx)
        read = {**ends, **dict.fromkeys(value for node, _ in active for value in ir.reads(node))}
        size = len(ends) + len(starts)
        for start, end in carried:
            if end in varied and may_be_float(start, cx):
                starts[start] = None
            if start in read:
                ends[end] = None
        if len(ends) + len(starts) == size:
            return [k for k, (start, end) in enumerate(carried) if start in starts and end in ends]


def _apply_rule(
    op: GraphBuilder, node: PrimalNode, rule: Gradient | None, cotangents: Sequence[ir.Value | None]
) -> list[tuple[ir.Value, ir.Value]]:
    """The nonzero and needed cotangents of the values that ``node`` reads."""
    mark, before = op.mark(), len(op.stopped)
    try:
        if rule is None:
            returned: Cotangents = vjp_of_standard_function(op, node, cotangents)
        else:
            returned = rule.function(op, node, *cotangents)
    except UnknownType as error:
        raise node.unknown("element type", error.value, node.cx.dtype) from error
    except NoGradient as error:
        if any(made.name == error.node for made in op.nodes_since(mark)):
            raise node.refusal(f"{error.op} in it: {error.reason}", hint=error.hint) from error
        raise
    made_names = {made.name for made in op.nodes_since(mark)} if len(op.stopped) > before else set()
    for index, item in enumerate(op.stopped[before:], before):
        if item.node in made_names:  # a node of the decomposition of ``node``
            op.stopped[index] = replace(item, op=node.op_type, node=node.label)
    pairs: list[tuple[ir.Value | None, ir.Value | None]]
    if isinstance(returned, Mapping):
        pairs = list(returned.items())
    else:
        results = (returned,) if returned is None or isinstance(returned, ir.Value) else returned
        if len(results) > len(node.inputs) and any(dx is not None for dx in results[len(node.inputs) :]):
            raise ValueError(
                f"the gradient rule of {node.op_type} returns more results than {node.label} has inputs"
            )
        pairs = list(zip(node.inputs, results, strict=False))
    found = [(x, dx) for x, dx in pairs if x is not None and dx is not None and node.needs_grad_of(x)]
    if rule is not None and rule.broadcasts:
        found = [(x, op.reduce_to(dx, x, node.y)) for x, dx in found]
    op.drop_unread(mark, [dx for _, dx in found])
    return found


@checked
def vjp_of_decomposition(
    op: GraphBuilder,
    node: PrimalNode,
    cotangents: Sequence[ir.Value | None],
    decompose: Callable[[], ir.Value | Sequence[ir.Value | None]],
) -> dict[ir.Value, ir.Value]:
    """The cotangents of the values that ``node`` reads, through a decomposition into simpler operators.

    Gradient rules read the outputs of ``node`` instead of the decomposition's outputs, so that only
    intermediate values are recomputed.

    Args:
        cotangents: the cotangents of the outputs of ``node``.
        decompose: writes operators that read the node's inputs, and returns equivalents of its outputs.
    """
    mark = op.mark()
    returned = decompose()
    results = [returned] if isinstance(returned, ir.Value) else returned
    pairs = [(result, dy) for result, dy in zip(results, cotangents, strict=False) if result is not None]
    found = vjp_to_inputs(op, node, mark, pairs)
    for result, output in zip(results, node.outputs, strict=False):
        if result is not None and op.has_made(result) and output.name and result not in found.values():
            op.cx.edit.replace(result, output)
    return found


#: Writes simpler operators in place of a node; returns equivalents of its outputs, ``None`` for missing ones.
Decomposition = Callable[[GraphBuilder, PrimalNode], ir.Value | Sequence[ir.Value | None]]


def decomposition(*ops: str) -> Callable[[Decomposition], Gradient]:
    """Declare a function that decomposes ``ops``; their gradient is that of the decomposition."""

    def declare(decompose: Decomposition) -> Gradient:
        @wraps(decompose)
        def rule(op: GraphBuilder, node: PrimalNode, *cotangents: ir.Value | None) -> Cotangents:
            return vjp_of_decomposition(op, node, cotangents, lambda: decompose(op, node))

        return gradient(*ops)(rule)

    return declare


def vjp_to_inputs(
    op: GraphBuilder, node: PrimalNode, mark: int, cotangents: Iterable[tuple[ir.Value, ir.Value | None]]
) -> dict[ir.Value, ir.Value]:
    """The cotangents of the values that ``node`` reads, through the nodes created since ``mark``.

    Args:
        cotangents: values of those nodes, or inputs of ``node``, with their cotangents; ``None`` for zero.
    """
    summed = op.sum_by_value((value, dy) for value, dy in cotangents if dy is not None)
    wrt = [x for x in (*node.inputs, *node.captured) if x is not None and node.needs_grad_of(x)]
    return vjp_since(op, mark, summed, wrt)


def vjp_since(
    op: GraphBuilder, mark: int, cotangents: Mapping[ir.Value, ir.Value], wrt: Iterable[ir.Value]
) -> dict[ir.Value, ir.Value]:
    """The cotangents of ``wrt``, through the nodes created since ``mark``."""
    return _backward(op, op.nodes_since(mark), cotangents, wrt).gradients


def vjp_of_standard_function(
    op: GraphBuilder, node: PrimalNode, cotangents: Sequence[ir.Value | None]
) -> dict[ir.Value, ir.Value]:
    """The cotangents of the values that ``node`` reads, through its function body in the ONNX standard.

    Raises:
        NoGradient: the standard defines no function, or its operators have another meaning at the graph's
            opset.
    """
    standard = ir.standard_function(node.raw, node.version, [_kind(node, x) for x in node.inputs])
    if standard is None or not _has_same_semantics(op, standard.function):
        raise _no_rule(node)

    def decompose() -> list[ir.Value | None]:
        results: list[ir.Value | None] = [None] * (max(standard.outputs, default=0) + 1)
        inlined = op.inline_function(standard.function, node.inputs, node.raw.attributes)
        for index, result in zip(standard.outputs, inlined, strict=True):
            results[index] = result
        return results

    return vjp_of_decomposition(op, node, cotangents, decompose)


def _has_same_semantics(op: GraphBuilder, function: ir.Function) -> bool:
    """Whether the standard operators of ``function`` have the same semantics at the graph's opset."""
    there = ir.standard_version(function.opset_imports)
    return all(convert.keeps_semantics(node.op_type, there, op.version) for node in function.graph)


def _kind(node: PrimalNode, x: ir.Value | None) -> ir.TensorKind | None:
    dtype = None if x is None else node.cx.dtype(x) or x.dtype
    if x is None or dtype is None:
        return None
    shape = node.shape(x)
    return ir.TensorKind(
        dtype, None if shape is None else [dim if isinstance(dim, int) else None for dim in shape]
    )


def _no_rule(node: PrimalNode) -> NoGradient:
    """The refusal for an operator without a rule."""
    key = node.raw.op_identifier()
    if key in node.cx.model.functions:
        return node.refusal("the function can't be inlined")
    if node.raw.domain not in ("", "ai.onnx.ml"):
        return node.refusal(f"its domain {node.raw.domain} is not a standard one")
    return node.refusal("no gradient is declared for it")
