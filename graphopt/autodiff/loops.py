"""The gradient of one iteration of a Loop or Scan."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.autodiff.bodies import BodyGradient, as_output
from graphopt.autodiff.builder import GraphBuilder
from graphopt.autodiff.primal import PrimalNode
from graphopt.autodiff.reverse import active_carries
from graphopt.control_flow.loops import changing, entries_of, loop_form, symbols_outside
from graphopt.ops.traits import COMPUTE_BOUND


class IterationGradient:
    """The gradient of what a Loop or Scan does in one iteration, and what of the iteration is saved for it.

    Attributes:
        draft: what is written of it.
        states: by the number of a carried value, the gradient of what it is after the iteration.
        rows: by the number of an output that gathers, the gradient of what the iteration adds to it.
        captured: what the body reads from around it, as far as it has a gradient.
        sums: inputs in which the gradients of these add up.
        picks: what a Loop picks slices of by the number of the iteration, with the slices.
        origins: the slices, with what they are picked of.
        picked: what has a gradient of that, with the gradient of the slice.
        slices: by the number of what a Scan goes through, the gradient of what the iteration takes.
    """

    def __init__(self, op: GraphBuilder, node: PrimalNode, cotangents: Sequence[ir.Value | None]) -> None:
        form = loop_form(node.raw, op.cx, short=True)
        if form is None:
            raise node.refusal("its body takes or returns other values than it does")
        self.op, self.node, self.form, self.cotangents = op, node, form, cotangents
        self._outside = symbols_outside(form, op.cx)
        self.draft = draft = BodyGradient(op, node, form.body)
        carried = list(zip(form.formals, form.ends, strict=True))
        gathered = {k: row for k, row in enumerate(form.rows) if self.dy(form.carried + k) is not None}
        scanned = dict(enumerate(form.scanned))
        scanned = {k: x for k, x in scanned.items() if node.needs_grad(form.carried + k)}
        captured = [value for value in node.captured if node.needs_grad_of(value)]
        self.picks = self._picks()
        self.origins = {slice_: value for value, found in self.picks.items() for slice_ in found}
        picked = [slice_ for slice_, value in self.origins.items() if node.needs_grad_of(value)]
        captured = [value for value in captured if value not in self.picks]
        starts = [x for k, x in enumerate(form.formals) if node.needs_grad(form.head + k)]
        ends = [end for k, end in enumerate(form.ends) if self.dy(k) is not None]
        given = [*ends, *gathered.values()]
        active = active_carries(
            form.body, given, [*captured, *picked, *starts, *scanned.values()], carried, op.cx
        )
        self.states = {k: draft.like(form.ends[k]) for k in active}
        self.rows = {k: draft.like(row) for k, row in gathered.items()}
        pairs = [(form.ends[k], dy) for k, dy in self.states.items()]
        pairs += [(form.rows[k], dy) for k, dy in self.rows.items()]
        draft.walk(pairs, [*captured, *picked, *(form.formals[k] for k in active), *scanned.values()])
        self.captured = [value for value in captured if value in draft.gradients]
        self.sums = [self._sum(value) for value in self.captured]
        self.slices = {k: draft.gradients[x] for k, x in scanned.items() if x in draft.gradients}
        self.picked: dict[ir.Value, ir.Value] = {}
        for value, found in self.picks.items():
            for dx in (draft.gradients[slice_] for slice_ in found if slice_ in draft.gradients):
                self.picked[value] = draft.op.Add(self.picked[value], dx) if value in self.picked else dx

    def _picks(self) -> dict[ir.Value, list[ir.Value]]:
        """What a Loop picks by the number of the iteration of values of which it reads nothing else."""
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
            if nodes and all(map(self._picks_one, nodes))
        }

    def _picks_one(self, node: ir.Node) -> bool:
        if node.op_type != "Gather" or node.inputs[1] is not self.form.body.inputs[0]:
            return False
        axis = node.attributes.get("axis")
        return axis is None or (not axis.is_ref() and axis.as_int() == 0)

    def dy(self, k: int) -> ir.Value | None:
        """The gradient of an output of the forward node."""
        return self.cotangents[k] if k < len(self.cotangents) else None

    def _sum(self, value: ir.Value) -> ir.Value:
        name = self.op.cx.edit.fresh_name(f"{value.name}_grad_sum")
        return ir.Value(name=name, type=self.op.cx.facts.type(value) or value.type)

    @property
    def is_void(self) -> bool:
        """Whether no gradient gets anywhere."""
        return not (
            self.captured
            or self.picked
            or self.slices
            or any(self.node.needs_grad(self.form.head + k) for k in self.states)
        )

    def initial(self) -> list[ir.Value]:
        """What the gradients that are carried are before the last iteration."""
        states = [
            self.op.zeros_like(self.node.output(k)) if (dy := self.dy(k)) is None else dy for k in self.states
        ]
        return [*states, *map(self.op.zeros_like, self.captured)]

    def carried(self) -> list[ir.Value]:
        """What they are after an iteration."""
        found, inner = self.draft.gradients, self.draft.op
        states = [
            found[formal] if (formal := self.form.formals[k]) in found else inner.zeros_like(self._like(k))
            for k in self.states
        ]
        sums = [inner.added(sum_, found[x]) for sum_, x in zip(self.sums, self.captured, strict=True)]
        return [*states, *sums]

    def _like(self, k: int) -> ir.Value:
        """A value of the shape that carried value ``k`` has before the iteration."""
        formal = self.form.formals[k]
        return self.states[k] if self.is_steady(formal) else formal

    def is_steady(self, value: ir.Value) -> bool:
        """Whether ``value`` of the body is known to have the same shape in each iteration."""
        shape = self.op.cx.shape(value)
        return shape is not None and changing(shape, self._outside) is None

    def saves(self, inner: ir.Node) -> bool:
        """Whether what ``inner`` computes is saved: random numbers, most of the arithmetic, and slices."""
        if inner.outputs[0] in self.origins or not self.op.cx.is_deterministic(inner):
            return True
        return (
            inner.op_type in COMPUTE_BOUND and inner.domain == "" and all(map(self.is_steady, inner.outputs))
        )

    def gathered(self, value: ir.Value) -> ir.Value:
        """What ``value`` is in all iterations, as a further output of the forward node."""
        node, body, edit = self.node.raw, self.form.body, self.op.cx.edit
        if value.producer() is not None and not self.is_steady(value):
            raise self.node.refusal(
                "its body draws random numbers, whose shape may change between iterations"
            )
        if node.op_type == "Scan":
            self.node.rank(value)
        there = self._gathered_already(value)
        if there is not None:
            return there
        edit.add_output(body, as_output(self.op, value, body))
        for name in ("scan_output_axes", "scan_output_directions"):
            entries = node.attributes.get(name)
            if entries is not None:
                edit.set_attribute(node, name, [*entries.as_ints(), 0])
        return edit.give_output(node, len(body.outputs) - self.form.head // 2 - 1)

    def _gathered_already(self, value: ir.Value) -> ir.Value | None:
        form = self.form
        places = [
            entries_of(form, name, len(form.rows)) for name in ("scan_output_axes", "scan_output_directions")
        ]
        for row, output, *place in zip(form.rows, form.gathered, *places, strict=False):
            maker = row.producer()
            copied = maker is not None and maker.op_type == "Identity" and maker.inputs[0] is value
            if (row is value or copied) and output.name and place == [0, 0]:
                return output
        return None

    def found(self, outputs: Sequence[ir.Value]) -> dict[ir.Value, ir.Value]:
        """The gradients by value, which may be read in several places, for outputs of the backward node."""
        starts = [self.form.starts[k] for k in self.states]
        scanned = [self.node.inputs[self.form.carried + k] for k in self.slices]
        sums: dict[ir.Value, ir.Value] = {}
        for value, dx in zip([*starts, *self.captured, *self.picked, *scanned], outputs, strict=True):
            if value is not None and self.node.needs_grad_of(value):
                sums[value] = self.op.added(sums[value], dx) if value in sums else dx
        return sums
