"""gather-loop-lists: replace sequences that a Loop appends to by scan outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from graphopt import ir
from graphopt.context import Context, Dim, Refusal
from graphopt.control_flow.loops import LoopForm, loop_form, rebuild, symbols_outside, varying_symbol
from graphopt.passes.base import Pass
from graphopt.rewrite.replacement_builder import Builder
from graphopt.util.lazy_dataclass import dataclass

_READERS = ("ConcatFromSequence", "SequenceAt", "SequenceLength")


@dataclass(frozen=True)
class GatherLoopLists(Pass):
    """Replace sequences that a Loop appends to by stacked outputs (scan outputs).

    The sequence must start empty, be read as tensors outside, and provably contain tensors of one shape.
    ConcatFromSequence becomes a Transpose, or a Transpose and a Reshape; SequenceAt becomes a Gather. If the
    Loop runs zero times, ConcatFromSequence is an error in onnxruntime, and the stacked output is an
    empty tensor.
    """

    name: ClassVar[str] = "gather-loop-lists"
    operators: ClassVar[frozenset[str]] = frozenset({"Loop"})

    def run(self, model: ir.Model, cx: Context) -> None:
        """Process inner loops first."""
        for graph in reversed(cx.graphs):
            for node in list(graph):
                form = loop_form(node, cx) if node.op_type == "Loop" else None
                while form is not None:
                    made = self._gather_one(form, cx)
                    form = None if made is None else loop_form(made, cx)

    def _gather_one(self, form: LoopForm, cx: Context) -> ir.Node | None:
        """Replace one sequence of the loop; returns the new loop, or ``None``."""
        for index, start in enumerate(form.starts):
            producer = None if start is None else start.producer()
            if producer is None or producer.op_type != "SequenceEmpty" or producer.domain != "":
                continue
            appended = _appended(form, index)
            reason = "it does not append exactly one tensor per iteration to the sequence"
            if appended is not None:
                reason = _obstacle(form, index, appended, cx) or ""
            if appended is None or reason:
                cx.refuse(Refusal(self.name, ir.label(form.node), reason, form.results[index].name))
                continue
            action = cx.begin_rewrite(self.name, form.node)
            if action is None:
                continue
            made = self._replace(form, index, appended, cx)
            cx.end_rewrite(action, form.node, made)
            return made[0]
        return None

    def _replace(self, form: LoopForm, index: int, appended: ir.Value, cx: Context) -> list[ir.Node]:
        """Stack ``appended`` instead of carrying sequence ``index``; returns the new loop and its readers."""
        element = cx.shape(appended)
        assert element is not None
        rows = range(len(form.rows))
        both = rebuild(
            form, range(form.carried), [], rows, cx, self.name, [_as_output(form, appended, element, cx)]
        )
        readers = list(ir.readers(both.outputs[index]))
        made = [node for reader in readers for node in self._read(reader, both.outputs[-1], element, cx)]
        form = replace(form, node=both)
        carried = [k for k in range(form.carried) if k != index]
        return [rebuild(form, carried, [], range(len(form.rows)), cx, self.name), *made]

    def _read(self, reader: ir.Node, rows: ir.Value, element: tuple[Dim, ...], cx: Context) -> list[ir.Node]:
        """Replace ``reader`` of the sequence by nodes that read the stacked ``rows``."""
        op = Builder(cx, reader)
        match reader.op_type:
            case "SequenceLength":
                result = op.Gather(op.Shape(rows), np.array(0), axis=0)
            case "SequenceAt":
                result = op.Gather(rows, reader.inputs[1], axis=0)
            case _:
                result = _joined(op, reader, rows, element)
        made = op.commit()
        cx.edit.note_origin(made, [reader], self.name)
        cx.edit.replace(reader.outputs[0], result)
        cx.edit.remove(reader)
        return made


def _appended(form: LoopForm, index: int) -> ir.Value | None:
    """The tensor appended to sequence ``index`` per iteration, if that is its only use."""
    formal, end = form.formals[index], form.ends[index]
    insert = end.producer()
    if (
        insert is None
        or insert.op_type != "SequenceInsert"
        or insert.domain != ""
        or insert.graph is not form.body
    ):
        return None
    list_, tensor, *position = insert.inputs
    last = not position or position[0] is None
    alone = ir.use_count(formal) == 1 and not formal.is_graph_output() and not ir.use_count(end)
    returned = sum(output is end for output in form.body.outputs) == 1
    return tensor if list_ is formal and last and alone and returned else None


def _obstacle(form: LoopForm, index: int, appended: ir.Value, cx: Context) -> str | None:
    """The reason why the tensors can't be stacked, or a reader of the sequence can't be replaced."""
    element, result = cx.shape(appended), form.results[index]
    if element is None or cx.dtype(appended) is None:
        return "the rank or dtype of the appended tensor is unknown"
    local = varying_symbol(element, symbols_outside(form, cx))
    if local is not None:
        return f"the size of the appended tensor may vary between iterations: {local}"
    if result.is_graph_output():
        return "the sequence itself is needed"
    for reader in ir.readers(result):
        if reader.op_type not in _READERS or reader.domain != "":
            return f"{reader.op_type} {ir.label(reader)!r} needs the sequence itself"
        if reader.op_type == "SequenceAt" and (reader.inputs[1] is None or cx.rank(reader.inputs[1]) != 0):
            return "the position of an element is not known to be a scalar"
        if reader.op_type == "ConcatFromSequence" and not _can_join(reader, element):
            return "the concatenated tensors have unknown sizes"
    return None


def _as_output(form: LoopForm, appended: ir.Value, element: tuple[Dim, ...], cx: Context) -> ir.Value:
    """``appended`` as an output of the body, through an Identity if the body can't return it directly."""
    dtype, producer = cx.dtype(appended), appended.producer()
    assert dtype is not None
    if producer is None or producer.graph is not form.body or appended.is_graph_output():
        node = cx.edit.make_node("Identity", [appended], name=f"{ir.label(form.node)}_row")
        cx.edit.append(form.body, node)
        cx.edit.note_origin([node], [form.node], GatherLoopLists.name)
        appended = node.outputs[0]
    cx.edit.declare(appended, dtype, [dim if isinstance(dim, int) else None for dim in element])
    return appended


def _axis(reader: ir.Node, rank: int) -> tuple[int, bool] | None:
    """The axis that a ConcatFromSequence of tensors of ``rank`` joins along, and whether it is a new one."""
    axis, new = reader.attributes.get("axis"), reader.attributes.get("new_axis")
    if axis is None or axis.is_ref() or (new is not None and new.is_ref()):
        return None
    is_new = new is not None and new.as_int() == 1
    size = rank + is_new
    return (axis.as_int() % size, is_new) if -size <= axis.as_int() < size else None


def _can_join(reader: ir.Node, element: tuple[Dim, ...]) -> bool:
    joined_axis = _axis(reader, len(element))
    if joined_axis is None or joined_axis[1]:
        return joined_axis is not None
    others = [dim for axis, dim in enumerate(element) if axis != joined_axis[0]]
    return element[joined_axis[0]] == 1 or all(
        isinstance(dim, int) and dim > 0 for dim in (element[joined_axis[0]], *others)
    )


def _joined(op: Builder, reader: ir.Node, rows: ir.Value, element: tuple[Dim, ...]) -> ir.Value:
    """The result of ``reader``, computed from the tensors stacked along a new first axis."""
    joined_axis = _axis(reader, len(element))
    assert joined_axis is not None
    axis, is_new = joined_axis
    if axis > 0:
        rest = range(axis + 1, len(element) + 1)
        rows = op.Transpose(rows, perm=[*range(1, axis + 1), 0, *rest])
    if is_new:
        return rows
    if element[axis] == 1:
        result = op.Squeeze(rows, op.ints(axis + 1))
    else:
        sizes = ir.all_ints([*element[:axis], *element[axis + 1 :]])
        assert sizes is not None
        result = op.Reshape(rows, op.ints(*sizes[:axis], -1, *sizes[axis:]))
    assert isinstance(result, ir.Value)
    return result
