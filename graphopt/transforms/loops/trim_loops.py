"""trim-loops: dead code elimination of loop state, inputs and outputs."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.control_flow.loops import LoopForm, declare_shape, loop_form, rebuild
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass

#: Before this opset version, a Loop needs a carried value.
_CARRIES_NOTHING = 11


@dataclass(frozen=True)
class TrimLoops(Pass):
    """Remove unused carried values, outputs and scanned inputs of Loops and Scans.

    A carried value that no iteration changes is read from outside instead. The pass removes carried values
    that only their own computation reads, with that computation; outputs without readers; and inputs of a
    Scan that its body does not read, except an input that determines the trip count.
    """

    name: ClassVar[str] = "trim-loops"
    operators: ClassVar[frozenset[str]] = frozenset({"Loop", "Scan"})

    def run(self, model: ir.Model, cx: Context) -> None:
        """Trim outer loops first: inner loops may become unused."""
        for graph in ir.graphs_of(model):
            for node in list(graph):
                form = loop_form(node, cx) if node.attributes else None
                if form is not None:
                    self._trim(form, cx)

    def _trim(self, form: LoopForm, cx: Context) -> None:
        fixed = [
            k
            for k in range(form.carried)
            if _is_fixed(form, k) and not _only_formal_declares_shape(form, k, cx)
        ]
        needed = _needed_values(form, fixed, cx)
        carried = [k for k in range(form.carried) if k not in fixed and form.formals[k] in needed]
        rows = [k for k, output in enumerate(form.gathered) if ir.is_read(output)]
        scanned = [k for k, value in enumerate(form.scanned) if value in needed]
        if form.scanned and not scanned:
            scanned = [0]
        if not carried and form.carried and _must_carry(form.node, cx):
            carried, fixed = [0], [k for k in fixed if k]
        sizes = form.carried, len(form.gathered), len(form.scanned)
        if (len(carried), len(rows), len(scanned)) == sizes or not (carried or rows):
            return
        action = cx.begin_rewrite(self.name, form.node)
        if action is None:
            return
        if form.node.op_type == "Loop" and any(form.formals[k].shape is not None for k in fixed):
            for row in form.rows:
                declare_shape(row, cx)
        for k in fixed:
            start = form.starts[k]
            assert start is not None
            cx.edit.replace(form.formals[k], start)
            cx.edit.replace(form.results[k], start)
        cx.end_rewrite(action, form.node, [rebuild(form, carried, scanned, rows, cx, self.name)])


def _must_carry(node: ir.Node, cx: Context) -> bool:
    return node.op_type == "Loop" and cx.version(node) < _CARRIES_NOTHING


def _is_fixed(form: LoopForm, index: int) -> bool:
    """Whether every iteration returns the carried value unchanged."""
    value: ir.Value | None = form.ends[index]
    while value is not None and value is not form.formals[index]:
        node = value.producer()
        plain = node is not None and node.op_type == "Identity" and node.domain == ""
        value = node.inputs[0] if plain and node is not None else None
    return value is not None


def _only_formal_declares_shape(form: LoopForm, index: int, cx: Context) -> bool:
    """Whether the shape of a stacked output depends on the declared body input if the Loop has no trips."""
    return bool(form.rows) and form.node.op_type == "Loop" and not cx.edit.trusts_shape(form.formals[index])


def _needed_values(form: LoopForm, fixed: list[int], cx: Context) -> dict[ir.Value, None]:
    """The values of the body on which its condition, its guards and the used outputs depend."""
    results = enumerate(form.results)
    ends = [form.ends[k] for k, output in results if k not in fixed and ir.is_read(output)]
    rows = [row for row, output in zip(form.rows, form.gathered, strict=True) if ir.is_read(output)]
    pending = [*form.body.outputs[: form.head // 2], *ends, *rows]
    pending += [value for node in form.body if cx.has_to_run(node) for value in ir.reads(node)]
    # a carried value whose result is read is kept, even if no iteration reads it
    needed: dict[ir.Value, None] = {
        form.formals[k]: None for k, output in enumerate(form.results) if ir.is_read(output)
    }
    carried = {formal: k for k, formal in enumerate(form.formals)}
    followed: dict[ir.Value, None] = {}
    while pending:
        value = pending.pop()
        if value in followed:
            continue
        followed[value] = needed[value] = None
        node = value.producer()
        if node is not None and node.graph is form.body:
            pending += ir.reads(node)
        elif value in carried and carried[value] not in fixed:
            pending.append(form.ends[carried[value]])
    return needed
