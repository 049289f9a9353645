"""Names of the values in calls of functions, which onnxruntime inlines.

onnxruntime (1.31) calls a value ``v`` of a function ``F`` ``_inlfunc_F_v``, with a number after ``F`` if
there are several calls; the names do not depend on the caller. Therefore the profiled model has a function
for each call, whose name identifies the call: ``F@y`` for the call that computes ``y``, and ``G@y/z`` for the
call in ``F`` that computes ``z``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.ops.graphopt_operators import NATIVE_DOMAIN

if TYPE_CHECKING:
    import onnx

#: Prefix of the names of values and nodes in inlined functions.
INLINED = "_inlfunc_"
#: Maximum size of all copies of functions, in bytes; the remaining calls share their functions.
_LIMIT = 1 << 28

#: The first output of a call, after those of the calls around it.
_Path = tuple[str, ...]


def give_calls_own_functions(proto: onnx.ModelProto) -> None:
    """Replace the function of each call, also within functions, by a copy whose name identifies the call.

    Functions that onnxruntime may replace by a kernel are unchanged.
    """
    functions = {(one.domain, one.name, one.overload): one for one in proto.functions}
    queue: deque[tuple[onnx.NodeProto, _Path]] = deque()
    if functions:
        queue.extend((node, ()) for node in nodes_within(proto.graph.node))
    size = 0
    while queue:
        call, outer = queue.popleft()
        function = functions.get((call.domain, call.op_type, call.overload))
        output = next(filter(None, call.output), None)
        if function is None or output is None or not _is_inlined(call.domain):
            continue
        size += function.ByteSize()
        if size > _LIMIT:
            break
        path = (*outer, output)
        copy = proto.functions.add()
        copy.CopyFrom(function)
        copy.name = call.op_type = _name(function.name, path)
        copy.overload = call.overload = ""
        queue.extend((node, path) for node in nodes_within(copy.node))


def nodes_within(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """``nodes``, then the nodes of their bodies."""
    queue = deque(nodes)
    while queue:
        node = queue.popleft()
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                queue.extend(graph.node)


def inline_calls(model: ir.Model) -> tuple[ir.Model, dict[str | None, str]]:
    """``model`` with inlined calls, and the names in it of values and nodes, by their names in onnxruntime.

    The argument is not changed. Calls that can't be inlined are kept.
    """
    if not any(_is_inlined(domain) for domain, _, _ in model.functions):
        return model, {}
    model = ir.clone(model)
    edit = ir.Editor(model)
    names: dict[str | None, str] = {}
    queue = deque((node, _path((), node)) for node in ir.walk_nodes(model.graph))
    while queue:
        call, path = queue.popleft()
        function = model.functions.get(call.op_identifier())
        if function is None or path is None or not _is_inlined(call.domain):
            continue
        if ir.inline_obstacle(edit, call) is not None:
            continue
        inlined = ir.inline_call(edit, call)
        prefix = f"{INLINED}{_name(function.name, path)}_"
        for old, new in _pairs(function.graph, inlined):
            queue.append((new, _path(path, old)))
            values = zip(old.outputs, new.outputs, strict=True)
            for inner, name in ((old.name, new.name), *((a.name, b.name) for a, b in values)):
                if inner and name:
                    names[prefix + inner] = name
    return model, names


def _pairs(old: Iterable[ir.Node], new: Iterable[ir.Node]) -> Iterator[tuple[ir.Node, ir.Node]]:
    """The nodes ``old`` and their bodies' with their clones ``new``."""
    for one, other in zip(old, new, strict=True):
        yield one, other
        for body, copy in zip(ir.bodies(one), ir.bodies(other), strict=True):
            yield from _pairs(body, copy)


def _path(outer: _Path, call: ir.Node) -> _Path | None:
    output = next((value.name for value in call.outputs if value.name), None)
    return None if output is None else (*outer, output)


def _name(function: str, path: Sequence[str]) -> str:
    return f"{function}@{'/'.join(path)}"


def _is_inlined(domain: str) -> bool:
    """Whether onnxruntime inlines the functions of ``domain``, rather than running its own operators."""
    return domain not in ir.RUNTIME_DOMAINS and domain != NATIVE_DOMAIN
