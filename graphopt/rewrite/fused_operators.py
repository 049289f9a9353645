"""The fused operators of a model, and the original nodes that they replace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from graphopt import ir
from graphopt.ops import graphopt_operators
from graphopt.rewrite.rule import Rule
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Fused:
    """A fused operator.

    Attributes:
        rule: the rule that wrote it last.
        rules: all rules involved, in order: ``layer-norm``, then the rules that added a scale and a bias.
        op: the operator, such as ``com.microsoft.Gelu``.
        node: the name of its node.
        origins: the names of the original nodes that it replaces.
    """

    rule: str
    rules: tuple[str, ...]
    op: str
    node: str
    origins: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def fused_in(model: ir.Model, rules: Iterable[Rule]) -> Iterator[Fused]:
    """The fused operators written by ``rules``, in the order of the model."""
    rules = [rule for rule in rules if rule.is_fusion]
    names = frozenset(rule.name for rule in rules)
    for group in filter(is_fused, groups_in(model, rules)):
        node = main_node(group)
        took_part = tuple(name for name in ir.makers(node) if name in names)
        op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        yield Fused(ir.created_by(node) or "", took_part, op, ir.label(node), ir.origins(node))


def groups_in(model: ir.Model, rules: Iterable[Rule]) -> list[list[ir.Node]]:
    """The nodes written by ``rules``, grouped by rewrite."""
    names = frozenset(rule.name for rule in rules)
    groups: dict[tuple[ir.Graph, str | None, tuple[str, ...]], list[ir.Node]] = {}
    for graph in ir.graphs_of(model):
        for node in graph:
            by = ir.created_by(node)
            if by in names:
                groups.setdefault((graph, by, ir.origins(node)), []).append(node)
    return list(groups.values())


def native_calls(model: ir.Model) -> list[ir.Node]:
    """The calls of groups with native kernels."""
    return [
        node
        for graph in ir.graphs_of(model)
        for node in graph
        if node.domain == graphopt_operators.NATIVE_DOMAIN and node.op_identifier() in model.functions
    ]


def native_in(model: ir.Model) -> Iterator[Fused]:
    """The calls of groups with native kernels, as fused operators."""
    for call in native_calls(model):
        inside = [node for node in model.functions[call.op_identifier()] if node.op_type != "Constant"]
        origins = tuple(dict.fromkeys(name for node in inside for name in ir.origins(node)))
        by = (ir.created_by(call) or "fuse-groups",)
        yield Fused(by[0], by, f"{call.domain}.{call.op_type}", ir.label(call), origins)


def is_fused(group: Sequence[ir.Node]) -> bool:
    """Whether the nodes of one rewrite include a fused operator."""
    return any(map(ir.is_fused, group))


def main_node(group: Sequence[ir.Node]) -> ir.Node:
    """The fused operator among the nodes of one rewrite; the others convert operands."""
    return [node for node in group if ir.is_fused(node)][-1]
