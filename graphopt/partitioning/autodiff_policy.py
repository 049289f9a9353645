"""The policy for groups that are differentiated as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from functools import cached_property

from graphopt import ir
from graphopt.autodiff import rule_registry
from graphopt.autodiff.reverse_mode import may_be_float
from graphopt.autodiff.rule_registry import Gradient, NonDifferentiable
from graphopt.autodiff.sequence_loop_builders import is_sequence
from graphopt.autodiff.wrt import ALL
from graphopt.context import Context
from graphopt.ops import traits
from graphopt.partitioning.policy_interface import Decision, Role
from graphopt.partitioning.redundant_nodes import executed
from graphopt.partitioning.requires_grad import requires_grad, sources
from graphopt.util.lazy_dataclass import dataclass

#: Reason to include a node in a group.
MEMBER_REASON = "its operands require a gradient"
#: The seven operators of PyTorch's JIT: view, view_as, reshape, reshape_as, transpose, expand, expand_as.
VIEWS = traits.VIEW - {"Identity"}


@dataclass(eq=False)
class AutodiffPolicy:
    """Groups of differentiable operators that depend on the variables of differentiation.

    Modelled on ``create_autodiff_subgraphs.cpp`` of PyTorch's JIT (``shouldConsiderForMerge``); an operator
    is differentiable if :mod:`graphopt.autodiff` has a gradient rule for it.

    Attributes:
        cx: analyses of the model.
        wrt: the variables of differentiation, as for :func:`graphopt.partitioning.requires_grad.sources`.
        minimum: the minimum size of a group, in distinct computations; Identity and Constant do not count.
        views: whether operators that only move elements may be members. PyTorch's JIT excludes such
            operators, because a view shares memory with its operand.
        no_grad: names of nodes, or of scopes of nodes, whose results have no gradient.
    """

    cx: Context
    wrt: str | Iterable[str] = ALL
    minimum: int = 2
    views: bool = True
    no_grad: Sequence[str] = ()
    kind: str = "autodiff"
    _standard: dict[tuple[str, str, int], bool] = field(default_factory=dict)

    @cached_property
    def starts(self) -> list[ir.Value]:
        """The variables of differentiation."""
        return sources(self.cx.model, self.wrt, self.cx)

    @cached_property
    def _inner_starts(self) -> dict[ir.Value, None]:
        """The variables of differentiation that are computed: their gradients are needed between groups."""
        return {value: None for value in self.starts if value.producer() is not None}

    @cached_property
    def requiring_grad(self) -> dict[ir.Value, None]:
        """The values that require a gradient; passes that replace such a value add the replacement."""
        return requires_grad(self.starts, self.cx, lambda node: self._scope(node) is not None)

    def size(self, nodes: Sequence[ir.Node]) -> int:
        """The number of distinct computations, counted up to the minimum."""
        return executed(nodes, self.minimum)

    def is_ordered(self, node: ir.Node) -> bool:
        """Whether ``node`` is random, stateful, unknown or a guard."""
        return self.cx.has_to_run(node) or not self.cx.is_deterministic(node)

    def decide(self, node: ir.Node) -> Decision:
        """The role of ``node``, by its operator, results and operands."""
        excluded = self._reason_to_exclude(node)
        if excluded is not None:
            return Decision(Role.BOUNDARY, excluded)
        if any(output in self._inner_starts for output in node.outputs):
            return Decision(Role.BOUNDARY, "its result is a value to differentiate by")
        if not any(output.name and may_be_float(output, self.cx) for output in node.outputs):
            return Decision(Role.PASSTHROUGH, "its results are not floating-point numbers")
        gradient = rule_registry.find(node.domain, node.op_type, self.cx.version(node))
        if isinstance(gradient, NonDifferentiable):
            return Decision(Role.PASSTHROUGH, f"no gradient flows through it: {gradient.reason}")
        depends = any(output in self.requiring_grad for output in node.outputs)
        if not (depends and any(value in self.requiring_grad for value in ir.reads(node))):
            # a value that depends on a group only through sizes, such as a mask, is allowed between members
            # of the group
            return Decision(Role.PASSTHROUGH, "its operands require no gradient")
        if gradient is None and not self._has_standard_gradient(node):
            return Decision(
                Role.BOUNDARY,
                f"no gradient is known for {rule_registry.qualified(node.domain, node.op_type)}",
            )
        if not self.views and node.domain == "" and node.op_type in VIEWS:
            return Decision(Role.BOUNDARY, "views are excluded")
        if node.op_type == "Identity" and node.domain == "":
            return Decision(Role.PASSTHROUGH, "it only copies its operand")
        return self._by_bodies(node)

    def _reason_to_exclude(self, node: ir.Node) -> str | None:
        """The reason why ``node`` can't be in any group, regardless of its operands."""
        cx = self.cx
        if cx.has_to_run(node):
            return "it contains a guard, which can't be moved"
        if node.op_identifier() in cx.model.functions:
            return "it calls a function of the model; run inline-functions first"
        if not cx.is_deterministic(node):
            return _state(node)
        scope = self._scope(node)
        if scope is not None:
            return f"gradients are disabled in {scope}"
        values = [*node.inputs, *node.outputs]
        if any(value is not None and value.name and is_sequence(value, cx) for value in values):
            return "it reads or returns a sequence"
        if ir.is_beyond_standard(node.domain, node.op_type, cx.version(node)):
            return "onnxruntime crashes on its own operators in functions"
        if node.domain != "" and node.attributes and ir.bodies(node):
            return "onnxruntime fails on operators with bodies of other domains in functions"
        if node.op_type == "MeanVarianceNormalization" and "axes" not in node.attributes:
            return "onnxruntime fails on it in functions unless its axes are explicit"
        return None

    def _by_bodies(self, node: ir.Node) -> Decision:
        """Either a node is a member with all of its bodies, or its bodies have separate groups."""
        for body in ir.bodies(node) if node.attributes else ():
            for inner in ir.walk_nodes(body):
                why = self._reason_to_exclude(inner)
                found = rule_registry.find(inner.domain, inner.op_type, self.cx.version(inner))
                if why is None and found is None and not self._has_standard_gradient(inner):
                    why = f"no gradient is known for {rule_registry.qualified(inner.domain, inner.op_type)}"
                if why is not None and not (inner.op_type == "Constant" and inner.domain == ""):
                    return Decision(Role.BOUNDARY, f"{ir.label(inner)} in its body is excluded: {why}")
        return Decision(Role.MEMBER)

    def _scope(self, node: ir.Node) -> str | None:
        """The scope with disabled gradients that contains ``node``."""
        if not self.no_grad:
            return None
        at: ir.Node | None = node
        while at is not None:
            names, noted = (*ir.origins(at), ir.label(at)), ir.noted_scopes(at)
            for scope in self.no_grad:
                if scope in noted or any(ir.is_within(name, scope) for name in names):
                    return scope
            at = None if at.graph is None else self.cx.edit.scopes.holder(at.graph)
        return None

    def _has_standard_gradient(self, node: ir.Node) -> bool:
        """Whether the standard defines ``node`` as a function of differentiable operators."""
        version = self.cx.version(node)
        key = (node.domain, node.op_type, version)
        if key not in self._standard:
            self._standard[key] = self._look_up(node, version)
        return self._standard[key]

    def _look_up(self, node: ir.Node, version: int) -> bool:
        kinds = []
        for value in node.inputs:
            dtype = None if value is None else self.cx.dtype(value)
            kinds.append(None if dtype is None else ir.TensorKind(dtype, None))
        standard = ir.standard_function(node, version, kinds)
        if standard is None:
            return False
        found = [
            rule_registry.find(inner.domain, inner.op_type, version) for inner in standard.function.graph
        ]
        return any(isinstance(item, Gradient) for item in found)


def _state(node: ir.Node) -> str:
    if traits.is_random(node):
        trains = node.op_type in ("Dropout", "BatchNormalization")
        return "it updates state, in order" if trains else "it draws random numbers, in order"
    if node.attributes and ir.bodies(node):
        return "its body has side effects, in order"
    return f"{rule_registry.qualified(node.domain, node.op_type)} is unknown"
