"""Templates and the nodes that they compute.

>>> @template("Conv", is_faster=is_faster)                                                   # doctest: +SKIP
... def conv(anchor, cx):
...     return Match("conv", (anchor,), anchor.inputs, anchor.outputs, ConvParameters(...))

The function that defines a template maps an *anchor* node to a :class:`Match`, or raises CantFuse.
Templates are found by walking :mod:`graphopt.fusion.templates`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.operator_table import qualified_name
from graphopt.util.lazy_dataclass import dataclass

_PACKAGE = "graphopt.fusion.templates"


@dataclass(frozen=True)
class Match:
    """Nodes that a template computes.

    Attributes:
        template: its name.
        nodes: the anchor, and nodes before it that the template computes as well.
        operands: the values that it reads, in the order of its printer; ``None`` for omitted ones. A constant
            of one element is an operand only if an anchor reads it; others belong to the parameters.
        results: the values that it computes. Unnamed ones are omitted.
        parameters: static parameters, a frozen dataclass.
        is_faster: that of the template (:class:`Template`).
    """

    template: str
    nodes: tuple[ir.Node, ...]
    operands: tuple[ir.Value | None, ...]
    results: tuple[ir.Value, ...]
    parameters: Any
    is_faster: Callable[[Match, Context], bool] | None = None


@dataclass(frozen=True)
class Template:
    """The definition of a template.

    Attributes:
        ops: operators of anchors, such as ``Conv`` or ``com.microsoft::MatMulNBits``.
        match: the match of an anchor; raises CantFuse with the reason if there is none.
        is_faster: whether the template is expected to be faster than onnxruntime, by measured figures.
    """

    ops: tuple[str, ...]
    match: Callable[[ir.Node, Context], Match]
    is_faster: Callable[[Match, Context], bool]


def template(
    *ops: str, is_faster: Callable[[Match, Context], bool]
) -> Callable[[Callable[[ir.Node, Context], Match]], Template]:
    """Define a template for anchors ``ops``; see :class:`Template` for the options."""
    return lambda match: Template(ops, match, is_faster)


def has_template(node: ir.Node) -> bool:
    """Whether ``node`` may be an anchor."""
    return qualified_name(node) in _by_operator()


def anchor_operators() -> frozenset[str]:
    """The qualified names of the operators of all anchors."""
    return frozenset(_by_operator())


def matches(node: ir.Node, cx: Context) -> list[Match]:
    """The matches of the anchor ``node``, those of most nodes first.

    Raises:
        CantFuse: there is none; the message is the reason of the first template, by the name of its module.
    """
    found: list[Match] = []
    reasons: list[CantFuse] = []
    for candidate in _by_operator().get(qualified_name(node), ()):
        try:
            match = candidate.match(node, cx)
            if any(other.graph is not node.graph for other in match.nodes):
                raise CantFuse("its template would compute nodes of different graphs")
            found.append(replace(match, is_faster=candidate.is_faster))
        except CantFuse as refusal:
            reasons.append(refusal)
        except Exception as fault:  # nodes may violate the schemas of their operators
            reasons.append(CantFuse(f"its node is invalid: {type(fault).__name__}"))
    if not found:
        raise reasons[0] if reasons else CantFuse(f"no template for {qualified_name(node)}")
    return sorted(found, key=lambda match: -len(match.nodes))


def match_in(nodes: Sequence[ir.Node], cx: Context) -> Match | None:
    """The match in a group of ``nodes``, which covers all anchors; ``None`` if there are no anchors.

    Raises:
        CantFuse: no template computes the anchors, or several are needed.
    """
    anchors = [node for node in nodes if has_template(node)]
    if not anchors:
        return None
    for match in matches(anchors[-1], cx):
        if all(node in nodes for node in match.nodes) and all(node in match.nodes for node in anchors):
            return match
    raise CantFuse("no template computes all of its products")


@cache
def _by_operator() -> dict[str, tuple[Template, ...]]:
    package = importlib.import_module(_PACKAGE)
    found: dict[str, tuple[Template, ...]] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        for item in templates_of(importlib.import_module(f"{_PACKAGE}.{info.name}")):
            found |= {op: (*found.get(op, ()), item) for op in item.ops}
    return found


def templates_of(module: ModuleType) -> list[Template]:
    """The templates that ``module`` defines, in order, without imported ones."""
    items = [item for item in vars(module).values() if isinstance(item, Template)]
    return [item for item in items if item.match.__module__ == module.__name__]
