"""The Python interface: functions on models, with the current settings.

>>> import graphopt
>>> model, report = graphopt.optimize(graphopt.load_model("model.onnx"))
>>> report.original.nodes, report.optimized.nodes
(3, 1)
>>> graphopt.save(model, "model.opt.onnx")
[PosixPath('model.opt.onnx')]

Options that are also settings (:class:`graphopt.config.Settings`) default to the current settings: those of
the environment, of :func:`graphopt.config.patch`, or of :func:`graphopt.config.using`.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from graphopt import config, ir
from graphopt.compiler import Compiler
from graphopt.compiler.bailouts import Bailed
from graphopt.compiler.optimization import Result
from graphopt.context import context_for
from graphopt.errors import UsageError
from graphopt.instrument.report import Report
from graphopt.ir.io.foreign_formats import bundle_error
from graphopt.make_pass_options import make_options, vouch
from graphopt.model_arguments import ModelLike, PathLike, copy, save, to_proto
from graphopt.ort.devices import choose_device
from graphopt.passes.pipelines import make_pipeline
from graphopt.util.argument_checks import checked
from graphopt.util.text_tables import counted

if TYPE_CHECKING:
    from graphopt.specialization.bundle.loaded_bundle import Bundle

P = ParamSpec("P")
R = TypeVar("R")


def _function(method: Callable[Concatenate[Compiler, P], R]) -> Callable[P, R]:
    """``method`` of a compiler as a function that uses the current settings."""
    signature = inspect.signature(method)
    parameters = list(signature.parameters.values())[1:]
    most = sum(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters)

    @functools.wraps(method)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        if (count := len(arguments)) > most:
            raise TypeError(
                f"{call.__name__}() takes {counted(most, 'positional argument')} but {count} were given"
            )
        return method(Compiler(), *arguments, **keywords)

    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


optimize = _function(Compiler.optimize)
explain = _function(Compiler.explain)
lineage = _function(Compiler.lineage)
verify = _function(Compiler.verify)
compare = _function(Compiler.compare)
report = _function(Compiler.report)
run = _function(Compiler.run)
try_out = _function(Compiler.try_out)
record_profile = _function(Compiler.record_profile)
specialize = _function(Compiler.specialize)
bailout = _function(Compiler.bailout)
with_bailouts = _function(Compiler.with_bailouts)
differentiate = _function(Compiler.differentiate)
split = _function(Compiler.split)
verify_split = _function(Compiler.verify_split)
value_and_grad = _function(Compiler.value_and_grad)
train_step = _function(Compiler.train_step)
aot_compile = _function(Compiler.aot_compile)
partition = _function(Compiler.partition)
with_groups = _function(Compiler.with_groups)
list_kernels = _function(Compiler.list_kernels)
build_kernels = _function(Compiler.build_kernels)
race_kernels = _function(Compiler.race_kernels)
lift_parameters = _function(Compiler.lift_parameters)
unlift_parameters = _function(Compiler.unlift_parameters)
split_constants = _function(Compiler.split_constants)
update_weights = _function(Compiler.update_weights)
if TYPE_CHECKING:
    compile = Compiler().compile  # keeps the overloads of the method
else:
    compile = _function(Compiler.compile)


@checked
def load(
    source: ModelLike, *, allow_external: Sequence[PathLike] | None = None, trusted: bool = False
) -> ir.Model | Bundle:
    """Load a model, as :func:`load_model` does, or a bundle of variants.

    A bundle is named by its folder, the ``manifest.json`` in it, or its zip file. :func:`load_model` and
    :class:`graphopt.Bundle` have precise types, and :class:`graphopt.Bundle` also accepts a device.

    Args:
        source: a model in any form (:data:`graphopt.ModelLike`), or the path of a bundle.
        allow_external: for a model, further folders that may contain external data.
        trusted: for a bundle, load its own library of native kernels, which is code.

    Raises:
        TypeError: ``source`` is not a model in an accepted form.
        UsageError: the file does not exist.
        InvalidModel: the file is neither a model nor a bundle, or it is damaged.
        UnsupportedModel: the bundle is for another device or machine.
    """
    if isinstance(source, (str, os.PathLike)) and is_bundle(source):
        from graphopt.specialization.bundle.loaded_bundle import Bundle

        return Bundle(source, trusted=trusted)
    return load_model(source, allow_external=allow_external)


@checked
def load_model(
    source: ModelLike,
    *,
    allow_external: Sequence[PathLike] | None = None,
    base_dir: PathLike | None = None,
) -> ir.Model:
    """Load a model from a file, an ``onnx.ModelProto`` (not modified), or serialized bytes.

    The suffix of a file determines its format: ``.json`` is the JSON IR, ``.onnxjson`` onnx's own JSON,
    ``.onnxtxt`` and ``.txt`` are ONNX text, and everything else is ``.onnx``.

    External data is memory-mapped when it is first read. It must be in the folder of the model's file, or in
    one of ``allow_external``.

    >>> load_model("model.onnx").graph.name
    'classifier'
    >>> load_model(onnx.load("model.onnx", load_external_data=False), base_dir=".").graph.name
    'classifier'

    Args:
        source: a model in any form (:data:`graphopt.ModelLike`).
        allow_external: further folders that may contain external data.
        base_dir: the folder of the external data of a ModelProto or of bytes.

    Raises:
        TypeError: ``source`` is not a model in an accepted form.
        UsageError: the file does not exist.
        InvalidModel: the file is not a model, is truncated, or its external data is missing.
    """
    if isinstance(source, (str, os.PathLike)):
        if is_bundle(source):
            raise bundle_error(Path(source))
        if base_dir is not None:
            raise UsageError("base_dir is for models in memory; a file's own folder holds its external data")
    allowed = config.current().allow_external if allow_external is None else allow_external
    return ir.as_model(source, allow_external=allowed, base_dir=base_dir)


@checked
def is_bundle(path: PathLike) -> bool:
    """Whether ``path`` names a bundle: its folder, the ``manifest.json`` in it, or its zip file."""
    from graphopt.specialization.bundle.names import bundle_at

    return bundle_at(Path(path)) is not None


__all__ = [
    "Bailed",
    "Compiler",
    "Report",
    "Result",
    "aot_compile",
    "bailout",
    "build_kernels",
    "choose_device",
    "compare",
    "compile",
    "context_for",
    "copy",
    "differentiate",
    "explain",
    "is_bundle",
    "lift_parameters",
    "lineage",
    "list_kernels",
    "load",
    "load_model",
    "make_options",
    "make_pipeline",
    "optimize",
    "partition",
    "race_kernels",
    "record_profile",
    "report",
    "run",
    "save",
    "specialize",
    "split",
    "to_proto",
    "train_step",
    "try_out",
    "unlift_parameters",
    "value_and_grad",
    "verify",
    "verify_split",
    "vouch",
    "with_bailouts",
    "with_groups",
]
