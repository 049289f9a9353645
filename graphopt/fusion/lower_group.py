"""Lowering of a group to a kernel: a loop nest of the loop IR, or a template with an epilogue."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.clustering import find_clusters
from graphopt.fusion.loop_nest import AffineMap, LoopNest
from graphopt.fusion.loops.builder import Expr, IRBuilder, live
from graphopt.fusion.loops.ir import ZERO, Access, Axis, CantFuse, Element, Kernel, Port, Segment, Size, Store
from graphopt.fusion.operator_table import EmitContext, element_of, find, obstacle_to_kernel
from graphopt.fusion.size_symbols import SymbolTable
from graphopt.fusion.template_kernel import RESULT, Epilogue, NativeKernel, TemplateKernel
from graphopt.fusion.template_table import Match, match_in

#: Maximum stride of accesses along the innermost loop, in elements.
_WIDEST_STRIDE = 16
#: Maximum number of instructions per segment.
_MOST_STEPS = 600

_Use = tuple[ir.Value, AffineMap]


def lower(graph: ir.Graph, cx: Context, name: str) -> NativeKernel:
    """The kernel that computes the outputs of ``graph`` from its inputs.

    Args:
        graph: the group, whose inputs have known types and ranks.
        cx: shape facts about its values.

    Raises:
        CantFuse: the nodes are neither one loop nest nor a template with an elementwise epilogue, or memory
            accesses of the nest are too scattered.
    """
    nodes = [node for node in graph if ir.constant_of(node.outputs[0]) is None]
    match = match_in(nodes, cx)
    if match is not None:
        return _lower_template(graph, nodes, match, cx, name)
    nest = _nest_of(nodes, cx)
    return _Lowering(graph.inputs, graph.outputs, cx, nest, name).run()


def _nest_of(nodes: Sequence[ir.Node], cx: Context) -> LoopNest:
    """The loop nest of ``nodes``; raises CantFuse if they are not one."""
    reason = next(filter(None, (obstacle_to_kernel(node, cx) for node in nodes)), None)
    if reason is not None:  # the graph may be hand-written
        raise CantFuse(reason)
    clusters = find_clusters(nodes, cx)
    if len(clusters) != 1 or clusters[0].nest is None:
        raise CantFuse(
            next((item.reason for item in clusters if item.reason), "the nodes need several loop nests")
        )
    return clusters[0].nest


def _lower_template(
    graph: ir.Graph, nodes: Sequence[ir.Node], match: Match, cx: Context, name: str
) -> TemplateKernel:
    """The kernel of a group with a template, whose nodes are followed by an epilogue."""
    places = {value: index for index, value in enumerate(graph.inputs)}
    missing = [value for value in match.operands if value is not None and value not in places]
    if missing:
        raise CantFuse(f"{missing[0].name!r} is computed inside of the group")
    symbols = SymbolTable([cx.shape(value) or () for value in graph.inputs])
    inputs = tuple(
        Port(_element_of(value, cx), tuple(map(symbols.size, cx.shape(value) or ())))
        for value in graph.inputs
    )
    outputs = tuple(Port(_element_of(value, cx), ()) for value in graph.outputs)
    numbers = {value: index for index, value in enumerate(graph.outputs)}
    epilogue = None
    rest = [node for node in nodes if node not in match.nodes]
    if rest:
        epilogue = _lower_epilogue(graph, rest, match, cx)
    elif any(value not in match.results for value in graph.outputs):
        raise CantFuse("the template does not compute all results")
    return TemplateKernel(
        name,
        match.template,
        inputs,
        outputs if epilogue is None else epilogue.kernel.outputs,
        tuple(symbols.symbols),
        match.parameters,
        tuple(None if value is None else places[value] for value in match.operands),
        tuple(numbers.get(value) for value in match.results),
        epilogue,
    )


def _lower_epilogue(graph: ir.Graph, nodes: Sequence[ir.Node], match: Match, cx: Context) -> Epilogue:
    """The epilogue of ``nodes``, whose loops are in the order of the elements of the template's result."""
    (result, *others) = [value for value in match.results if value.name]
    if others or any(value in graph.outputs for value in match.results):
        raise CantFuse("only a template with one result has an epilogue, which reads it")
    nest = _nest_of(nodes, cx)
    if nest.reduction_loops or nest.split_loop is not None:
        raise CantFuse("an epilogue is elementwise")
    read = [value for value in graph.inputs if any(value in node.inputs for node in nodes)]
    indices = nest.indices(result)
    order = [loop for index in indices[0] for loop in index.loops]
    whole = len(indices) == 1 and all(map(nest.covers, indices[0], nest.dims(result)))
    if not whole or sorted(order) != sorted(nest.outer):
        raise CantFuse("its epilogue does not read the result of the template element by element")
    kernel = _Lowering([*read, result], graph.outputs, cx, nest, "epilogue", order).run()
    places = {value: index for index, value in enumerate(graph.inputs)}
    return Epilogue(kernel, (*(places[value] for value in read), RESULT))


def _element_of(value: ir.Value, cx: Context) -> Element:
    element = element_of(cx.dtype(value))
    if element is None:
        raise CantFuse(f"no kernels for the type of {value.name!r}")
    return element


class _Lowering:
    """Lowers a nest; ``required_order`` is the order of its loops, by default the best one."""

    def __init__(
        self,
        inputs: Sequence[ir.Value],
        outputs: Sequence[ir.Value],
        cx: Context,
        nest: LoopNest,
        name: str,
        required_order: list[int] | None = None,
    ) -> None:
        self._cx = cx
        self._nest = nest
        self._name = name
        self._inputs = {value: index for index, value in enumerate(inputs)}
        self._outputs = outputs
        self._symbols = SymbolTable([nest.dims(value) for value in inputs])
        self._required_order = required_order
        self._order: list[int] = []

    def run(self) -> Kernel:
        nest = self._nest
        inputs = tuple(map(self._port, self._inputs))
        outputs = tuple(map(self._port, self._outputs))
        first: CantFuse | None = None
        for order in self._loop_orders():
            self._order = order
            reduced = nest.reduction_loops or []
            size = self._symbols.product(nest.sizes[loop] for loop in reduced) if reduced else None
            axes = tuple(Axis(self._symbols.size(nest.sizes[loop]), loop in reduced) for loop in order)
            split_axis = None if nest.split_loop is None else order.index(nest.split_loop)
            segments = tuple(self._segment(size, *bounds) for bounds in self._bounds())
            try:
                self._check_strides(segments)
            except CantFuse as reason:
                first = first or reason
                continue
            symbols = tuple(self._symbols.symbols)
            return _in_place(Kernel(self._name, inputs, outputs, symbols, axes, segments, split_axis))
        assert first is not None
        raise first

    def _loop_orders(self) -> list[list[int]]:
        """Candidate loop orders, outermost first. Reduction loops are innermost, or around one other loop."""
        if self._required_order is not None:
            return [self._required_order]
        outer, reduced = self._nest.outer, self._nest.reduction_loops or []
        if not reduced:
            return [self._interleaved_last(outer)]
        return [[*outer, *reduced], [*outer[:-1], *reduced, outer[-1]]] if outer else [list(reduced)]

    def _interleaved_last(self, loops: list[int]) -> list[int]:
        """``loops`` in an order that reads interleaved elements shortly after each other.

        An example is pixels with interleaved channels: after one channel is read, the others are in the
        cache.
        """
        if not loops:
            return loops
        last = loops[-1]
        between: list[int] = []
        for value in self._inputs:
            for indices in self._nest.indices(value):
                digits = [loop for index in indices for loop in index.loops]
                if last in digits:
                    between += digits[digits.index(last) + 1 :]
        inner = [loop for loop in loops if loop in between]
        return [*(loop for loop in loops[:-1] if loop not in inner), *inner, last]

    def _port(self, value: ir.Value) -> Port:
        return Port(_element_of(value, self._cx), tuple(map(self._symbols.size, self._nest.dims(value))))

    def _bounds(self) -> list[tuple[int, Size | None]]:
        """Start and stop of each segment."""
        starts: list[int] = [0, *self._nest.split_points]
        stops: list[Size | None] = [*map(Size, self._nest.split_points), None]
        return list(zip(starts, stops, strict=True))

    def _segment(self, reduction_size: Size | None, start: int, stop: Size | None) -> Segment:
        builder = IRBuilder(reduction_size)
        exprs = self._exprs(builder, start)
        uses = [(value, self._nest.resolved(self._nest.stores[value])) for value in self._outputs]
        steps, renumbered = live(builder.steps, [exprs[use].index for use in uses])
        if len(steps) > _MOST_STEPS:
            raise CantFuse("the kernel would have too many instructions")
        stores = [
            Store(self._access(number, *use), renumbered[exprs[use].index]) for number, use in enumerate(uses)
        ]
        return Segment(tuple(steps), tuple(stores), Size(start), stop)

    def _exprs(self, builder: IRBuilder, start: int) -> dict[_Use, Expr]:
        """Expressions of all uses of values in the segment that begins at ``start``."""
        nest = self._nest
        found: dict[_Use, Expr] = {}
        pending = [(value, nest.resolved(nest.stores[value])) for value in reversed(self._outputs)]
        while pending:
            value, indices = pending[-1]
            if (value, indices) in found:
                pending.pop()
                continue
            expr = self._leaf(builder, value, indices)
            if expr is None:
                expr, missing = self._result(builder, value, indices, start, found)
                if expr is None:
                    pending += missing[::-1]
                    continue
            found[value, indices] = expr
            pending.pop()
        return found

    def _leaf(self, builder: IRBuilder, value: ir.Value, indices: AffineMap) -> Expr | None:
        """The expression of an input or a constant; ``None`` for other values."""
        element = _element_of(value, self._cx)
        if value in self._inputs:
            return builder.load(self._access(self._inputs[value], value, indices), element)
        tensor = ir.constant_of(value)
        if tensor is None:
            return None
        if tensor.size != 1:
            raise CantFuse(f"{value.name!r} is a constant of several elements inside")
        number = tensor.numpy().reshape(-1)[0]
        return builder.constant(float(number) if element.is_float else int(number), element)

    def _result(
        self, builder: IRBuilder, value: ir.Value, indices: AffineMap, start: int, found: dict[_Use, Expr]
    ) -> tuple[Expr | None, list[_Use]]:
        """The expression of a node's result, or the operands that have to be lowered first."""
        node = value.producer()
        assert node is not None
        operator = find(node)
        assert operator is not None
        ctx = EmitContext(node, self._cx, self._nest, list(node.outputs).index(value), indices)
        read = [item and (item[0], self._nest.resolved(item[1])) for item in operator.indexing_maps(ctx)]
        uses = [item if item is not None and self._in_range(*item, start) else None for item in read]
        missing = [use for use in uses if use is not None and use not in found]
        if missing:
            return None, missing
        result = operator.compute(builder, ctx, *(None if use is None else found[use] for use in uses))
        return (result[ctx.output] if isinstance(result, (list, tuple)) else result), []

    def _in_range(self, value: ir.Value, indices: AffineMap, start: int) -> bool:
        """Whether the segment at ``start`` reads ``value``; a part of a Concat is read in one segment."""
        return all(
            not isinstance(dim, int) or 0 <= index.offset + index.step * start < dim
            for index, dim in zip(indices, self._nest.dims(value), strict=True)
            if index.loops and index.loops == (self._nest.split_loop,)
        )

    def _access(self, port: int, value: ir.Value, indices: AffineMap) -> Access:
        """The memory access of ``indices`` in a row-major tensor."""
        dims = self._nest.dims(value)
        strides = {loop: ZERO for loop in self._order}
        offset = ZERO
        for axis, index in enumerate(indices):
            scale = self._symbols.product(dims[axis + 1 :])
            if index.offset:
                part = scale * Size(index.offset)
                if offset.factor and offset.symbols != part.symbols:
                    raise CantFuse("slices along several axes of dynamic size")
                offset = Size(offset.factor + part.factor, part.symbols)
            for position, loop in enumerate(index.loops):
                inner = [self._nest.sizes[other] for other in index.loops[position + 1 :]]
                stride = scale * self._symbols.product(inner) * Size(index.step)
                if strides[loop] != ZERO:
                    raise CantFuse("a diagonal is read")
                strides[loop] = stride
        return Access(port, tuple(strides[loop] for loop in self._order), offset)

    def _check_strides(self, segments: Sequence[Segment]) -> None:
        """Raise CantFuse if accesses along the innermost loop are too far apart."""
        if not self._order:
            return
        loads = [step.access for segment in segments for step in segment.body if step.access is not None]
        stores = [store.access for segment in segments for store in segment.stores]
        for access in itertools.chain(loads, stores):
            stride = access.strides[-1].constant
            if stride is None or abs(stride) > _WIDEST_STRIDE:
                raise CantFuse("the innermost loop would have scattered memory accesses")


def _in_place(kernel: Kernel) -> Kernel:
    """The kernel, with the pairs of inputs and outputs that may share memory."""
    if len(kernel.segments) > 1 or kernel.reduced:
        return kernel
    (segment,) = kernel.segments
    loads = [step.access for step in segment.body if step.access is not None]
    pairs: list[tuple[int, int]] = []
    for number, store in enumerate(segment.stores):
        for index, port in enumerate(kernel.inputs):
            output = kernel.outputs[number]
            own = [access for access in loads if access.port == index]
            same = all(access == replace(store.access, port=index) for access in own)
            fits = port.dims == output.dims and port.element.bytes == output.element.bytes
            is_shared = any(index == pair[0] for pair in pairs)
            if own and same and fits and not is_shared:
                pairs.append((index, number))
                break
    return replace(kernel, in_place=tuple(pairs))
