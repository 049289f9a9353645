"""The gradient of one iteration of a Loop or Scan."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.autodiff.body_gradient import BodyGradient, as_output
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import active_carries
from graphopt.control_flow.loops import entries_of, loop_form, symbols_outside, varying_symbol
from graphopt.ops.traits import COMPUTE_BOUND


class IterationGradient:
    """The gradient of one iteration of a Loop or Scan, and the values that the iteration saves for it.

    Attributes:
        body_grad: the gradient of the body.
        states: the cotangent of each active carried value after the iteration, by index.
        rows: the cotangent of the row that the iteration adds to each gathered output, by index.
        captured: captured values with a gradient.
        sums: inputs of the new body that accumulate the gradients of ``captured``.
        picks: the slices of each captured tensor that a Loop reads only by Gather at the iteration number.
        origins: the source tensor of each slice.
        picked: for each tensor of ``picks`` with a gradient, the cotangent of its slice.
        slices: the cotangent of the slice of each tensor that a Scan iterates over, by index.
    """

    def __init__(self, op: GraphBuilder, node: PrimalNode, cotangents: Sequence[ir.Value | None]) -> None:
        form = loop_form(node.raw, op.cx, short=True)
        if form is None:
            raise node.refusal("its inputs and outputs do not match those of its body")
        self.op, self.node, self.form, self.cotangents = op, node, form, cotangents
        self._outside = symbols_outside(form, op.cx)
        self.body_grad = inner = BodyGradient(op, node, form.body)
        carried = list(zip(form.formals, form.ends, strict=True))
        gathered = {k: row for k, row in enumerate(form.rows) if self.cotangent(form.carried + k) is not None}
        scanned = dict(enumerate(form.scanned))
        scanned = {k: x for k, x in scanned.items() if node.needs_grad(form.carried + k)}
        captured = [value for value in node.captured if node.needs_grad_of(value)]
        self.picks = self._picks()
        self.origins = {slice_: value for value, found in self.picks.items() for slice_ in found}
        picked = [slice_ for slice_, value in self.origins.items() if node.needs_grad_of(value)]
        captured = [value for value in captured if value not in self.picks]
        starts = [x for k, x in enumerate(form.formals) if node.needs_grad(form.head + k)]
        ends = [end for k, end in enumerate(form.ends) if self.cotangent(k) is not None]
        outputs = [*ends, *gathered.values()]
        wrt = [*captured, *picked, *starts, *scanned.values()]
        active = active_carries(form.body, outputs, wrt, carried, op.cx)
        self.states = {k: inner.placeholder(form.ends[k]) for k in active}
        self.rows = {k: inner.placeholder(row) for k, row in gathered.items()}
        pairs = [(form.ends[k], dy) for k, dy in self.states.items()]
        pairs += [(form.rows[k], dy) for k, dy in self.rows.items()]
        inner.differentiate(
            pairs, [*captured, *picked, *(form.formals[k] for k in active), *scanned.values()]
        )
        self.captured = [value for value in captured if value in inner.gradients]
        self.sums = [self._sum(value) for value in self.captured]
        self.slices = {k: inner.gradients[x] for k, x in scanned.items() if x in inner.gradients}
        self.picked = inner.op.sum_by_value(
            (value, inner.gradients[slice_])
            for slice_, value in self.origins.items()
            if slice_ in inner.gradients
        )

    def _picks(self) -> dict[ir.Value, list[ir.Value]]:
        """The captured tensors that a Loop reads only by Gather at the iteration number, with the slices."""
        body = self.form.body
        if self.form.head == 0 or self.op.cx.rank(body.inputs[0]) != 0:
            return {}
        readers: dict[ir.Value, list[ir.Node]] = {value: [] for value in self.node.captured}
        for node in body:
            for value in dict.fromkeys(ir.reads(node)):
                if value in readers:
                    readers[value].append(node)
        for value in body.outputs:
            readers.pop(value, None)
        return {
            value: [node.outputs[0] for node in nodes]
            for value, nodes in readers.items()
            if nodes and all(map(self._is_pick, nodes))
        }

    def _is_pick(self, node: ir.Node) -> bool:
        """Whether ``node`` gathers along axis 0 at the iteration number."""
        if node.op_type != "Gather" or node.inputs[1] is not self.form.body.inputs[0]:
            return False
        axis = node.attributes.get("axis")
        return axis is None or (not axis.is_ref() and axis.as_int() == 0)

    def cotangent(self, k: int) -> ir.Value | None:
        """The cotangent of output ``k`` of the primal node; ``None`` for zero."""
        return self.cotangents[k] if k < len(self.cotangents) else None

    def _sum(self, value: ir.Value) -> ir.Value:
        return self.op.formal(f"{value.name}_grad_sum", self.op.cx.facts.type(value) or value.type)

    @property
    def is_zero(self) -> bool:
        """Whether all gradients are zero."""
        return not (
            self.captured
            or self.picked
            or self.slices
            or any(self.node.needs_grad(self.form.head + k) for k in self.states)
        )

    def initial(self) -> list[ir.Value]:
        """The carried gradients before the first backward iteration: of states, then sums."""
        states = [
            self.op.zeros_like(self.node.output(k)) if (dy := self.cotangent(k)) is None else dy
            for k in self.states
        ]
        return [*states, *map(self.op.zeros_like, self.captured)]

    def carried(self) -> list[ir.Value]:
        """The carried gradients after a backward iteration."""
        found, inner = self.body_grad.gradients, self.body_grad.op
        states = [
            found[formal]
            if (formal := self.form.formals[k]) in found
            else inner.zeros_like(self._with_shape_of_carried(k))
            for k in self.states
        ]
        sums = [inner.sum_gradients(sum_, found[x]) for sum_, x in zip(self.sums, self.captured, strict=True)]
        return [*states, *sums]

    def _with_shape_of_carried(self, k: int) -> ir.Value:
        """A value with the shape of carried value ``k`` before the iteration."""
        formal = self.form.formals[k]
        return self.states[k] if self.is_steady(formal) else formal

    def is_steady(self, value: ir.Value) -> bool:
        """Whether ``value`` of the body is known to have the same shape in all iterations."""
        shape = self.op.cx.shape(value)
        return shape is not None and varying_symbol(shape, self._outside) is None

    def is_saved(self, inner: ir.Node) -> bool:
        """Whether the outputs of ``inner`` are saved, as for random, slicing and compute-bound operators."""
        if inner.outputs[0] in self.origins or not self.op.cx.is_deterministic(inner):
            return True
        return (
            inner.op_type in COMPUTE_BOUND and inner.domain == "" and all(map(self.is_steady, inner.outputs))
        )

    def gather(self, value: ir.Value) -> ir.Value:
        """``value`` of all iterations, stacked along axis 0, as a further output of the primal node."""
        node, body, edit = self.node.raw, self.form.body, self.op.cx.edit
        if value.producer() is not None and not self.is_steady(value):
            raise self.node.refusal("its body draws random numbers whose shape may change between iterations")
        if node.op_type == "Scan":
            self.node.rank(value)
        existing = self._existing_gather(value)
        if existing is not None:
            return existing
        edit.add_output(body, as_output(self.op, value, body))
        for name in ("scan_output_axes", "scan_output_directions"):
            entries = node.attributes.get(name)
            if entries is not None:
                edit.set_attribute(node, name, [*entries.as_ints(), 0])
        return edit.add_node_output(node, len(body.outputs) - self.form.head // 2 - 1)

    def _existing_gather(self, value: ir.Value) -> ir.Value | None:
        form = self.form
        layout = [
            entries_of(form, name, len(form.rows)) for name in ("scan_output_axes", "scan_output_directions")
        ]
        for row, output, *entry in zip(form.rows, form.gathered, *layout, strict=False):
            producer = row.producer()
            copied = producer is not None and producer.op_type == "Identity" and producer.inputs[0] is value
            if (row is value or copied) and output.name and entry == [0, 0]:
                return output
        return None

    def gradients(self, outputs: Sequence[ir.Value]) -> dict[ir.Value, ir.Value]:
        """The gradients by value, given the outputs of the backward node; repeated values are summed."""
        starts = [self.form.starts[k] for k in self.states]
        scanned = [self.node.inputs[self.form.carried + k] for k in self.slices]
        pairs = zip([*starts, *self.captured, *self.picked, *scanned], outputs, strict=True)
        return self.op.sum_by_value(
            (value, dx) for value, dx in pairs if value is not None and self.node.needs_grad_of(value)
        )
