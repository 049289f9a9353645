"""inline-functions: function inlining."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.errors import unknown
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass

#: Maximum number of nodes of an inlined model; a model that would exceed this is not changed.
_MAX_NODES = 1_000_000

_Key = tuple[str, str, str]


@dataclass(frozen=True)
class InlineFunctions(Pass):
    """Inline the model's functions: replace calls by the bodies.

    Functions without remaining calls are removed. A call is kept if the function's opset gives its operators
    a different meaning than the opset of the caller.

    Attributes:
        only: names of functions (``name`` or ``domain::name``); all of them by default.
    """

    name: ClassVar[str] = "inline-functions"
    only: tuple[str, ...] = ()

    def run(self, model: ir.Model, cx: Context) -> None:
        """Inline in the main graph, then in the functions that are still called, callers before callees.

        Raises:
            UsageError: ``only`` names a function that the model never had.
        """
        self._check_names(model)
        wanted = {key for key in model.functions if not self.only or _names(key).intersection(self.only)}
        if not wanted or not self._fits(model, wanted, cx):
            return
        done: set[_Key] = set()
        pending: list[ir.Graph] = [model.graph]
        while pending:
            graph = pending.pop()
            self._inline_in(graph, wanted, cx)
            for key in _called(graph, model):
                if key not in done:
                    done.add(key)
                    pending.append(model.functions[key].graph)
        for key, function in list(model.functions.items()):
            if key not in done:
                cx.edit.remove_function(function)

    def _check_names(self, model: ir.Model) -> None:
        keys = [*model.functions, *sorted(model.graph.meta.get(ir.FUNCTIONS, ()))]
        known = set().union(*map(_names, keys))
        for name in self.only:
            if name not in known:
                plain = list(dict.fromkeys(f"{domain}::{name}" for domain, name, _ in model.functions))
                raise unknown("function", name, plain, "graphopt inspect -v shows them")

    def _inline_in(self, root: ir.Graph, wanted: set[_Key], cx: Context) -> None:
        """Inline the calls in ``root`` and its bodies, and the calls in inlined functions."""
        pending = [node for node in ir.walk_nodes(root) if node.op_identifier() in wanted]
        pending.reverse()
        while pending:
            call = pending.pop()
            reason = ir.inline_obstacle(cx.edit, call)
            if reason is not None:
                cx.refuse(Refusal(self.name, ir.label(call), reason))
                continue
            action = cx.begin_rewrite(self.name, call)
            if action is None:
                continue
            made = ir.inline_call(cx.edit, call)
            cx.end_rewrite(action, call, made)
            calls = [node for node in _with_nested(made) if node.op_identifier() in wanted]
            pending.extend(reversed(calls))

    def _fits(self, model: ir.Model, wanted: set[_Key], cx: Context) -> bool:
        """Whether the inlined model remains below the limit."""
        sizes: dict[_Key, int] = {}
        graphs = {key: function.graph for key, function in model.functions.items()}
        for key in ir.feed_order({key: _called(graph, model) for key, graph in graphs.items()}):
            sizes[key] = _size(graphs[key], sizes, wanted)
        size = _size(model.graph, sizes, wanted)
        if size > _MAX_NODES:
            cx.refuse(Refusal(self.name, "", f"{size:,} nodes would result; the limit is {_MAX_NODES:,}"))
        return size <= _MAX_NODES


def _names(key: _Key) -> set[str]:
    domain, name, overload = key
    return {name, f"{domain}::{name}", f"{domain}::{name}:{overload}"}


def _called(graph: ir.Graph, model: ir.Model) -> list[_Key]:
    keys = dict.fromkeys(node.op_identifier() for node in ir.walk_nodes(graph))
    return [key for key in keys if key in model.functions]


def _size(graph: ir.Graph, sizes: dict[_Key, int], wanted: set[_Key]) -> int:
    """The number of nodes of ``graph`` after inlining the selected calls."""
    keys = [node.op_identifier() for node in ir.walk_nodes(graph)]
    return sum(sizes[key] if key in wanted else 1 for key in keys)


def _with_nested(nodes: Iterable[ir.Node]) -> Iterable[ir.Node]:
    for node in nodes:
        yield node
        for body in ir.bodies(node):
            yield from ir.walk_nodes(body)
