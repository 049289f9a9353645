"""A group, as a graph of its own, becomes a kernel: which loops there are, and the instructions in them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.cluster import plan
from graphopt.fusion.loop_nest import CantFuse, Map, Nest
from graphopt.fusion.loops.builder import Body, Term, needed
from graphopt.fusion.loops.ir import (
    ZERO,
    Access,
    Axis,
    Kernel,
    Piece,
    Port,
    Size,
    Store,
)
from graphopt.fusion.operator_table import At, element_of, find, unfit
from graphopt.fusion.symbol_table import Sizes

#: Elements that lie further apart, along the innermost loop, are not worth a kernel.
_WIDEST_STRIDE = 16
#: Instructions of one piece.
_MOST_STEPS = 600


def lower(graph: ir.Graph, cx: Context, name: str) -> Kernel:
    """The kernel that computes the outputs of ``graph`` from its inputs.

    Args:
        graph: its inputs are of known types and ranks.
        cx: knows the shapes of its values.
        name: of the kernel.

    Raises:
        CantFuse: the nodes are not one nest of loops, or one that kernels are no good at.
    """
    nodes = [node for node in graph if ir.constant_of(node.outputs[0]) is None]
    for node in nodes:  # somebody may have written the graph by hand
        reason = unfit(node, cx)
        if reason is not None:
            raise CantFuse(reason)
    planned = plan(nodes, cx)
    if len(planned) != 1 or planned[0].nest is None:
        raise CantFuse(
            next((item.why for item in planned if item.why), "the nodes are several nests of loops")
        )
    return _Lowering(graph, cx, planned[0].nest, name).run()


class _Lowering:
    def __init__(self, graph: ir.Graph, cx: Context, nest: Nest, name: str) -> None:
        self._graph = graph
        self._cx = cx
        self._nest = nest
        self._name = name
        self._inputs = {value: index for index, value in enumerate(graph.inputs)}
        self._sizes = Sizes([nest.dims(value) for value in graph.inputs])
        self._order: list[int] = []

    def run(self) -> Kernel:
        nest = self._nest
        ports = [self._port(value) for value in self._graph.inputs]
        results = [self._port(value) for value in self._graph.outputs]
        last: CantFuse | None = None
        for order in self._orders():
            self._order = order
            row = None if not nest.row else self._sizes.product(nest.sizes[loop] for loop in nest.row)
            axes = [
                Axis(self._sizes.of(nest.sizes[loop]), bool(nest.row and loop in nest.row)) for loop in order
            ]
            cut = None if nest.cut is None else order.index(nest.cut)
            pieces = tuple(self._piece(row, *part) for part in self._parts())
            try:
                self._check(pieces)
            except CantFuse as reason:
                last = last or reason
                continue
            kernel = Kernel(
                self._name, tuple(ports), tuple(results), tuple(self._sizes.symbols), tuple(axes), pieces, cut
            )
            return _in_place(kernel)
        assert last is not None
        raise last

    def _orders(self) -> list[list[int]]:
        """The loops, outermost first: the row last, or before the last of the others."""
        outer, row = self._nest.outer, self._nest.row or []
        if not row:
            return [self._nearest_last(outer)]
        return [[*outer, *row], [*outer[:-1], *row, outer[-1]]] if outer else [list(row)]

    def _nearest_last(self, loops: list[int]) -> list[int]:
        """``loops`` so that what lies between the elements of the last loop is read soon after them.

        Pixels with their channels together are an example: while those of one channel are read, the others
        are in the cache.
        """
        if not loops:
            return loops
        last = loops[-1]
        between: list[int] = []
        for value in self._graph.inputs:
            for at in self._nest.maps(value):
                digits = [loop for index in at for loop in index.loops]
                if last in digits:
                    between += digits[digits.index(last) + 1 :]
        inner = [loop for loop in loops if loop in between]
        return [*(loop for loop in loops[:-1] if loop not in inner), *inner, last]

    def _port(self, value: ir.Value) -> Port:
        element = element_of(self._cx.dtype(value))
        if element is None:
            raise CantFuse(f"kernels do not know the type of {value.name!r}")
        return Port(element, tuple(map(self._sizes.of, self._nest.dims(value))))

    def _parts(self) -> list[tuple[int, Size | None]]:
        """Where pieces begin and end."""
        points: list[int] = [0, *self._nest.cuts]
        ends: list[Size | None] = [*map(Size, self._nest.cuts), None]
        return list(zip(points, ends, strict=True))

    def _piece(self, row: Size | None, start: int, stop: Size | None) -> Piece:
        body = Body(row)
        terms = self._terms(body, start)
        places = [(value, self._nest.resolved(self._nest.stores[value])) for value in self._graph.outputs]
        steps, moved = needed(body.steps, [terms[place].index for place in places])
        if len(steps) > _MOST_STEPS:
            raise CantFuse("it takes too many instructions")
        stores = [
            Store(self._access(number, *place), moved[terms[place].index])
            for number, place in enumerate(places)
        ]
        return Piece(tuple(steps), tuple(stores), Size(start), stop)

    def _terms(self, body: Body, start: int) -> dict[tuple[ir.Value, Map], Term]:
        """The terms of all values where they are wanted, in the piece that begins at ``start``."""
        nest = self._nest
        found: dict[tuple[ir.Value, Map], Term] = {}
        pending = [(value, nest.resolved(nest.stores[value])) for value in reversed(self._graph.outputs)]
        while pending:
            value, at = pending[-1]
            if (value, at) in found:
                pending.pop()
                continue
            made = self._leaf(body, value, at)
            if made is None:
                made, missing = self._computed(body, value, at, start, found)
                if made is None:
                    pending += missing[::-1]
                    continue
            found[value, at] = made
            pending.pop()
        return found

    def _leaf(self, body: Body, value: ir.Value, at: Map) -> Term | None:
        """The term of what is not computed here."""
        element = element_of(self._cx.dtype(value))
        if element is None:
            raise CantFuse(f"kernels do not know the type of {value.name!r}")
        if value in self._inputs:
            return body.load(self._access(self._inputs[value], value, at), element)
        tensor = ir.constant_of(value)
        if tensor is None:
            return None
        if tensor.size != 1:
            raise CantFuse(f"{value.name!r} is a constant of several elements inside")
        number = tensor.numpy().reshape(-1)[0]
        return body.constant(float(number) if element.is_float else int(number), element)

    def _computed(
        self, body: Body, value: ir.Value, at: Map, start: int, found: dict[tuple[ir.Value, Map], Term]
    ) -> tuple[Term | None, list[tuple[ir.Value, Map]]]:
        """The term of a result, or the values that it needs first."""
        node = value.producer()
        assert node is not None
        operator = find(node)
        assert operator is not None
        site = At(node, self._cx, self._nest, list(node.outputs).index(value), at)
        read = [item and (item[0], self._nest.resolved(item[1])) for item in operator.reads(site)]
        wanted = [item if item is not None and self._is_there(*item, start) else None for item in read]
        missing = [item for item in wanted if item is not None and item not in found]
        if missing:
            return None, missing
        result = operator.compute(body, site, *(None if item is None else found[item] for item in wanted))
        return (result[site.output] if isinstance(result, (list, tuple)) else result), []

    def _is_there(self, value: ir.Value, at: Map, start: int) -> bool:
        """Whether ``value`` has elements in the piece from ``start`` on; parts of a Concat have in one."""
        return all(
            not isinstance(dim, int) or 0 <= index.offset + index.step * start < dim
            for index, dim in zip(at, self._nest.dims(value), strict=True)
            if index.loops and index.loops == (self._nest.cut,)
        )

    def _access(self, port: int, value: ir.Value, at: Map) -> Access:
        """Where in memory an element lies."""
        dims = self._nest.dims(value)
        strides = {loop: ZERO for loop in self._order}
        offset = ZERO
        for axis, index in enumerate(at):
            scale = self._sizes.product(dims[axis + 1 :])
            if index.offset:
                part = scale * Size(index.offset)
                if offset.factor and offset.symbols != part.symbols:
                    raise CantFuse("slices along several axes whose sizes are known only when the model runs")
                offset = Size(offset.factor + part.factor, part.symbols)
            for place, loop in enumerate(index.loops):
                inner = [self._nest.sizes[other] for other in index.loops[place + 1 :]]
                stride = scale * self._sizes.product(inner) * Size(index.step)
                if strides[loop] != ZERO:
                    raise CantFuse("a diagonal is read")
                strides[loop] = stride
        return Access(port, tuple(strides[loop] for loop in self._order), offset)

    def _check(self, pieces: Sequence[Piece]) -> None:
        """Raise CantFuse where the innermost loop would jump about in memory."""
        if not self._order:
            return
        loads = [step.access for piece in pieces for step in piece.body if step.access is not None]
        stores = [store.access for piece in pieces for store in piece.stores]
        for access in itertools.chain(loads, stores):
            stride = access.strides[-1].constant
            if stride is None or abs(stride) > _WIDEST_STRIDE:
                raise CantFuse("its innermost loop would jump about in memory")


def _in_place(kernel: Kernel) -> Kernel:
    """The kernel with the inputs whose memory outputs may take."""
    if len(kernel.pieces) > 1 or kernel.reduced:
        return kernel
    (piece,) = kernel.pieces
    loads = [step.access for step in piece.body if step.access is not None]
    pairs: list[tuple[int, int]] = []
    for number, store in enumerate(piece.stores):
        for index, port in enumerate(kernel.inputs):
            output = kernel.outputs[number]
            mine = [access for access in loads if access.port == index]
            same = [
                access
                for access in mine
                if access.strides == store.access.strides and access.offset == store.access.offset
            ]
            fits = port.dims == output.dims and port.element.bytes == output.element.bytes
            taken = any(index == pair[0] for pair in pairs)
            if mine and same == mine and fits and not taken:
                pairs.append((index, number))
                break
    return replace(kernel, in_place=tuple(pairs))
