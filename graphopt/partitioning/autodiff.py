"""The policy for groups that are differentiated as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from graphopt import ir
from graphopt.autodiff import registry
from graphopt.autodiff.lib.sequences import is_sequence
from graphopt.autodiff.registry import Gradient, NonDifferentiable
from graphopt.autodiff.reverse import is_real
from graphopt.autodiff.wrt import ALL
from graphopt.context import Context
from graphopt.ops import traits
from graphopt.partitioning.duplicates import executed
from graphopt.partitioning.policy import Decision, Role
from graphopt.partitioning.requires_grad import requires_grad, sources

#: The seed's seven: view, view_as, reshape, reshape_as, transpose, expand, expand_as.
VIEWS = traits.VIEW - {"Identity"}


@dataclass(eq=False)
class AutodiffPolicy:
    """A group holds operators with gradients that depend on what is differentiated by.

    The seed is ``create_autodiff_subgraphs.cpp`` of PyTorch's JIT (``shouldConsiderForMerge``), with
    ``isDifferentiable`` told by the gradients of :mod:`graphopt.autodiff`.

    Attributes:
        cx: facts about the model.
        wrt: what is differentiated by, as for :func:`graphopt.partitioning.requires_grad.sources`.
        minimum: nodes of a group, each computation counted once; Identity and Constant do not count.
        views: whether operators that only move elements may be in groups. In the seed they may not,
            because there a view shares the memory of what it views; here nothing does.
        no_grad: names of nodes, or scopes of them: what they compute has no gradient.
    """

    cx: Context
    wrt: str | Iterable[str] = ALL
    minimum: int = 2
    views: bool = True
    no_grad: Sequence[str] = ()
    kind: str = "autodiff"
    _spelt_out: dict[tuple[str, str, int], bool] = field(default_factory=dict)

    @cached_property
    def wanted(self) -> dict[ir.Value, None]:
        """The values of which a gradient is wanted; who replaces them adds what stands for them."""
        starts = sources(self.cx.model, self.wrt, self.cx)
        return requires_grad(starts, self.cx, lambda node: self._scope(node) is not None)

    def size(self, nodes: Sequence[ir.Node]) -> int:
        """The nodes that are executed, as far as the minimum."""
        return executed(nodes, self.minimum)

    def is_ordered(self, node: ir.Node) -> bool:
        """Random and stateful nodes, those of which nothing is known, and guards run in their order."""
        return self.cx.has_to_run(node) or not self.cx.is_deterministic(node)

    def decide(self, node: ir.Node) -> Decision:
        """Where ``node`` may stand, by what it is, what it computes and what it reads."""
        barred = self._barred(node)
        if barred is not None:
            return Decision(Role.BOUNDARY, barred)
        if not any(output.name and is_real(output, self.cx) for output in node.outputs):
            return Decision(Role.PASSTHROUGH, "its results are no real numbers")
        gradient = registry.find(node.domain, node.op_type, self.cx.version(node))
        if isinstance(gradient, NonDifferentiable):
            return Decision(Role.PASSTHROUGH, f"no gradient flows through it: {gradient.reason}")
        depends = any(output in self.wanted for output in node.outputs)
        if not (depends and any(value in self.wanted for value in ir.reads(node))):
            # what depends on a group by sizes alone, as a mask may, lies between nodes of it
            return Decision(Role.PASSTHROUGH, "no gradient is wanted of what it reads")
        if gradient is None and not self._is_spelt_out(node):
            return Decision(
                Role.BOUNDARY, f"no gradient is known for {registry.qualified(node.domain, node.op_type)}"
            )
        if not self.views and node.domain == "" and node.op_type in VIEWS:
            return Decision(Role.BOUNDARY, "views are kept out")
        if node.op_type == "Identity" and node.domain == "":
            return Decision(Role.PASSTHROUGH, "it only passes on what it reads")
        return self._by_bodies(node)

    def _barred(self, node: ir.Node) -> str | None:
        """What bars ``node`` from all groups, whatever it reads."""
        cx = self.cx
        if cx.has_to_run(node):
            return "it holds a guard, which is checked where it stands"
        if node.op_identifier() in cx.model.functions:
            return "it calls a function of the model; inline-functions puts its nodes here"
        if not cx.is_deterministic(node):
            return _state(node)
        scope = self._scope(node)
        if scope is not None:
            return f"no gradient is wanted in {scope}"
        values = [*node.inputs, *node.outputs]
        if any(value is not None and value.name and is_sequence(value, cx) for value in values):
            return "it handles a sequence"
        if ir.is_beyond_standard(node.domain, node.op_type, cx.version(node)):
            return "it is an operator that onnxruntime adds, on which it crashes in functions"
        if node.domain != "" and node.attributes and ir.bodies(node):
            return "it is of another domain and has a body, on which onnxruntime fails in functions"
        if node.op_type == "MeanVarianceNormalization" and "axes" not in node.attributes:
            return "onnxruntime fails on it in functions, unless its axes are told"
        return None

    def _by_bodies(self, node: ir.Node) -> Decision:
        """A node goes inside with all of its bodies, or these have groups of their own."""
        for body in ir.bodies(node) if node.attributes else ():
            for inner in ir.walk_nodes(body):
                why = self._barred(inner)
                found = registry.find(inner.domain, inner.op_type, self.cx.version(inner))
                if why is None and found is None and not self._is_spelt_out(inner):
                    why = f"no gradient is known for {registry.qualified(inner.domain, inner.op_type)}"
                if why is not None and not (inner.op_type == "Constant" and inner.domain == ""):
                    return Decision(Role.BOUNDARY, f"{ir.label(inner)} in its body bars it: {why}")
        return Decision(Role.MEMBER)

    def _scope(self, node: ir.Node) -> str | None:
        """The scope without gradients that ``node`` stands in."""
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

    def _is_spelt_out(self, node: ir.Node) -> bool:
        """Whether the standard spells ``node`` out in operators that have gradients."""
        version = self.cx.version(node)
        key = (node.domain, node.op_type, version)
        if key not in self._spelt_out:
            self._spelt_out[key] = self._look_up(node, version)
        return self._spelt_out[key]

    def _look_up(self, node: ir.Node, version: int) -> bool:
        kinds = []
        for value in node.inputs:
            dtype = None if value is None else self.cx.dtype(value)
            kinds.append(None if dtype is None else ir.TensorKind(dtype, None))
        spelt = ir.standard_function(node, version, kinds)
        if spelt is None:
            return False
        found = [registry.find(inner.domain, inner.op_type, version) for inner in spelt.function.graph]
        return any(isinstance(item, Gradient) for item in found)


def _state(node: ir.Node) -> str:
    if traits.is_random(node):
        trains = node.op_type in ("Dropout", "BatchNormalization")
        return "it trains, and keeps its turn" if trains else "it draws random numbers, and keeps its turn"
    if node.attributes and ir.bodies(node):
        return "its body holds a node that keeps its turn"
    return f"nothing is known of {registry.qualified(node.domain, node.op_type)}"
