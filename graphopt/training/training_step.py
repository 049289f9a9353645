"""A model that performs a training step: from parameters and state to the loss and their next values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from graphopt import ir, publish
from graphopt.autodiff import differentiate_by_group, joint_graph
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.joint_graph import Joint
from graphopt.autodiff.losses import Loss
from graphopt.autodiff.return_running_statistics import PREFIX as STATE
from graphopt.context import Context, context_for
from graphopt.errors import UsageError, unknown
from graphopt.model_arguments import PathLike, placement
from graphopt.parameters import parameter_files
from graphopt.parameters.lifting import Parameters, lift
from graphopt.parameters.selection import split_names
from graphopt.passes.pipelines import make_pipeline
from graphopt.training.optimizers import Optimizer
from graphopt.training.parameter_update import Update
from graphopt.training.step_plan import KEY, NEW, RATE, Plan
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.weight_placement import WeightPlacement


@dataclass
class TrainingStep:
    """A model that performs a training step, and initial values.

    Attributes:
        model: the model. Its inputs are those of the original, the target of the loss, parameters, running
            statistics, state and ``learning_rate``; it returns the loss and the next value of each of
            ``plan.carried``.
        plan: the roles of inputs and outputs.
        initial: the initial values of ``plan.carried``.
        source: the model to train.
        groups, inlined, excluded: as for :class:`~graphopt.autodiff.joint_graph.Joint`; parameters in
            ``excluded`` are not trained.
    """

    model: ir.Model = field(repr=False)
    plan: Plan
    initial: dict[str, np.ndarray] = field(repr=False)
    source: ir.Model = field(repr=False)
    groups: int | None = None
    inlined: dict[str, str] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)

    def save(
        self,
        path: PathLike,
        state: PathLike | None = None,
        *,
        weights: WeightPlacement | None = None,
        external_data: bool | None = None,
    ) -> list[Path]:
        """Write the model and its initial values (by default ``*.safetensors`` beside it); returns the files.

        The plan is also written as ``*.training.json`` beside the model. All files are written before the
        first is published, and the model is published last.

        Args:
            weights: as for :func:`graphopt.save`; ``copy`` by default.
            external_data: deprecated, use ``weights="beside"`` or ``"inside"``.

        Raises:
            TypeError: both ``weights`` and ``external_data`` are given.
            UsageError: a file can't be written; in this case, no file is written.
            ResourceLimit: the disk is full; in this case, no file is written.
        """
        place = placement(weights, external_data, stacklevel=3) or "copy"
        path = Path(path)
        state = state_file(path) if state is None else Path(state)
        parameter_files.check_suffix(state)
        for folder in (path.parent, state.parent):
            if not folder.is_dir():
                raise UsageError(f"there is no folder {folder}", hint=f"mkdir -p {folder}")
        plan = plan_file(path)
        tensors = {name: ir.tensor(data, name=name) for name, data in self.initial.items()}
        with (
            ir.saving(self.model, path, weights=place) as written,
            publish.staged(plan, self.plan.to_json() + "\n"),
            parameter_files.staged(state, Parameters(tensors)),
        ):
            pass
        return [*written, state, plan]


def state_file(path: Path) -> Path:
    """The default file of the initial values of the model at ``path``."""
    return path.with_suffix(".safetensors")


def plan_file(path: Path) -> Path:
    """The file of the plan of the model at ``path``."""
    return path.with_suffix(".training.json")


def write_step(
    model: ir.Model,
    loss: str | Loss,
    optimizer: Optimizer,
    wrt: str | Iterable[str] = "params",
    *,
    learning_rate: float | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    no_decay: Iterable[str] = (),
    outputs: str = "loss",
    by_group: bool = False,
) -> TrainingStep:
    """A training step of ``model``, which is not modified.

    Args:
        loss: the name of a value with one element, or a loss function.
        optimizer: the optimizer.
        wrt: names of initializers to train, or ``params`` for initializers that look like parameters.
        learning_rate: the learning rate in the plan, by default the optimizer's. The model accepts any rate.
        clip_norm: the maximum global norm of the gradients.
        accumulate: the number of steps whose gradients are averaged for an update.
        no_decay: names of parameters without weight decay, or patterns such as ``*.bias``.
        outputs: ``loss``, or ``all`` to also return the outputs of the model.
        by_group: differentiate groups of nodes; see :mod:`graphopt.autodiff.differentiate_by_group`.

    Raises:
        UsageError: a setting is out of range, a name is unknown or already used, or no parameter is selected.
        NoGradient: a requested gradient depends on an operator without a gradient.
        UnsupportedModel: the model can't be converted to an opset that gradient rules support.
    """
    rate = optimizer.rate if learning_rate is None else learning_rate
    _check_settings(rate, clip_norm, accumulate)
    function = differentiate_by_group.differentiate if by_group else joint_graph.differentiate
    joint = function(model, loss, wrt, outputs=outputs)
    if joint.loss in joint.model.graph.initializers:
        raise UsageError(f"{joint.loss!r} is a parameter, not a computed value")
    names = _parameter_names(joint)
    exempt = _matching(split_names(no_decay, names), names)
    statistics = [name for name in joint.state if name in joint.model.graph.initializers]
    initial = {
        name: tensor.numpy() for name, tensor in lift(joint.model, [*names, *statistics]).tensors.items()
    }
    update = Update(optimizer, clip_norm, accumulate, lambda name: name not in exempt)
    with context_for(joint.model) as cx:
        state = _write(cx, joint, update, names, statistics)
    initial |= {
        name: np.zeros((), np.int64) if like is None else np.zeros_like(initial[like])
        for name, like in state.items()
    }
    with context_for(joint.model) as cx:
        make_pipeline("joint").run(joint.model, cx)
    plan = _plan_of(joint, update, rate, names, statistics, list(state), exempt)
    joint.model.metadata_props[KEY] = plan.to_json()
    fault = ir.find_fault(joint.model)
    if fault is not None:
        raise AssertionError(f"the training step is broken: {fault.sentence}")
    return TrainingStep(joint.model, plan, initial, model, joint.groups, joint.inlined, joint.excluded)


def _check_settings(rate: float, clip_norm: float | None, accumulate: int) -> None:
    if not rate > 0 or not math.isfinite(rate):
        raise UsageError(f"the learning rate must be positive, not {rate:g}")
    if clip_norm is not None and (not clip_norm > 0 or not math.isfinite(clip_norm)):
        raise UsageError(f"the maximum gradient norm must be positive, not {clip_norm:g}")
    if accumulate < 1 or accumulate != int(accumulate) or accumulate >= 2**31:
        raise UsageError(f"the number of accumulated steps must be a positive integer, not {accumulate}")


def _parameter_names(joint: Joint) -> list[str]:
    """The names of the parameters.

    Raises:
        UsageError: a named value is not an initializer, or the loss does not depend on it.
    """
    own = joint.model.graph.initializers
    for name in joint.gradients:
        if name in joint.unrelated:
            raise UsageError(f"the loss does not depend on {name!r}")
        if name not in own:
            raise UsageError(
                f"{name!r} has no initial value: it is not an initializer",
                hint="graphopt unlift-parameters makes inputs initializers",
            )
    return list(joint.gradients)


def _matching(patterns: Iterable[str], names: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for pattern in patterns:
        matches = [name for name in names if name == pattern or fnmatchcase(name, pattern)]
        if not matches:
            raise unknown("parameter", pattern, names, "graphopt inspect -v shows initializers")
        found |= dict.fromkeys(matches)
    return [name for name in names if name in found]


def _write(
    cx: Context, joint: Joint, update: Update, names: Sequence[str], statistics: Sequence[str]
) -> dict[str, str | None]:
    """Append the update and its outputs; returns names of state, with the parameter of the same shape."""
    graph = cx.model.graph
    inputs = {value.name or "": value for value in graph.inputs}
    returned = {value.name or "": value for value in graph.outputs}
    parameters = {name: inputs[name] for name in names}
    shapes = update.zeros(names)
    _check_free(cx, [RATE, *shapes, *(NEW + name for name in (*names, *statistics, *shapes))])

    gradients = {name: returned.pop(joint.gradients[name]) for name in names}
    running = {name: returned[joint.state[name]] for name in statistics}
    for name in statistics:
        if joint.state[name].startswith(STATE):  # other names are outputs of the original
            del returned[joint.state[name]]
    loss = returned.pop(joint.loss or "")
    cx.edit.set_outputs(graph, [loss, *returned.values()])

    state = {}
    for slot, owner in shapes.items():
        like = None if owner is None else parameters[owner]
        dims = [] if like is None or like.shape is None else list(like.shape)
        dtype = ir.DataType.INT64 if like is None else like.dtype
        assert dtype is not None
        state[slot] = cx.edit.add_input(slot, dtype, dims)
    rate = cx.edit.add_input(RATE, ir.DataType.FLOAT, [])
    op = GraphBuilder(cx, graph)
    op.prefix = update.optimizer.name
    new = update.write(op, rate, parameters, gradients, state) | running
    carried = {**parameters, **{name: inputs[name] for name in statistics}, **state}
    for name, tensor in carried.items():
        value = op.Identity(new[name]) if new[name].is_graph_output() else new[name]
        cx.edit.rename(value, NEW + name)
        assert tensor.dtype is not None
        cx.edit.declare(value, tensor.dtype, [dim for dim in tensor.shape or () if isinstance(dim, int)])
        cx.edit.add_output(graph, value)
    op.drop_constants()
    return shapes


def _check_free(cx: Context, names: Iterable[str]) -> None:
    used = {value.name for graph in ir.graphs_of(cx.model) for value in ir.values_of(graph)}
    for name in names:
        if name in used:
            raise UsageError(
                f"the model already has a value {name!r}, a name that training uses",
                hint="rename it, or train with another optimizer",
            )


def _plan_of(
    joint: Joint,
    update: Update,
    rate: float,
    names: list[str],
    statistics: list[str],
    state: list[str],
    exempt: list[str],
) -> Plan:
    graph, loss = joint.model.graph, joint.loss or ""
    carried = {*names, *statistics, *state, RATE}
    fed = [
        value.name or "" for value in graph.inputs if value.name not in carried and not value.is_initializer()
    ]
    new = {NEW + name for name in carried}
    returned = [value.name or "" for value in graph.outputs if value.name not in new and value.name != loss]
    return Plan(
        loss=loss,
        inputs=fed,
        outputs=returned,
        parameters=names,
        statistics=statistics,
        state=state,
        learning_rate=rate,
        optimizer=update.optimizer.to_dict(),
        no_decay=exempt,
        clip_norm=update.clip_norm,
        accumulate=update.accumulate,
    )
