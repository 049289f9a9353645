"""Operators with bodies: If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt import ir
from graphopt.autodiff.body_gradient import BodyGradient, as_output, declare, sizes_outside
from graphopt.autodiff.graph_builder import GraphBuilder, Size
from graphopt.autodiff.iteration_gradient import IterationGradient
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient
from graphopt.control_flow.if_branches import branches_of
from graphopt.control_flow.loops import entries_of


@gradient("If")
def if_(op: GraphBuilder, node: PrimalNode, *cotangents: ir.Value | None) -> Cotangents:
    """An If of the same condition whose branches are the gradients of the branches."""
    branches = branches_of(node.raw)
    if branches is None:
        raise node.refusal("its branches have inputs, or outputs that do not match its own")
    wanted = [value for value in node.captured if node.needs_grad_of(value)]
    body_grads = [BodyGradient(op, node, branch) for branch in branches]
    outside: dict[ir.Value, ir.Value] = {}
    for body_grad in body_grads:
        pairs = []
        for end, dy in zip(body_grad.body.outputs, cotangents, strict=True):
            if dy is not None:
                pairs.append((end, body_grad.placeholder(end)))
                outside[pairs[-1][1]] = dy
        body_grad.differentiate(pairs, wanted)
    found = [value for value in wanted if any(value in body_grad.gradients for body_grad in body_grads)]
    if not found:
        for body_grad in body_grads:
            body_grad.discard()
        return {}
    bodies = []
    for body_grad, other in zip(body_grads, branches[::-1], strict=True):
        results = [
            body_grad.gradients[x] if x in body_grad.gradients else body_grad.op.zeros_like(x) for x in found
        ]

        def resolve(
            value: ir.Value, body_grad: BodyGradient = body_grad, other: ir.Graph = other
        ) -> ir.Value:
            return (
                outside[value] if value in outside else _as_if_output(op, node, value, body_grad.body, other)
            )

        bodies.append(
            body_grad.move_out([], results, resolve, lambda inner: not op.cx.is_deterministic(inner))
        )
    attributes = {"then_branch": bodies[0], "else_branch": bodies[1]}
    return dict(zip(found, op.multi_output_node("If", [node.x], attributes, outputs=len(found)), strict=True))


def _as_if_output(
    op: GraphBuilder, node: PrimalNode, value: ir.Value, branch: ir.Graph, other: ir.Graph
) -> ir.Value:
    """``value`` of ``branch`` as a further output of the If ``node``; the other branch returns zeros."""
    edit, inner = op.cx.edit, op.within(other)
    sizes = sizes_outside(inner, node, value) or [0] * (op.cx.rank(value) or 1)
    zeros = inner.ConstantOfShape(inner.shape(*sizes), value=np.zeros(1, op.dtype(value).numpy()))
    edit.add_output(other, zeros)
    edit.add_output(branch, as_output(op, value, branch))
    return edit.add_node_output(node.raw, len(branch.outputs) - 1)


@gradient("Loop")
def loop(op: GraphBuilder, node: PrimalNode, *cotangents: ir.Value | None) -> Cotangents:
    """A Loop over the gradient of the body, last iteration first; carried values are saved."""
    iteration = IterationGradient(op, node, cotangents)
    body_grad, form = iteration.body_grad, iteration.form
    if iteration.is_zero:
        body_grad.discard()
        return {}
    number, condition = form.body.inputs[:2]
    back = op.formal("back", ir.TensorType(ir.DataType.INT64), ir.Shape([]))
    running = op.formal("running", ir.TensorType(ir.DataType.BOOL), ir.Shape([]))
    ran = [output for output in form.gathered if output.name]
    trips = op.dim(ran[0] if ran else iteration.gather(number), 0)
    count = op.scalar(trips)
    last = op.Sub(count, 1)
    initial = iteration.initial()
    carried = iteration.carried()
    gathered = {
        x: dy for k, x in iteration.rows.items() if (dy := iteration.cotangent(form.carried + k)) is not None
    }
    known: dict[ir.Value, ir.Value] = {}

    def resolve(value: ir.Value) -> ir.Value:
        if value is number or value is condition:
            scalar = body_grad.op.Sub(last, back) if value is number else op.constant(np.array(True))
            return body_grad.op.Reshape(scalar, [1]) if op.cx.rank(value) == 1 else scalar
        if value in form.formals and not iteration.is_steady(value):
            if value not in known:
                states = _recomputed_states(iteration, body_grad.op.Sub(last, back))
                known.update(zip(form.formals, states, strict=True))
            return known[value]
        if value in iteration.origins:
            rows = op.Slice(iteration.origins[value], [0], op.shape(trips), [0])
        else:
            rows = gathered[value] if value in gathered else iteration.gather(value)
            rows = _restore_sizes(op, node, value, rows, trips)
        return body_grad.op.Gather(_reversed(op, rows), back, axis=0)

    inputs = [back, running, *iteration.states.values(), *iteration.sums]
    results = [running, *carried, *iteration.picked.values()]
    body = body_grad.move_out(inputs, results, resolve, iteration.is_saved)
    for output, x in zip(body.outputs[len(carried) + 1 :], iteration.picked, strict=True):
        declare(op, output, iteration.picks[x][0])
    made = op.multi_output_node("Loop", [count, None, *initial], {"body": body}, outputs=len(results) - 1)
    rows = zip(iteration.picked, made[len(initial) :], strict=True)
    return iteration.gradients(
        [*made[: len(initial)], *(_gradient_of_scanned(op, x, dx, trips) for x, dx in rows)]
    )


def _restore_sizes(
    op: GraphBuilder, node: PrimalNode, value: ir.Value, rows: ir.Value, trips: Size
) -> ir.Value:
    """``rows``, the stacked ``value`` of a body, with the sizes that a loop without iterations loses."""
    sizes = sizes_outside(op, node, value)
    if sizes is None or all(isinstance(size, int) for size in sizes):
        return rows
    return op.reshape(rows, op.shape(trips, *sizes))


def _reversed(op: GraphBuilder, rows: ir.Value) -> ir.Value:
    """``rows`` in reverse order along axis 0."""
    return op.Slice(rows, [-1], [-np.iinfo(np.int64).max], [0], [-1])


def _gradient_of_scanned(op: GraphBuilder, x: ir.Value, rows: ir.Value, trips: Size) -> ir.Value:
    """The gradient of ``x``, read slice by slice: the slices' gradients are ``rows``, the last one first."""
    shape = op.shape_of(x)
    rest = op.Slice(shape, [1], [np.iinfo(np.int64).max])
    rows = op.reshape(rows, op.Concat(op.shape(trips), rest, axis=0))  # see _restore_sizes
    dx = _reversed(op, rows)
    shape_x, shape_rows = op.cx.shape(x), op.cx.shape(rows)
    if shape_x and shape_rows and op.cx.facts.dim_equal(shape_x[0], shape_rows[0]):
        return dx
    left = op.Sub(op.Slice(shape, [0], [1]), op.shape(trips))
    zeros = op.ConstantOfShape(op.Concat(left, rest, axis=0), value=np.zeros(1, op.dtype(x).numpy()))
    return op.Concat(dx, zeros, axis=0)


def _recomputed_states(iteration: IterationGradient, trips: ir.Value) -> Sequence[ir.Value]:
    """The carried values after ``trips`` iterations, recomputed: a Loop can't gather changing shapes."""
    form, inner, edit = iteration.form, iteration.body_grad.op, iteration.op.cx.edit
    if not iteration.op.cx.is_deterministic(form.node):
        raise iteration.node.refusal(
            "a carried value may change its shape between iterations, and its body draws random numbers"
        )
    inputs = [
        ir.Value(
            name=edit.fresh_name(value.name or "input"),
            type=value.type,
            shape=None if value.shape is None else value.shape.copy(),
        )
        for value in form.body.inputs
    ]
    copier = iteration.op.body_cloner(form.body, inputs)
    nodes = copier.nodes(iteration.body_grad.primal)
    own = dict.fromkeys(output for node in nodes for output in node.outputs)
    outputs: dict[ir.Value, None] = {}
    for end in [form.body.outputs[0], *form.ends]:
        copy = copier.value(end)
        if copy not in own or copy in outputs:
            nodes.append(edit.make_node("Identity", [copy], name=f"{end.name}_again"))
            copy = nodes[-1].outputs[0]
        outputs[copy] = None
    body = ir.Graph(inputs, list(outputs), nodes=nodes, name=f"{form.body.name}_again")
    return inner.multi_output_node(
        "Loop", [trips, None, *form.starts], {"body": body}, outputs=len(form.formals)
    )


@gradient("Scan", since=9)
def scan(op: GraphBuilder, node: PrimalNode, *cotangents: ir.Value | None) -> Cotangents:
    """A Scan over the gradient of the body, last iteration first; carried values are saved."""
    iteration = IterationGradient(op, node, cotangents)
    body_grad, form = iteration.body_grad, iteration.form
    if iteration.is_zero:
        body_grad.discard()
        return {}
    initial = iteration.initial()
    carried = iteration.carried()
    sources = node.inputs[form.carried :]
    axes = entries_of(form, "scan_input_axes", len(sources))
    directions = entries_of(form, "scan_input_directions", len(sources))
    out_axes = entries_of(form, "scan_output_axes", len(form.rows))
    out_directions = entries_of(form, "scan_output_directions", len(form.rows))
    scanned = {value: k for k, value in enumerate(form.scanned)}
    inputs = [*iteration.states.values(), *iteration.sums]
    fed: list[tuple[ir.Value | None, int, int]] = []

    def feed(value: ir.Value, source: ir.Value | None, axis: int, direction: int) -> None:
        inputs.append(value)
        fed.append((source, axis, 1 - direction))

    known: dict[ir.Value, ir.Value] = {}

    def resolve(value: ir.Value) -> ir.Value:
        if value in known:
            return known[value]
        copy = known[value] = body_grad.placeholder(value, "saved")
        if value in scanned:
            feed(copy, sources[scanned[value]], axes[scanned[value]], directions[scanned[value]])
        else:
            feed(copy, iteration.gather(value), 0, 0)
        return copy

    for k, value in iteration.rows.items():
        feed(value, iteration.cotangent(form.carried + k), out_axes[k], out_directions[k])
    if not fed:  # a Scan needs an input that determines the number of iterations
        resolve(form.scanned[0])

    results = [*carried, *iteration.slices.values()]
    body = body_grad.move_out(inputs, results, resolve, iteration.is_saved)
    likes = [*(form.formals[k] for k in iteration.states), *iteration.captured]
    likes += [form.scanned[k] for k in iteration.slices]
    for output, like in zip(body.outputs, likes, strict=True):
        node.rank(like)
        declare(op, output, like)
    attributes = {
        "body": body,
        "num_scan_inputs": len(fed),
        "scan_input_axes": [axis for _, axis, _ in fed],
        "scan_input_directions": [direction for *_, direction in fed],
        "scan_output_axes": [axes[k] for k in iteration.slices] or None,
        "scan_output_directions": [1 - directions[k] for k in iteration.slices] or None,
    }
    operands = [*initial, *(source for source, *_ in fed)]
    return iteration.gradients(op.multi_output_node("Scan", operands, attributes, outputs=len(results)))
