"""Optimize a model for weights that are replaced later, and replace them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.compiler.optimization import optimized, pipeline_provides, with_fuser
from graphopt.compiler.record_settings import record_of, write_record
from graphopt.errors import UsageError
from graphopt.instrument.report import Report
from graphopt.model_arguments import ModelLike, PathLike, copy
from graphopt.optimize_options import OptimizeOptions
from graphopt.passes.base import NATIVE_GROUPS
from graphopt.util.argument_checks import checked
from graphopt.util.parse_values import split_names

if TYPE_CHECKING:
    from graphopt.parameters.lifting import Parameters
    from graphopt.parameters.split_constants import SplitConstants

#: The first IR version in which initializers are not inputs.
_DEFAULTS_SINCE = 4


class SplitResult(NamedTuple):
    """The result of :func:`split_constants`; it unpacks as this pair."""

    models: SplitConstants
    report: Report


@checked
def split_constants(
    env: Environment,
    model: ModelLike,
    weights: str | Iterable[str] | None = None,
    *,
    framework: Parameters | Mapping[str, Any] | PathLike | None = None,
    **options: Unpack[OptimizeOptions],
) -> SplitResult:
    """Optimize a model for all contents of its weights, so that they can be replaced later.

    The result is an optimized model, and a constants model, which computes constants of the optimized model
    from weights, such as the weight of a Conv times the scale of a BatchNormalization. Both are compared with
    the original, also for other contents of the weights.

    >>> models, report = graphopt.split_constants("model.onnx")
    >>> models = graphopt.update_weights(models, "finetuned.safetensors")      # doctest: +SKIP

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`); it is not changed. The result of a model of
            IR version 3 has version 4, in which initializers are not inputs.
        weights: names of initializers and Constant nodes; by default, all parameters and running statistics.
            Rewrites that depend on their contents are not made.
        framework: the weights with the contents of ``model``, under the names of the framework that it was
            exported from. New weights may then have these names.
        options: declared in :class:`graphopt.optimize_options.OptimizeOptions`.

    Raises:
        UsageError: a weight does not exist, or the model has no weights; or as for :func:`graphopt.optimize`.
        VerificationFailed: as for :func:`graphopt.optimize`, or for other contents of the weights.
    """
    from graphopt.parameters import selection
    from graphopt.parameters.constant_nodes_to_initializers import constants_to_initializers
    from graphopt.parameters.framework_names import match_names

    env = env.having(options)
    if pipeline_provides(NATIVE_GROUPS, env):
        raise UsageError("native kernels can't be written for split models", hint="-O3")
    source = copy(env.load(model))
    if source.ir_version < _DEFAULTS_SINCE:
        ir.Editor(source).raise_ir_version(_DEFAULTS_SINCE)
    constants_to_initializers(source, split_names(weights or ()), weights=weights is None)
    found = selection.weights(source) if weights is None else selection.chosen(source, weights)
    if not found:
        raise UsageError("the model has no weights", hint="name initializers or Constant nodes")
    models, report = _optimized_and_split(env, source, [value.name or "" for value in found])
    names = None if weights is None else split_names(weights)
    record = record_of(with_fuser(env), split_constants, weights=names)
    write_record(record, models.main, models.constants)
    report = report.having(settings="" if record is None else record.to_json())
    if framework is not None:
        models = replace(models, names=match_names(found, as_weights(framework)))
    return SplitResult(models, report)


def _optimized_and_split(env: Environment, source: ir.Model, names: list[str]) -> SplitResult:
    from graphopt.inputs.dim_guarantees import fix_dims
    from graphopt.parameters.lifting import Parameters, unlift
    from graphopt.parameters.split_constants import SplitConstants

    model, report = optimized(env, source, names)
    models = SplitConstants.of(model)
    is_changed = models.settle()
    fix_dims(source, env.options["dims"] or {})
    if env.settings.verify and is_changed:
        env.compared(source, [models.main], "the constants model does not compute the model's constants")
    if env.settings.verify and models.weights:
        other = Parameters({name: _changed(source.graph.initializers[name]) for name in names})
        original = copy(source)
        unlift(original, other)
        subject = "with other weights, the optimized model does not compute the same as the original"
        env.compared(original, [models.having(other, partial=True).main], subject)
    env.created_graph("optimized-graph", models.main)
    env.created_graph("constants-graph", models.constants)
    return SplitResult(models, report)


def _changed(weight: ir.Value) -> ir.TensorProtocol:
    """Other contents for a weight, of the same signs, so that variances stay positive.

    Integers are permuted, so that indices stay in their range.
    """
    assert weight.const_value is not None
    array = weight.const_value.numpy()
    random = np.random.default_rng(0)
    if array.dtype.kind in "biu":
        return ir.Tensor(
            random.permutation(array.reshape(-1)).reshape(array.shape), dtype=weight.const_value.dtype
        )
    with np.errstate(over="ignore", invalid="ignore"):
        exact = array.astype(np.float64)
        shift = 1e-3 * np.abs(exact).max(initial=1.0, where=np.isfinite(exact))
        noise = random.uniform(1.0, 1.1, array.shape)
        changed = (exact * noise + shift).astype(array.dtype)
        finite = np.isfinite(changed.astype(np.float64))
    return ir.Tensor(np.where(finite, changed, array), dtype=weight.const_value.dtype)


@checked
def update_weights(
    env: Environment,
    models: SplitConstants | PathLike,
    weights: Parameters | Mapping[str, Any] | PathLike,
    *,
    partial: bool = False,
) -> SplitConstants:
    """Replace weights of a model that :func:`split_constants` optimized, without optimizing again.

    The constants model computes the new constants.

    Args:
        models: the split model, or its folder; it is not changed.
        weights: tensors by name, or the path of a ``.safetensors``, ``.npz`` or model file. Weights that are
            not given keep their contents.
        partial: also accept tensors that the model lacks although weights are not given, which is likely a
            difference of names.

    Raises:
        UsageError: a tensor does not fit, no tensor is a weight, a tensor belongs to an initializer that is
            not a weight, or constants can't be computed from the new contents.
        InvalidModel: a file of the folder is damaged.
        RuntimeFailure: onnxruntime fails to run the constants model.
    """
    from graphopt.parameters.split_constants import SplitConstants

    if not isinstance(models, SplitConstants):
        models = SplitConstants.load(models)
    return models.having(as_weights(weights), partial=partial)


def as_weights(weights: Parameters | Mapping[str, Any] | PathLike) -> Parameters:
    """Weights by name, from arrays or from a file: ``.safetensors``, ``.npz``, or a model."""
    from graphopt.parameters import parameter_files
    from graphopt.parameters.lifting import Parameters, as_parameters

    if isinstance(weights, Mapping):
        return as_parameters(weights)
    if isinstance(weights, Parameters):
        return weights
    path = Path(weights)
    if path.suffix.lower() in parameter_files.SUFFIXES:
        return parameter_files.read(path)
    model = ir.load(path)
    tensors = {
        value.name or "": tensor
        for graph in ir.with_bodies(model.graph)
        for value in ir.constants_in(graph)
        if (tensor := ir.constant_of(value)) is not None
    }
    return Parameters(tensors)
