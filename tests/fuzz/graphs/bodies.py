"""Operators with graphs: If, Loop, Scan, and calls of local functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.fuzz.graphs.grower import Contents, Grower, Scope, has_axes, is_bool, is_float, type_of

Fill = Callable[[Grower], None]


@contextmanager
def inner(g: Grower, kind: str) -> Iterator[Scope]:
    """Grow a body, which may capture outer values, or a function, which may not."""
    seen = kind == "body"
    scope = Scope(
        values=dict(g.scope.values) if seen else {},
        constants=dict(g.scope.constants) if seen else {},
        random=set(g.scope.random) if seen else set(),
        doubtful=set(g.scope.doubtful) if seen else set(),
        kind=kind,
    )
    g.scopes.append(scope)
    try:
        yield scope
    finally:
        g.scopes.pop()


def _body(name: str, scope: Scope, inputs: list[onnx.ValueInfoProto], outputs: list[str]) -> onnx.GraphProto:
    declared = [helper.make_value_info(output, type_of(scope.values[output][0])) for output in outputs]
    return helper.make_graph(scope.nodes, name, inputs, declared, scope.initializers)


def _declare(g: Grower, contents: Contents) -> onnx.ValueInfoProto:
    """A new input of the body at work."""
    name = g.name("b")
    g.scope.values[name] = contents
    g.scope.doubtful.add(name)
    return helper.make_value_info(name, type_of(contents[0]))


def _own(scope: Scope, g: Grower, test: Callable[[Any], bool] = lambda x: True) -> list[str]:
    """Tensors computed by nodes of the body that satisfy ``test``."""
    made = [name for node in scope.nodes for name in node.output if name in scope.values]
    return [n for n in made if isinstance(scope.values[n][0], np.ndarray) and test(scope.values[n][0])]


def condition(g: Grower) -> str | None:
    """A boolean scalar: an existing one, a constant, an input, or computed from a size or number."""
    found = g.pick(is_bool, lambda x: x.ndim == 0)
    if found and g.chance(40):
        return found
    match g.choose("constant", "input", "size", "number"):
        case "constant":
            return g.constant(g.chance(50))
        case "input":
            return g.input(np.bool_, []) or g.constant(True)
        case "size":
            x = g.pick(has_axes)
            size = x and g.op("Size", x)
            return size and g.op("Greater", size, g.constant(g.choose(0, 3, 7))) if g.opset >= 9 else None
    x = g.pick(is_float)
    total = x and g.op("ReduceMax", x, keepdims=0)
    return total and g.op("Greater", total, g.constant(0, g.dtype(total)))


def add_if(g: Grower, fill: Fill) -> Any:
    """An If whose branches capture outer values."""
    chosen = condition(g)
    if chosen is None:
        return None
    with inner(g, "body") as then:
        fill(g)
        results = _own(then, g)[-1 - g.number(0, 1) :]
    if not results:
        return None
    types = [(then.values[name][0].dtype, then.values[name][0].ndim) for name in results]
    with inner(g, "body") as other:
        fill(g)
        matching = []
        for dtype, rank in types:
            fits = _own(other, g, lambda x: (x.dtype, x.ndim) == (dtype, rank))  # noqa: B023
            fits = [name for name in fits if name not in matching]
            source = fits[-1] if fits else g.pick(lambda x: (x.dtype, x.ndim) == (dtype, rank))  # noqa: B023
            if source is None:
                shape = [1] * rank
                source = g.constant(g.contents(dtype, shape))
            matching.append(source if source in fits else g.op("Identity", source))
    if None in matching:
        return None
    branches = {
        "then_branch": _body("then", then, [], results),
        "else_branch": _body("else", other, [], matching),
    }
    return g.op("If", chosen, outputs=len(results), **branches)


def add_loop(g: Grower, fill: Fill) -> Any:
    """A Loop with one or two carried values and perhaps a scan output."""
    carried = [name for name in (g.pick(is_float), g.pick(is_float, has_axes)) if name]
    carried = carried[: g.number(1, 2)]
    if not carried:
        return None
    count, going_on = g.choose(0, 1, 2, 3), g.chance(80)
    trips = g.constant(count) if g.chance(80) else None
    keep: str | None = None if trips and g.chance(60) else g.constant(going_on)
    if trips is None and keep is None:
        return None
    initial = [g.scope.values[name] for name in carried]
    with inner(g, "body") as body:
        inputs = [_declare(g, [np.array(0, np.int64)] * 2), _declare(g, [np.array(True)] * 2)]
        states = [_declare(g, contents) for contents in initial]
        fill(g)
        nexts = []
        for state in states:
            old = g.array(state.name)
            fits = _own(body, g, lambda x: x.dtype == old.dtype and x.shape == old.shape)  # noqa: B023
            fits = [name for name in fits if name not in nexts]
            nexts.append(fits[-1] if fits and g.chance(80) else g.op("Identity", state.name))
        scanned = [name for name in _own(body, g) if name not in nexts][-1:] if g.chance(50) else []
        if (trips and not count) or (keep and not going_on):
            scanned = []  # onnxruntime guesses the shape of an output that stacks no rows
        if trips is None:
            going = g.op("Less", inputs[0].name, g.constant(g.choose(1, 2))) if g.opset >= 9 else None
        else:
            going = g.op("Identity", inputs[1].name) if g.chance(80) else g.constant(True)
    if going is None or None in nexts:
        return None
    graph = _body("loop", body, [*inputs, *states], [going, *nexts, *scanned])
    return g.op("Loop", trips, keep, *carried, outputs=len(nexts) + len(scanned), body=graph)


def add_scan(g: Grower, fill: Fill) -> Any:
    """A Scan over the first axis of one value, with one state."""
    if g.opset < 9:
        return None
    source = g.pick(is_float, lambda x: x.ndim >= 1 and 0 < x.shape[0] <= 8)
    state = g.pick(is_float)
    if source is None or state is None:
        return None
    first = [array[0] for array in g.scope.values[source]]
    with inner(g, "body") as body:
        inputs = [_declare(g, g.scope.values[state]), _declare(g, [np.asarray(array) for array in first])]
        fill(g)
        old = g.array(inputs[0].name)
        fits = _own(body, g, lambda x: x.dtype == old.dtype and x.shape == old.shape)
        carried = fits[-1] if fits else g.op("Identity", inputs[0].name)
        # onnxruntime leaves a body's output unwritten that is another output too
        made = [name for name in _own(body, g) if name != carried]
    if carried is None or not made:
        return None
    graph = _body("scan", body, inputs, [carried, made[-1]])
    return g.op("Scan", state, source, outputs=2, num_scan_inputs=1, body=graph)


def add_call(g: Grower, fill: Fill) -> Any:
    """A call of a new local function, or of an existing one."""
    if g.in_function or g.opset < 8:
        return None
    if g.functions and g.chance(40):
        function = g.choose(*g.functions)
        arguments = [g.pick(is_float) for _ in function.input]
        if None in arguments:
            return None
        return g.op(function.name, *arguments, outputs=len(function.output), domain="local")
    arguments = [name for name in (g.pick(is_float), g.pick()) if name][: g.number(1, 2)]
    if not arguments:
        return None
    contents = [g.scope.values[name] for name in arguments]
    with inner(g, "function") as scope:
        inputs = [_declare(g, given).name for given in contents]
        fill(g)
        results = _own(scope, g)[-1 - g.number(0, 1) :]
    if not results or not all(isinstance(given[0], np.ndarray) for given in contents):
        return None
    imports = [helper.make_opsetid("", g.opset)]
    name = g.name("Function")
    function = helper.make_function("local", name, inputs, results, scope.nodes, imports)
    g.functions.append(function)
    made = g.op(name, *arguments, outputs=len(results), domain="local")
    if made is None:
        g.functions.remove(function)
    return made


HOLDERS = (add_if, add_loop, add_scan, add_call)
