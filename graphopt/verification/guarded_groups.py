"""Compare both versions of guarded groups, even if the inputs of a comparison reach only one of them.

A specialized version is compared with the general one by itself, on inputs that satisfy its assumptions. The
general versions of all groups together are compared with the original.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.errors import GraphoptError, SystemExhausted
from graphopt.numerics import Numerics
from graphopt.ops import graphopt_operators
from graphopt.util.lazy_dataclass import dataclass
from graphopt.verification.verdict import GroupComparison, Row, Verdict
from graphopt.verification.verifier import Verifier, verify

#: CPU seconds for the comparison of one group.
_SECONDS = 2.0


@dataclass(frozen=True)
class _Guarded:
    """An If that chooses a version of a group, with its graph."""

    graph: ir.Graph
    node: ir.Node

    @property
    def name(self) -> str:
        """The name of its first result."""
        return self.node.outputs[0].name or ""


def verify_with_groups(
    verifier: Verifier, model: ir.Model, *, numerics: Numerics, like: Row | None = None, **options: Any
) -> Verdict:
    """As ``verifier.verify``; the verdict also compares the guarded groups of ``model``, if it has any.

    Groups are compared only if the whole model agrees, and ``like`` is ``None``.
    """
    verdict = verifier.verify(model, numerics=numerics, like=like, **options)
    guarded = list(_guarded(model)) if verdict.ok and like is None else []
    if not guarded:
        return verdict
    begin, general = time.monotonic(), tuple[Row, ...]()
    if verdict.unverifiable is None:
        general = verifier.verify(_with_general_versions(model), numerics=numerics, **options).rows
    end, groups = time.monotonic() + verifier.seconds, list[GroupComparison]()
    for one in guarded:
        if time.monotonic() < end:
            groups.append(_compared(one, model, verifier, numerics))
        else:
            groups.append(GroupComparison(one.name, 0, "skipped for time"))
    seconds = verdict.seconds + time.monotonic() - begin
    return replace(verdict, general_rows=general, groups=tuple(groups), seconds=seconds)


def _guarded(model: ir.Model) -> Iterator[_Guarded]:
    for graph in ir.graphs_of(model):
        for node in graph:
            if graphopt_operators.guarded_branch(node) is not None:
                yield _Guarded(graph, node)


def _with_general_versions(model: ir.Model) -> ir.Model:
    """A copy of ``model`` in which the general versions of all groups run."""
    found = model.clone()
    edit = ir.Editor(found)
    for one in list(_guarded(found)):
        edit.set_input(one.node, 0, edit.constant(one.graph, np.array(False), "guard_never"))
    return found


def _compared(one: _Guarded, model: ir.Model, verifier: Verifier, numerics: Numerics) -> GroupComparison:
    """The comparison of the specialized version of a group with the general one."""
    try:
        versions = _versions(one.node, model)
        if isinstance(versions, str):
            return GroupComparison(one.name, 0, versions)
        general, special = versions
        verdict = verify(
            general,
            special,
            numerics=numerics,
            signature=False,
            device=verifier.device,
            seconds=min(verifier.seconds, _SECONDS),
            isolate=verifier.isolated,
            empty=False,
        )
    except SystemExhausted:
        raise
    except GraphoptError as error:
        return GroupComparison(one.name, 0, error.message)
    if verdict.failures:
        return GroupComparison(one.name, len(verdict.rows), verdict.summary(), ok=False)
    return GroupComparison(one.name, len(verdict.rows), verdict.unverifiable)


def _versions(node: ir.Node, model: ir.Model) -> tuple[ir.Model, ir.Model] | str:
    """The general and the specialized version of a group as models; or the reason why that is impossible."""
    known = graphopt_operators.checked_types(node.inputs[0])
    branches = [node.attributes[name].as_graph() for name in ("else_branch", "then_branch")]
    inputs: dict[ir.Value, None] = {}
    for value in (value for branch in branches for value in ir.captures(branch)):
        if ir.constant_of(value) is None:
            inputs[value] = None
    for value in inputs:
        if value.name not in known:
            return f"the input {value.name!r} was replaced after the group was guarded, or is not a tensor"

    def declare(value: ir.Value) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
        entry = known.get(value.name or "") if value in inputs else None
        if entry is None:
            return value.type, None
        dtype, dims = entry
        return ir.TensorType(dtype), None if dims is None else ir.Shape(dims)

    found = []
    for branch in branches:
        graph = ir.extract(list(branch), branch.outputs, list(inputs), declare=declare)
        graph.name = branch.name or "version"
        for result, output in zip(graph.outputs, node.outputs, strict=True):
            result.type = result.type or output.type
        found.append(ir.model_of(graph, model))
    return found[0], found[1]
