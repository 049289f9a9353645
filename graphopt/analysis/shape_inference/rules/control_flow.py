"""If, Loop and Scan.

Facts within a body hold for each of its runs. A fresh symbol in the body of a loop may differ between
iterations, so facts outside of the body never contain it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import NodeFacts, normalize_axis, shape_rule
from graphopt.analysis.shape_inference.rules.sequences import join
from graphopt.analysis.shape_inference.value_facts import UNKNOWN, Contents, Fact, ShapeTuple
from graphopt.analysis.symbolic import Dim, SymDim, at_least, dim_max

_ROUNDS = 3  # number of times that presumed facts of carried values are weakened before they are discarded


@shape_rule("If")
def if_(node: NodeFacts) -> list[Fact]:
    """The facts common to both branches, or of one branch if the condition is constant."""
    condition = node.contents(0)
    names: tuple[str, ...] = ("then_branch", "else_branch")
    if condition in ((0,), (1,)):
        names = names[:1] if condition == (1,) else names[1:]
    results = [[node.scope.infer(value) for value in node.attr_graph(name).outputs] for name in names]
    if len(results) == 1:
        return results[0]
    return [join(node, a, b) for a, b in zip(*results, strict=True)]


@shape_rule("Loop")
def loop(node: NodeFacts) -> list[Fact]:
    """Inputs: M, cond and the carried values. Outputs: the final carried values, then the scans."""
    body = node.attr_graph("body")
    mark = node.scope.newest_symbol
    counter, condition = body.inputs[:2]
    # The body runs only while the condition is true.
    fixed = {counter: Fact(ir.DataType.INT64, _scalar_shape(counter))}
    running = Fact(ir.DataType.BOOL, _scalar_shape(condition), (1,))
    initial = [node.fact(index) for index in range(2, len(node.ir.inputs))]
    results = _facts_of_iterations(
        node, fixed, body.inputs[1:], [running, *initial], body.outputs, mark, (1,)
    )
    trips, never_skipped = _trips(node, results[0])
    count = len(initial) + 1
    outputs = []
    for start, end in zip(initial, results[1:count], strict=True):
        outputs.append(_outside(node, end if never_skipped else join(node, start, end), mark))
    for value, scan in zip(body.outputs[count:], results[count:], strict=True):
        fact = _outside(node, scan, mark) if never_skipped else _facts_without_iterations(node, value, scan)
        outputs.append(_stacked(fact, trips, 0))
    return outputs


@shape_rule("Scan")
def scan(node: NodeFacts) -> list[Fact]:
    """Carried values, then slices of the scanned inputs; since opset 9. The body runs at least once."""
    if node.version < 9:
        return []
    body = node.attr_graph("body")
    mark = node.scope.newest_symbol
    carried = len(node.ir.inputs) - node.attr_int("num_scan_inputs", 0)
    axes = node.attr_ints("scan_input_axes") or (0,) * (len(node.ir.inputs) - carried)
    fixed: dict[ir.Value, Fact] = {}
    lengths: list[Dim] = []
    for index, axis in enumerate(axes, start=carried):
        shape = node.shape(index)
        if shape is not None:
            axis = normalize_axis(axis, len(shape))
            lengths.append(shape[axis])
            shape = shape[:axis] + shape[axis + 1 :]
        fixed[body.inputs[index]] = Fact(node.dtype(index), shape)
    initial = [node.fact(index) for index in range(carried)]
    results = _facts_of_iterations(node, fixed, body.inputs[:carried], initial, body.outputs, mark)
    known = [length for length in lengths if isinstance(length, int)] or lengths
    length = known[0] if known else node.fresh("length")
    outputs = [_outside(node, end, mark) for end in results[:carried]]
    scans = results[carried:]
    out_axes = node.attr_ints("scan_output_axes") or (0,) * len(scans)
    return outputs + [
        _stacked(_outside(node, fact, mark), length, axis) for fact, axis in zip(scans, out_axes, strict=True)
    ]


def _facts_of_iterations(
    node: NodeFacts,
    fixed: Mapping[ir.Value, Fact],
    carried: Sequence[ir.Value],
    initial: Sequence[Fact],
    wanted: Sequence[ir.Value],
    mark: int,
    condition: Contents | None = None,
) -> list[Fact]:
    """The facts of ``wanted`` that hold in every iteration.

    A fixed-point iteration: the facts of the initial carried values are presumed for every iteration, then
    weakened until the body implies them. The first values of ``wanted`` are the next values of ``carried``.
    If ``condition`` is given, the first carried value always equals it.
    """
    presumed = [_copy(fact) for fact in initial]
    for _ in range(_ROUNDS):
        assumption = node.scope.assume({**fixed, **dict(zip(carried, presumed, strict=True))}, wanted)
        results = assumption.results
        ends = results[: len(carried)]
        weaker = [_common_fact(node, a, b, mark) for a, b in zip(presumed, ends, strict=True)]
        if condition is not None:
            weaker[0].contents = condition if weaker[0].shape is not None else None
        if all(a.same_as(b) for a, b in zip(presumed, weaker, strict=True)):
            return results
        assumption.retract()
        presumed = weaker
    presumed = [Fact(fact.dtype) if fact.container is None else UNKNOWN for fact in presumed]
    return node.scope.assume({**fixed, **dict(zip(carried, presumed, strict=True))}, wanted).results


def _common_fact(node: NodeFacts, presumed: Fact, result: Fact, mark: int) -> Fact:
    """The facts common to ``presumed`` and ``result``; a fresh symbol is compatible with any size."""
    if presumed.container is not None or result.container is not None:
        if presumed.container is not result.container:
            return UNKNOWN
        element = _common_fact(node, presumed.element or UNKNOWN, result.element or UNKNOWN, mark)
        return Fact(container=presumed.container, element=element)
    if presumed.vacant:
        return _outside(node, result, mark)
    shape: ShapeTuple | None = None
    if presumed.shape is not None and result.shape is not None and len(presumed.shape) == len(result.shape):
        shape = tuple(
            dim if dim == end or _is_local(dim, mark) else node.fresh()
            for dim, end in zip(presumed.shape, result.shape, strict=True)
        )
    dtype = presumed.dtype if result.dtype in (None, presumed.dtype) else None
    return Fact(dtype, shape, presumed.contents if presumed.contents == result.contents else None)


def _copy(fact: Fact) -> Fact:
    """A copy of ``fact`` for another value, which need not remain equal."""
    return Fact(
        fact.dtype,
        fact.shape,
        fact.contents,
        container=fact.container,
        element=fact.element,
        vacant=fact.vacant,
    )


def _is_local(dim: Dim, mark: int) -> bool:
    return isinstance(dim, SymDim) and dim.birth > mark


def _outside(node: NodeFacts, fact: Fact, mark: int) -> Fact:
    """``fact`` outside of the body: without the fresh symbols created since ``mark``."""
    if fact.container is not None:
        return Fact(container=fact.container, element=_outside(node, fact.element or UNKNOWN, mark))
    contents: Contents | None = fact.contents
    if contents is not None and any(_is_local(dim, mark) for dim in contents):
        contents = None
    shape = fact.shape
    if shape is not None:
        shape = tuple(node.fresh() if _is_local(dim, mark) else dim for dim in shape)
    return Fact(fact.dtype, shape, contents, vacant=fact.vacant)


def _facts_without_iterations(node: NodeFacts, value: ir.Value, fact: Fact) -> Fact:
    """The facts of a scan output that also hold if the loop has no iterations.

    Without iterations, onnxruntime returns a size of 0 for an unknown dim, and a vector for an unknown rank.
    Only the rank and the sizes that the body declares are certain.
    """
    if fact.shape is None or value.shape is None or value.shape.rank() != len(fact.shape):
        return Fact(fact.dtype)
    pairs = zip(fact.shape, value.shape, strict=True)
    return Fact(fact.dtype, tuple(dim if dim == declared else node.fresh() for dim, declared in pairs))


def _stacked(fact: Fact, length: Dim, axis: int) -> Fact:
    """The fact of a tensor that stacks values with ``fact`` along a new axis, one per iteration."""
    if fact.shape is None:
        return Fact(fact.dtype)
    axis = normalize_axis(axis, len(fact.shape) + 1)
    return Fact(fact.dtype, (*fact.shape[:axis], length, *fact.shape[axis:]))


def _scalar_shape(value: ir.Value) -> ShapeTuple:
    """The declared shape of a body's counter or condition; onnxruntime feeds a value of this shape."""
    return (1,) if value.shape is not None and value.shape.rank() == 1 else ()


def _trips(node: NodeFacts, condition: Fact) -> tuple[Dim, bool]:
    """The number of iterations, and whether it is at least one."""
    starts = not node.has(1) or node.contents(1) == (1,)
    limit = node.named_contents(0) if node.has(0) else None
    if limit is None:
        return node.fresh("trips"), starts and not node.has(0)
    never_skipped = starts and at_least(limit[0], 1)
    stops_early = condition.contents != (1,)
    if stops_early or not starts:
        return node.fresh("trips"), never_skipped
    return dim_max(limit[0], 0), never_skipped
