"""Compare models by running them, and run them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.compiler.verify_bundle import bundle_of, joined, pairs
from graphopt.device_hints.bf16 import naming_bf16
from graphopt.device_hints.model_hints import model_hints
from graphopt.diagnostics import record
from graphopt.errors import UsageError
from graphopt.instrument.lineage import Lineage
from graphopt.ir.signature import Signature
from graphopt.make_pass_options import inputs_within_ranges, vouch
from graphopt.model_arguments import ModelLike, copy
from graphopt.numerics import Numerics
from graphopt.optimize_options import CompareOptions, DeviceOptions
from graphopt.ort.gpu_properties import gpu_properties
from graphopt.ort.session_options import SessionChoice, recommended
from graphopt.util.argument_checks import checked

if TYPE_CHECKING:
    import numpy as np

    from graphopt.inputs.feeds import InputOptions
    from graphopt.inputs.run_once import TimedRun
    from graphopt.ort.devices import Device
    from graphopt.ort.session import Optimizations
    from graphopt.specialization.bundle.loaded_bundle import Bundle
    from graphopt.verification.inner_tensors.departures import TensorComparison
    from graphopt.verification.verdict import Verdict


@checked
def verify(
    env: Environment,
    original: ModelLike,
    candidate: ModelLike | Bundle,
    *,
    numerics: Numerics = Numerics.REASSOCIATES,
    signature: bool = True,
    bits: bool = False,
    libraries: Sequence[str] | None = None,
    **options: Unpack[CompareOptions],
) -> Verdict:
    """Compare two models by running them: with onnxruntime's optimizations off, and at its defaults.

    >>> verdict = graphopt.verify("model.onnx", "model.onnx")
    >>> verdict.ok
    True

    Args:
        original: a model in any form (:data:`graphopt.ModelLike`).
        candidate: a model in any form, a bundle, or the path of a bundle. A variant of a bundle is compared
            on inputs that its guard accepts, and the general model on all inputs; the verdict has all
            comparisons, with the names of the models.
        numerics: the class of permitted differences.
        signature: also require identical signatures.
        bits: require identical outputs in sessions without onnxruntime's optimizations.
        libraries: libraries of the candidate's operators; the candidate is compared with and without them. By
            default the kernels of its native groups. A bundle has its own.
        options: as for :func:`optimize`; ``dims`` and ``dim_relations`` are declared in both models first.

    Raises:
        UsageError: ``inputs`` does not fit the original, a file does not exist, or ``libraries`` or dims are
            given for a bundle.
        InvalidModel: a file is not a model, or a file of a bundle is damaged.
    """
    env = env.having(options)
    if (bundle := bundle_of(env, candidate)) is not None:
        if libraries is not None:
            raise UsageError(
                "libraries are for models: a bundle has its own", hint="graphopt.Bundle(PATH, trusted=True)"
            )
        of_models = verify_models(
            env, env.load(original), bundle, numerics=numerics, signature=signature, bits=bits
        )
        return joined(dict(of_models))
    original, candidate, inputs = _with_dims(env, original, cast(ModelLike, candidate))
    found = env.load(candidate)
    with env.verifier(original, inputs) as verifier, naming_bf16(lambda: found, env.device):
        _record_hints(env, found, is_verified=True)
        if libraries is None:
            libraries = env.toolchain.paths(found)
        return verifier.verify(found, numerics=numerics, signature=signature, bits=bits, libraries=libraries)


def _with_dims(
    env: Environment, original: ModelLike, candidate: ModelLike
) -> tuple[ModelLike, ModelLike, InputOptions | None]:
    """Both models with the dims of the options, and the inputs within their ranges."""
    from graphopt.inputs.dim_guarantees import fix_dims, relate_dims

    inputs, dims, ranges = env.options["inputs"], env.options["dims"], env.options["dim_ranges"]
    relations = env.options["dim_relations"] or {}
    if dims or ranges or relations:
        original, candidate = copy(env.load(original)), copy(env.load(candidate))
        inputs = inputs_within_ranges(inputs, vouch(original, dims, ranges, relations), env.settings.seed)
        relate_dims(candidate, relations, sizes=dims, strict=False)
        fix_dims(candidate, dims or {}, strict=False)  # the dims of the candidate may already be fixed
    return original, candidate, inputs


@checked
def compare(
    env: Environment,
    a: ModelLike,
    b: ModelLike | None = None,
    *,
    optimizations: Optimizations = "off",
    other_optimizations: Optimizations | None = None,
    other_device: str | Device | None = None,
    numerics: Numerics = Numerics.REASSOCIATES,
    rtol: float | None = None,
    atol: float | None = None,
    bits: bool = False,
    libraries: Sequence[str] | None = None,
    **options: Unpack[CompareOptions],
) -> TensorComparison:
    """Compare the inner tensors of two models, or of two kinds of sessions of one model.

    Both run on the same inputs. Values of the main graphs are matched by name and by provenance. The
    result has the first tensor that departs, errors by depth, and the first NaN and infinity. Models
    run in chunks to limit memory. Tensors of different float types are compared with
    the tolerance of the less precise type.

    >>> graphopt.compare("model.onnx", "model.onnx").first is None
    True

    Args:
        a, b: models in any form (:data:`graphopt.ModelLike`); ``b`` is ``a`` by default.
        optimizations: onnxruntime's own optimizations in the sessions of ``a``. With optimizations, only
            values of the optimized graph are compared.
        other_optimizations: those in the sessions of ``b``; by default the same.
        other_device: the device of ``b``; by default that of ``a``.
        numerics: the class of permitted differences, which sets the tolerances.
        rtol, atol: tolerances relative to the element, and to the largest element, instead of these.
        bits: require identical bits.
        libraries: libraries of operators of ``b``. By default the kernels of its native groups.
        options: as for :func:`optimize`; ``inputs`` are those of ``a``.

    Raises:
        UsageError: ``inputs`` do not fit the models, or a file does not exist.
        UnsupportedModel: no values match.
        RuntimeFailure: a model does not run, or a device can't be used.
        InvalidModel: a file is not a model.
    """
    from graphopt.verification.inner_tensors.chunked_run import SessionKind
    from graphopt.verification.inner_tensors.compare_models import Side, compare_models
    from graphopt.verification.inner_tensors.tensor_comparison import Tolerances

    env = env.having(options)
    names = _names_of(a, b)
    a, b, inputs = _with_dims(env, a, a if b is None else b)
    models = env.load(a), env.load(b)
    other = env if other_device is None else env.having({"device": other_device})
    if libraries is None:
        libraries = other.toolchain.paths(models[1])
    choice = (
        SessionChoice(libraries=tuple(libraries), cpu_level=env.settings.cpu_level) if libraries else None
    )
    ours = Side(names[0], models[0], SessionKind(env.device, optimizations))
    kind = SessionKind(other.device, other_optimizations or optimizations, choice)
    found = Lineage.read(models[1])
    origins = {} if found is None else {one.name: one.originals for one in found.nodes.values()}
    theirs = Side(names[1], models[1], kind, origins)
    _record_hints(env, models[1], is_verified=True)
    tolerances = Tolerances(numerics, rtol, atol, bits)
    with naming_bf16(lambda: models[1], other.device):
        return compare_models(
            ours, theirs, inputs or env.inputs, tolerances, memory=env.settings.memory_limit
        )


def _names_of(a: ModelLike, b: ModelLike | None) -> tuple[str, str]:
    """The names of two models in messages: their paths, or A and B."""
    names = [str(one) if isinstance(one, (str, os.PathLike)) else None for one in (a, b)]
    return names[0] or "model A", names[1] or "model B"


def verify_models(
    env: Environment,
    original: ir.Model,
    bundle: Bundle,
    *,
    numerics: Numerics = Numerics.REASSOCIATES,
    signature: bool = True,
    bits: bool = False,
) -> Iterator[tuple[str, Verdict]]:
    """The comparison of each model of ``bundle``, by name; arguments and errors as for :func:`verify`."""
    for pair in pairs(env, original, bundle):
        yield (
            pair.name,
            verify(
                pair.env,
                pair.original,
                pair.candidate,
                numerics=numerics,
                signature=signature,
                bits=bits,
                libraries=pair.libraries,
            ),
        )


@checked
def run(
    env: Environment,
    model: ModelLike,
    feeds: Mapping[str, Any],
    *,
    optimizations: Optimizations = "default",
    session_options: bool = True,
    libraries: Sequence[str] | None = None,
    **options: Unpack[DeviceOptions],
) -> dict[str, np.ndarray]:
    """Run a model through onnxruntime; returns its outputs by name, in the model's order.

    Outputs are numpy arrays. Sequences are lists of arrays, maps are dicts (not part of the annotated type),
    and an optional without a value is ``None``.

    >>> graphopt.run("model.onnx", {"x": np.zeros((1, 4), np.float32)})
    {'logits': array([[0., 0., 0.]], dtype=float32)}

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`).
        feeds: a numpy array for each input (of ``ml_dtypes`` if numpy lacks the element type); sequences are
            lists, maps are dicts.
        optimizations: onnxruntime's own optimizations, ``default`` or ``off``.
        session_options: use the session options that the model's metadata recommends for the device.
        libraries: paths of operator libraries; by default the kernels of the model's native groups, from the
            store or newly built (:func:`graphopt.list_kernels`).
        options: as for :func:`optimize`.

    Raises:
        UsageError: an input is missing or unknown.
        RuntimeFailure: onnxruntime can't load or run the model, or the device can't be used.
    """
    from graphopt.inputs.run_once import run_once

    env = env.having(options)
    found = env.load(model)
    choice = _choice(env, found, session_options, libraries)
    _record_hints(env, found, tf32=env.device.has_tf32)
    with naming_bf16(lambda: found, env.device):
        return run_once(found, feeds, device=env.device, optimizations=optimizations, choice=choice)


@checked
def try_out(
    env: Environment,
    model: ModelLike,
    inputs: InputOptions | None = None,
    *,
    optimizations: Optimizations = "default",
    session_options: bool = True,
    libraries: Sequence[str] | None = None,
    check_sizes: bool = False,
    **options: Unpack[DeviceOptions],
) -> TimedRun:
    """Run a model on generated inputs that are valid for it.

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`).
        inputs: shapes, arrays in files, and the seed.
        optimizations, session_options, libraries: as for :func:`run`.
        check_sizes: check the number and the shapes of inputs before the run.
        options: as for :func:`optimize`. With ``share_buffers``, the reported run writes outputs over inputs.

    Raises:
        UsageError: ``inputs`` do not fit the model, or buffers can't be shared.
        VerificationFailed: an output may overwrite elements of an input before they are read.
        RuntimeFailure: the model runs on none of the generated inputs.
    """
    from graphopt.inputs import run_once
    from graphopt.specialization.size_checks import SizeChecks

    env = env.having(options)
    found = env.load(model)
    choice = _choice(env, found, session_options, libraries)
    given = inputs or env.inputs
    _record_hints(env, found, tf32=env.device.has_tf32)
    check = SizeChecks(Signature.of(found)).check if check_sizes else None
    with naming_bf16(lambda: found, env.device):
        trial = run_once.try_out(
            found, given, device=env.device, optimizations=optimizations, choice=choice, check=check
        )
    if not env.options["share_buffers"]:
        return trial
    from graphopt.specialization.shared_buffer_checks import shared_names
    from graphopt.specialization.shared_buffer_runs import run_shared

    share = shared_names(env.options["share_buffers"], Signature.of(found))
    return run_shared(
        found, trial.feeds, share, device=env.device, optimizations=optimizations, choice=choice
    )


def _record_hints(
    env: Environment, model: ir.Model, *, tf32: bool | None = None, is_verified: bool = False
) -> None:
    """Record the hints about ``model`` on the device; arguments as for :func:`.model_hints`."""
    device = env.device
    for hint in model_hints(model, device, gpu_properties(device), tf32=tf32, is_verified=is_verified):
        record.hint(hint)


def _choice(
    env: Environment, model: ir.Model, session_options: bool, libraries: Sequence[str] | None
) -> SessionChoice:
    """The session options for ``model``."""
    choice = recommended(model, env.device) if session_options else SessionChoice()
    if libraries is None:
        return choice | env.toolchain.libraries(model).choice
    level = env.settings.cpu_level if libraries else None
    return choice | SessionChoice(libraries=tuple(libraries), cpu_level=level)
