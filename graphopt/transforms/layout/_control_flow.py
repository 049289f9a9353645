"""The sites of Ifs, Loops and Scans: their bodies and their outside exchange tensors in one layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt import ir
from graphopt.context import Context
from graphopt.control_flow.if_branches import branches_of
from graphopt.control_flow.loops import LoopForm, entries_of, loop_form
from graphopt.transforms.layout._dataflow import Site, Use
from graphopt.transforms.layout._permutations import Perm, Placement, identity
from graphopt.util.lazy_dataclass import dataclass


@dataclass(eq=False)
class ExchangeSite(Site):
    """A tensor that a node with bodies passes in or out.

    Attributes:
        axis: the position of the axis of iterations: in the results for stacked outputs of a loop, in the
            operands for scanned inputs; ``None`` for other tensors.
        stacks: whether the results have the axis of iterations.
    """

    node: ir.Node
    reads: Sequence[Use]
    results: Sequence[ir.Value]
    own: Placement
    axis: int | None = None
    stacks: bool = False

    def placement(self, perm: Perm, *, given: str) -> Placement | None:
        if len(perm) != len(self.own.read if given == "read" else self.own.result):
            return None
        if self.axis is None:
            return Placement(perm, perm)
        is_whole = (given == "result") == self.stacks
        if is_whole and perm.index(self.axis) != self.axis:
            return None  # another axis would be the one of iterations
        other = _without(perm, self.axis) if is_whole else _with(perm, self.axis)
        return Placement(perm, other) if given == "read" else Placement(other, perm)


def _without(perm: Perm, axis: int) -> Perm:
    """The permutation of slices along ``axis``, which stays in place."""
    return tuple(source - (source > axis) for source in perm if source != axis)


def _with(perm: Perm, axis: int) -> Perm:
    """The permutation of tensors whose slices along ``axis`` are permuted by ``perm``."""
    moved = [source + (source >= axis) for source in perm]
    return (*moved[:axis], axis, *moved[axis:])


def exchange_sites(node: ir.Node, cx: Context) -> Iterator[ExchangeSite]:
    """The sites of a node with bodies whose tensors have a known rank."""
    branches = branches_of(node)
    if branches is not None:
        for index, output in enumerate(node.outputs):
            yield from _site(cx, node, [Use(branch, index) for branch in branches], [output])
        return
    form = loop_form(node, cx, short=True)
    if form is not None:
        yield from _loop_sites(form, cx)


def _loop_sites(form: LoopForm, cx: Context) -> Iterator[ExchangeSite]:
    node, body, first = form.node, form.body, form.head // 2
    for k, formal in enumerate(form.formals):
        outside = [node.outputs[k]] if k < len(node.outputs) else []
        yield from _site(cx, node, [Use(node, form.head + k), Use(body, first + k)], [formal, *outside])
    axes = entries_of(form, "scan_output_axes", len(form.rows))  # zeros for a Loop, without the attribute
    for k, axis in enumerate(axes):
        if form.carried + k < len(node.outputs):
            use = Use(body, first + form.carried + k)
            yield from _site(cx, node, [use], [node.outputs[form.carried + k]], axis, stacks=True)
    axes = entries_of(form, "scan_input_axes", len(form.scanned)) if form.scanned else []
    for k, axis in enumerate(axes):
        yield from _site(cx, node, [Use(node, form.head + form.carried + k)], [form.scanned[k]], axis)


def _site(
    cx: Context,
    node: ir.Node,
    reads: Sequence[Use],
    results: Sequence[ir.Value],
    axis: int | None = None,
    *,
    stacks: bool = False,
) -> Iterator[ExchangeSite]:
    ranks = [cx.rank(use.value) for use in reads], [cx.rank(value) for value in results if value.name]
    if None in (*ranks[0], *ranks[1]) or not ranks[1] or len({*ranks[0]}) > 1 or len({*ranks[1]}) > 1:
        return
    own = Placement(identity(ranks[0][0] or 0), identity(ranks[1][0] or 0))
    whole = len(own.result if stacks else own.read)
    if axis is not None:
        if not -whole <= axis < whole or abs(len(own.read) - len(own.result)) != 1:
            return
        axis %= whole
    elif own.read != own.result:
        return
    yield ExchangeSite(node, reads, [value for value in results if value.name], own, axis, stacks)
