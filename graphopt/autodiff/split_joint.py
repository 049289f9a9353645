"""Split a joint graph into a forward model and a backward model, whose inputs include the residuals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from graphopt import ir
from graphopt.autodiff.joint_graph import Joint, differentiate
from graphopt.autodiff.losses import Loss, declared_dims
from graphopt.autodiff.recomputation_costs import Estimates
from graphopt.autodiff.residuals import JointPartition, ResidualSelection, all_residuals, dependents
from graphopt.autodiff.return_running_statistics import is_training
from graphopt.autodiff.unranked_residuals import flatten_unranked
from graphopt.context import Context, context_for
from graphopt.errors import UsageError
from graphopt.passes.pipelines import make_pipeline
from graphopt.util.lazy_dataclass import dataclass

#: Prefix of the names of residuals.
SAVED = "saved."


@dataclass(frozen=True)
class Residual:
    """A value that the forward model returns only for the backward model.

    Attributes:
        name: its name in both models.
        value: its name in the joint graph.
        op: the operator that computes it.
        type: its type with dims, such as ``f32[N, 4]``.
        bytes: its size, for the dims of :attr:`SplitReport.dims` and :attr:`SplitReport.assumed`.
    """

    name: str
    value: str
    op: str
    type: str
    bytes: int


@dataclass(frozen=True)
class SplitReport:
    """Sizes and costs of a split.

    Attributes:
        everything: bytes of the residuals if nothing were recomputed.
        saved: bytes of the residuals. Neither number includes inputs and outputs of the model.
        budget: the maximum of ``saved``, as a fraction of ``everything``.
        flops: floating-point operations of the joint graph.
        recomputed_flops: operations that both models perform.
        recomputed: the number of recomputed nodes by operator.
        dims: given sizes of dynamic dims.
        assumed: assumed sizes of other dynamic dims.
    """

    everything: int
    saved: int
    budget: float
    flops: int
    recomputed_flops: int
    recomputed: dict[str, int] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    assumed: dict[str, int] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """The fraction of ``everything`` that is saved."""
        return self.saved / self.everything if self.everything else 1.0


@dataclass(frozen=True)
class Split:
    """A forward model and a backward model.

    Attributes:
        joint: the joint graph, which both compute together.
        forward: the forward model, with the inputs of the model; its outputs are those of the model, the loss
            and running statistics, then the residuals.
        backward: the backward model. Its inputs are the residuals, the required outputs and inputs of the
            model, and the cotangents, in this order. Its outputs are gradients.
        saved: the residuals, in order.
        report: sizes and costs.
    """

    joint: Joint = field(repr=False)
    forward: ir.Model = field(repr=False)
    backward: ir.Model = field(repr=False)
    saved: tuple[Residual, ...]
    report: SplitReport

    @property
    def handed(self) -> list[str]:
        """The outputs of the forward model that the backward model reads, in the order of its inputs."""
        returned = frozenset(value.name for value in self.forward.graph.outputs)
        return [value.name or "" for value in self.backward.graph.inputs if value.name in returned]

    @property
    def static(self) -> list[str]:
        """The first inputs of the backward model, all except cotangents.

        The forward run has computed or read these tensors, so that they need not be copied: the counterpart
        of ``count_tangents`` in ``compile_fx.py``.
        """
        cotangents = frozenset(self.joint.cotangents.values())
        return [value.name or "" for value in self.backward.graph.inputs if value.name not in cotangents]


def split(
    model: ir.Model,
    loss: str | Loss | Sequence[str],
    wrt: str | Iterable[str],
    *,
    outputs: str = "all",
    memory_budget: float = 1.0,
    save_all: bool = False,
    dims: Mapping[str, int] | None = None,
) -> Split:
    """Differentiate ``model``, which is not modified, and split the joint graph.

    Args:
        loss, wrt, outputs: as for :func:`graphopt.autodiff.joint_graph.differentiate`. The cotangent of a
            loss is an input of the backward model, with default 1.
        memory_budget: the fraction of the bytes of all residuals that may be saved. 1 minimizes the sum of
            saved bytes and recomputed work, with the default weight of work. Smaller values lower the weight
            of work, and finally recompute compute-bound operators, until the bytes fit. 0 saves as few bytes
            as possible.
        save_all: recompute nothing.
        dims: sizes of dynamic dims for estimates; other dims count as 16.

    Raises:
        UsageError: the budget is not between 0 and 1, or a dim is unknown; or as for ``differentiate``.
        NoGradient, UnsupportedModel: as for ``differentiate``.
    """
    check_budget(memory_budget)
    joint = differentiate(model, loss, wrt, outputs=outputs, scaled=True)
    return split_joint(joint, memory_budget=memory_budget, save_all=save_all, dims=dims)


def check_budget(memory_budget: float) -> None:
    """Raise UsageError for a fraction that is not between 0 and 1."""
    if not 0 <= memory_budget <= 1:
        raise UsageError(f"the memory budget must be between 0 and 1, not {memory_budget:g}")


def split_joint(
    joint: Joint,
    *,
    memory_budget: float = 1.0,
    save_all: bool = False,
    dims: Mapping[str, int] | None = None,
) -> Split:
    """Split ``joint``, a joint graph with a scaled loss; ``joint.model`` is changed. See :func:`split`."""
    with context_for(joint.model) as cx:
        _separate_constant_gradients(joint, cx)
        partition = JointPartition(joint.model.graph, joint.cotangents.values(), joint.gradients.values())
        parts = flatten_unranked([node for node in partition.nodes if node not in partition.backward], cx)
        if parts:
            partition = JointPartition(joint.model.graph, joint.cotangents.values(), joint.gradients.values())
        estimates = Estimates(cx, dims or {})
        selection = ResidualSelection(partition, estimates, cx, [*_untyped(partition, cx), *parts])
        kept = all_residuals(partition)
        everything = list(dict.fromkeys(part for value in kept for part in parts.get(value, (value,))))
        size = sum(selection.size(value, estimates) for value in everything)
        if save_all:
            chosen = everything
        else:
            chosen = selection.minimum() if memory_budget == 1 else selection.within(memory_budget * size)
        return _Writer(joint, partition, chosen, estimates, cx).write(size, memory_budget, dims or {})


def _separate_constant_gradients(joint: Joint, cx: Context) -> None:
    """Copy gradients that depend on no cotangent by Identity nodes; the copies run in the backward model."""
    names = frozenset(joint.gradients.values())
    graph = joint.model.graph
    dependent = dependents(graph, joint.cotangents.values())
    for index, value in enumerate(graph.outputs):
        if value.name in names and value.producer() not in dependent:
            name, node = value.name or "", cx.edit.make_node("Identity", [value], name=f"{value.name}_alone")
            copy = node.outputs[0]
            cx.edit.append(graph, node)
            copy.type, copy.shape = value.type, value.shape
            cx.edit.set_output(graph, index, copy)
            cx.edit.rename(value, f"{name}_alone")
            cx.edit.rename(copy, name)


class _Writer:
    """Writes both models.

    Args:
        chosen: the residuals. A node with several outputs is recomputed if some output is not a residual.
    """

    def __init__(
        self,
        joint: Joint,
        partition: JointPartition,
        chosen: Sequence[ir.Value],
        estimates: Estimates,
        cx: Context,
    ) -> None:
        self._joint, self._partition, self._estimates, self._cx = joint, partition, estimates, cx
        self._late = partition.needed(partition.crossing, dict.fromkeys(chosen))
        self._late |= partition.backward
        kept = {value: None for value in chosen if value.producer() not in self._late}
        self._read = dict.fromkeys(
            value for node in partition.nodes if node in self._late for value in partition.reads[node]
        )
        returned = frozenset(partition.outputs)
        self._shared = [value for value in partition.outputs if value in kept and value in self._read]
        self._saved = [value for value in kept if value not in returned and value in self._read]
        self._early = partition.forward | partition.needed(self._saved)

    def write(self, everything: int, budget: float, dims: Mapping[str, int]) -> Split:
        """The split; ``everything`` is the size of all residuals without recomputation, in bytes."""
        partition, joint = self._partition, self._joint
        cotangent_names = frozenset(joint.cotangents.values())
        inputs = list(joint.model.graph.inputs)
        cotangents = [value for value in inputs if value.name in cotangent_names]
        plain = [value for value in inputs if value.name not in cotangent_names]
        returned = frozenset(partition.outputs)
        gradients = [value for value in joint.model.graph.outputs if value not in returned]
        names = {value: self._cx.edit.fresh_name(SAVED + (value.name or "")) for value in self._saved}
        forward = self._model(self._early, plain, [*partition.outputs, *self._saved])
        read = [value for value in plain if value in self._read]
        backward = self._model(self._late, [*self._saved, *self._shared, *read, *cotangents], gradients)
        for model, residuals in (
            (forward, forward.graph.outputs[len(partition.outputs) :]),
            (backward, backward.graph.inputs),
        ):
            with context_for(model) as cx:
                for value, copy in zip(self._saved, residuals, strict=False):
                    cx.edit.rename(copy, names[value])
                if model is backward:
                    _detach_statistics(cx)
                make_pipeline("dce").run(model, cx)
            fault = ir.find_fault(model)
            if fault is not None:
                raise AssertionError(f"half of the joint graph is broken: {fault.sentence}")
        saved = tuple(self._residual(value, names[value]) for value in self._saved)
        recomputed = [node for node in partition.nodes if node in self._early and node in self._late]
        estimates = self._estimates
        report = SplitReport(
            everything,
            sum(item.bytes for item in saved),
            budget,
            sum(map(estimates.flops, partition.nodes)),
            sum(map(estimates.flops, recomputed)),
            dict(sorted(Counter(node.op_type for node in recomputed).items())),
            dict(dims),
            dict(sorted(estimates.assumed.items())),
        )
        return Split(joint, forward, backward, saved, report)

    def _residual(self, value: ir.Value, name: str) -> Residual:
        node = value.producer()
        assert node is not None
        kind, shape = self._declared(value)
        copy = ir.Value(name=name, type=kind, shape=shape)
        return Residual(
            name, value.name or "", node.op_type, ir.declared_type(copy) or "", self._estimates.bytes(value)
        )

    def _model(
        self, chosen: Mapping[ir.Node, None], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
    ) -> ir.Model:
        nodes = [node for node in self._partition.nodes if node in chosen]
        graph = ir.extract(nodes, outputs, inputs, declare=self._declared)
        graph.name = self._joint.model.graph.name
        return ir.model_of(graph, self._joint.model)

    def _declared(self, value: ir.Value) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
        """The declared type and shape of an input or output of the joint graph, or the inferred ones."""
        if value.is_graph_input() or value.is_graph_output() or value.is_initializer():
            return value.type, value.shape
        dims = declared_dims(self._cx, value)
        return self._cx.facts.type(value) or value.type, None if dims is None else ir.Shape(dims)


def _detach_statistics(cx: Context) -> None:
    """Make BatchNormalization in training mode update unused statistics instead of the model's."""
    for node in list(cx.model.graph):
        if is_training(node):
            spare = cx.edit.make_node("Sub", [node.inputs[1], node.inputs[1]], name="no_statistics")
            cx.edit.insert_before(node, [spare])
            for index in (3, 4):
                cx.edit.set_input(node, index, spare.outputs[0])


def _untyped(partition: JointPartition, cx: Context) -> list[ir.Value]:
    """Values of unknown type, which no model can return."""
    made = [value for node in partition.needed(partition.crossing) for value in node.outputs]
    return [value for value in made if value.name and (cx.facts.type(value) or value.type) is None]
