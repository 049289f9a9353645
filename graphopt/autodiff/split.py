"""A joint graph in two: a forward model, and a backward model that takes what the first one saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from graphopt import ir
from graphopt.autodiff.joint import Joint, differentiate
from graphopt.autodiff.losses import Loss, declared_dims
from graphopt.autodiff.rematerialize import Estimates
from graphopt.autodiff.residuals import JointPartition, ResidualSelection, all_residuals, dependents
from graphopt.autodiff.running_statistics import is_training
from graphopt.autodiff.unranked import flatten_unranked
from graphopt.context import Context
from graphopt.driver import context_for, make_pipeline
from graphopt.errors import UsageError

#: Names of values that the forward model returns for the backward model begin so.
SAVED = "saved."


@dataclass(frozen=True)
class Residual:
    """A value that the forward model returns for the backward model alone.

    Attributes:
        name: as it is called in both.
        value: as it is called in the joint graph.
        op: what computes it.
        type: its type, with dims.
        bytes: its size, where dynamic dims are as :attr:`Report.dims` and :attr:`Report.assumed` say.
    """

    name: str
    value: str
    op: str
    type: str
    bytes: int


@dataclass(frozen=True)
class SplitReport:
    """What a split saves, and what that takes.

    Attributes:
        everything: bytes of all forward values that the backward pass would read if it computed nothing
            again.
        saved: bytes of what is saved. Inputs and outputs of the model, which whoever runs it has anyway,
            count in neither.
        budget: the part of ``everything`` that was allowed.
        flops: operations of the joint graph.
        recomputed_flops: those that are done twice.
        recomputed: by operator, how many nodes run twice.
        dims: sizes that were given for dynamic dims.
        assumed: sizes that were assumed for the others.
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
        """The part of ``everything`` that is saved."""
        return self.saved / self.everything if self.everything else 1.0


@dataclass(frozen=True)
class Split:
    """A model that computes and saves, and one that makes gradients of what was saved.

    Attributes:
        joint: the joint graph, which both compute together.
        forward: takes what the model takes; returns what it returns (the loss, running statistics), then what
            is saved.
        backward: takes what is saved; then those outputs of the model that it reads; then gradients of
            outputs; then those inputs of the model that it reads. Returns gradients.
        saved: what is handed over besides, in order.
        report: sizes and costs.
    """

    joint: Joint = field(repr=False)
    forward: ir.Model = field(repr=False)
    backward: ir.Model = field(repr=False)
    saved: tuple[Residual, ...]
    report: SplitReport

    @property
    def handed(self) -> list[str]:
        """The outputs of the forward model that the backward model takes, in its order."""
        returned = frozenset(value.name for value in self.forward.graph.outputs)
        return [value.name or "" for value in self.backward.graph.inputs if value.name in returned]


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
    """Differentiate ``model``, which is left as it is, and split the joint graph.

    Args:
        loss, wrt, outputs: as for :func:`graphopt.autodiff.joint.differentiate`. The gradient of a loss is an
            input of the backward model, too, which is 1 unless it is fed.
        memory_budget: the part of what saving everything takes that may be saved. At 1, the least sum of
            bytes saved and work done twice, as it is weighed by default; below, work counts less and less,
            and what is mostly arithmetic may be done twice, too, until the bytes fit; at 0, as little is
            saved as can be.
        save_all: compute nothing again.
        dims: sizes of dynamic dims for estimates; others are taken as 16.

    Raises:
        UsageError: the budget lies outside of 0 to 1, or a dim is unknown; or see there.
        NoGradient, UnsupportedModel: see there.
    """
    if not 0 <= memory_budget <= 1:
        raise UsageError(f"a memory budget is from 0 to 1, not {memory_budget:g}")
    joint = differentiate(model, loss, wrt, outputs=outputs, scaled=True)
    with context_for(joint.model) as cx:
        _keep_gradients_apart(joint, cx)
        sides = JointPartition(joint.model.graph, joint.cotangents.values(), joint.gradients.values())
        parts = flatten_unranked([node for node in sides.nodes if node not in sides.backward], cx)
        if parts:
            sides = JointPartition(joint.model.graph, joint.cotangents.values(), joint.gradients.values())
        estimates = Estimates(cx, dims or {})
        choice = ResidualSelection(sides, estimates, cx, [*_unknown(sides, cx), *parts])
        kept = all_residuals(sides)
        everything = list(dict.fromkeys(part for value in kept for part in parts.get(value, (value,))))
        size = sum(choice.size(value, estimates) for value in everything)
        if save_all:
            chosen = everything
        else:
            chosen = choice.least() if memory_budget == 1 else choice.within(memory_budget * size)
        return _Writer(joint, sides, chosen, estimates, cx).write(size, memory_budget, dims or {})


def _keep_gradients_apart(joint: Joint, cx: Context) -> None:
    """Let gradients that depend on none that is given be made by nodes of their own."""
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
        chosen: what is saved; where other outputs of its producers have to be computed again, so is it.
    """

    def __init__(
        self,
        joint: Joint,
        sides: JointPartition,
        chosen: Sequence[ir.Value],
        estimates: Estimates,
        cx: Context,
    ) -> None:
        self._joint, self._sides, self._estimates, self._cx = joint, sides, estimates, cx
        self._late = sides.needed(sides.wanted, dict.fromkeys(chosen))
        self._late |= sides.backward
        kept = {value: None for value in chosen if value.producer() not in self._late}
        self._read = dict.fromkeys(
            value for node in sides.nodes if node in self._late for value in sides.reads[node]
        )
        returned = frozenset(sides.outputs)
        self._handed = [value for value in sides.outputs if value in kept and value in self._read]
        self._saved = [value for value in kept if value not in returned and value in self._read]
        self._early = sides.forward | sides.needed(self._saved)

    def write(self, everything: int, budget: float, dims: Mapping[str, int]) -> Split:
        """The split; ``everything`` is what could be saved."""
        sides, joint = self._sides, self._joint
        cotangents = frozenset(joint.cotangents.values())
        inputs = list(joint.model.graph.inputs)
        given = [value for value in inputs if value.name in cotangents]
        plain = [value for value in inputs if value.name not in cotangents]
        gradients = [value for value in joint.model.graph.outputs if value not in frozenset(sides.outputs)]
        names = {value: self._name(value) for value in self._saved}
        forward = self._model(self._early, plain, [*sides.outputs, *self._saved])
        taken = [*self._saved, *self._handed, *given, *(value for value in plain if value in self._read)]
        backward = self._model(self._late, taken, gradients)
        for model, places in (
            (forward, forward.graph.outputs[len(sides.outputs) :]),
            (backward, backward.graph.inputs),
        ):
            with context_for(model) as cx:
                for value, copy in zip(self._saved, places, strict=False):
                    cx.edit.rename(copy, names[value])
                if model is backward:
                    _detach_statistics(cx)
                make_pipeline("dce").run(model, cx)
            fault = ir.find_fault(model)
            if fault is not None:
                raise AssertionError(f"half of the joint graph is broken: {fault.sentence}")
        saved = tuple(self._told(value, names[value]) for value in self._saved)
        again = [node for node in sides.nodes if node in self._early and node in self._late]
        estimates = self._estimates
        report = SplitReport(
            everything,
            sum(item.bytes for item in saved),
            budget,
            sum(map(estimates.flops, sides.nodes)),
            sum(map(estimates.flops, again)),
            dict(sorted(Counter(node.op_type for node in again).items())),
            dict(dims),
            dict(sorted(estimates.assumed.items())),
        )
        return Split(joint, forward, backward, saved, report)

    def _name(self, value: ir.Value) -> str:
        return self._cx.edit.fresh_name(SAVED + (value.name or ""))

    def _told(self, value: ir.Value, name: str) -> Residual:
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
        nodes = [node for node in self._sides.nodes if node in chosen]
        graph = ir.extract(nodes, outputs, inputs, declare=self._declared)
        graph.name = self._joint.model.graph.name
        return ir.model_of(graph, self._joint.model)

    def _declared(self, value: ir.Value) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
        """As the joint graph declares its inputs and outputs, and as facts tell the rest."""
        if value.is_graph_input() or value.is_graph_output() or value.is_initializer():
            return value.type, value.shape
        dims = declared_dims(self._cx, value)
        return self._cx.facts.type(value) or value.type, None if dims is None else ir.Shape(dims)


def _detach_statistics(cx: Context) -> None:
    """Let BatchNormalization in training, which is there for its result, update statistics of no use."""
    for node in list(cx.model.graph):
        if is_training(node):
            spare = cx.edit.make_node("Sub", [node.inputs[1], node.inputs[1]], name="no_statistics")
            cx.edit.insert_before(node, [spare])
            for index in (3, 4):
                cx.edit.set_input(node, index, spare.outputs[0])


def _unknown(sides: JointPartition, cx: Context) -> list[ir.Value]:
    """Values of unknown type, which no model can return."""
    made = [value for node in sides.needed(sides.wanted) for value in node.outputs]
    return [value for value in made if value.name and (cx.facts.type(value) or value.type) is None]
