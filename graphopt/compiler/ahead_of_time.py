"""Compile a model ahead of time: a bundle with its variants, weights, kernels and session options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from graphopt import ir, publish
from graphopt.compiler.build_record import build_record_of
from graphopt.compiler.environment import Environment
from graphopt.compiler.optimization import optimize, with_fuser
from graphopt.compiler.record_settings import digest_of, record_of, write_record
from graphopt.compiler.specialization import specialize
from graphopt.errors import UsageError, unwritable
from graphopt.fusion.kernel_library import common_library
from graphopt.instrument.report import Report
from graphopt.model_arguments import ModelLike, PathLike
from graphopt.optimize_options import OPTIONS, OptimizeOptions
from graphopt.util.argument_checks import checked
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from graphopt.specialization.build_variants import Specialization, Specialized
    from graphopt.specialization.bundle.kernel_files import BundleKernels
    from graphopt.specialization.bundle.loaded_bundle import Bundle

#: The pipeline if none is given.
_PIPELINE = "O3"


@dataclass(frozen=True)
class Compiled:
    """A bundle that was written.

    Attributes:
        path: its folder, or its zip file.
        files: the sizes of its files, in bytes, the manifest first.
        report: the report of the general model and all variants.
        cpu_levels: the x86-64 levels of its kernels; empty without kernels, or on other architectures.
    """

    path: Path
    files: dict[str, int]
    report: Report = field(repr=False)
    cpu_levels: tuple[int, ...] = ()

    def load(self, **options: Any) -> Bundle:
        """The loaded bundle; arguments are those of :class:`graphopt.Bundle`."""
        from graphopt.specialization.bundle.loaded_bundle import Bundle

        return Bundle(self.path, **options)


@checked
def aot_compile(
    env: Environment,
    model: ModelLike,
    path: PathLike | None = None,
    how: Specialization | None = None,
    *,
    cpu_levels: Sequence[int] = (),
    archive: bool = False,
    **options: Unpack[OptimizeOptions],
) -> Compiled:
    """Optimize a model, and write everything that runs need to a bundle.

    >>> compiled = graphopt.aot_compile("model.onnx", fuser="native")               # doctest: +SKIP
    >>> graphopt.load("model.gopt", trusted=True).run({"x": x})                     # doctest: +SKIP

    Results are always computed, not reused from the result cache.

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`); it is not changed.
        path: a new folder, or that of an older bundle, which is replaced; by default NAME.gopt beside the
            file of the model.
        how: a profile and the number of variants for it; by default, there are no variants.
        cpu_levels: x86-64 levels (2, 3, 4) of native kernels; by default all. One library has the
            kernels of all levels.
        archive: write a zip file in place of a folder.
        options: as for :func:`optimize`; the default pipeline is ``O3``. With ``fuser="native"``, the bundle
            contains the library of its kernels.

    Raises:
        UsageError: ``path`` has other contents or is missing for a model in memory, or a level is unknown; or
            as for :func:`optimize`.
        VerificationFailed: as for :func:`optimize`.
    """
    from graphopt.specialization.bundle.archive import check_replaceable_archive
    from graphopt.specialization.bundle.names import check_form
    from graphopt.specialization.bundle.save import check_replaceable

    levels = _checked_levels(cpu_levels)
    target = bundle_path(model, path)
    if not target.absolute().parent.is_dir():
        folder = target.parent
        raise UsageError(f"can't write {target}: there is no folder {folder}", hint=f"mkdir -p {folder}")
    check_form(target, archive=archive)
    check_replaceable_archive(target) if archive else check_replaceable(target)
    env = with_default_pipeline(env.having(options)).having({"cache": False})
    found = _general_only(env, model) if how is None else specialize(env, model, how, bundle=True)
    found = _recorded(env, found, how, levels, archive=archive)
    env.entered("kernels")
    kernels, remarks = _kernels(env, found, levels)
    report = found.report.having(remarks=remarks)
    env.entered("writing")
    files = _write(found, target, kernels, archive=archive)
    return Compiled(target, files, report, kernels.levels)


def bundle_path(model: ModelLike, path: PathLike | None) -> Path:
    """``path``, by default NAME.gopt beside the file of ``model``.

    Raises:
        UsageError: ``path`` has the suffix of a model, or ``model`` has no file.
        InvalidModel: the file of ``model`` has another format.
    """
    from graphopt.specialization.bundle.names import SUFFIX

    if path is not None:
        target = Path(path)
        if target.suffix == ".onnx":
            raise UsageError(
                f"{target} has the suffix of a model, and compile writes a bundle",
                hint=f"name it {target.with_suffix(SUFFIX)}; graphopt optimize writes models",
            )
        return target
    if isinstance(model, (str, os.PathLike)):
        ir.check_is_model(model)
        return Path(model).with_suffix(SUFFIX)
    raise UsageError("a model in memory has no name to derive that of its bundle from", hint="give a path")


def with_default_pipeline(env: Environment) -> Environment:
    """``env`` with the pipeline ``O3``, unless an option or a setting selects another pipeline."""
    if {"pipeline", "fuser"} & env.given.keys() or env.settings.pipeline != OPTIONS["pipeline"].default:
        return with_fuser(env)
    return env.having({"pipeline": _PIPELINE})


def _checked_levels(levels: Sequence[int]) -> tuple[int, ...]:
    from graphopt.specialization.bundle.kernel_files import LEVELS

    known = tuple(LEVELS.values())
    other = next((level for level in levels if level not in known), None)
    if other is not None:
        raise UsageError(
            f"there is no x86-64 level {other} of kernels", hint=f"levels: {', '.join(map(str, known))}"
        )
    return tuple(level for level in known if level in levels)


def _recorded(
    env: Environment,
    found: Specialized,
    how: Specialization | None,
    levels: tuple[int, ...],
    *,
    archive: bool,
) -> Specialized:
    """``found`` with a record of this operation in place of the operations that it calls.

    The record names the pipeline even if it is the default of the settings, because this operation has a
    different default.
    """
    from graphopt.profile import FusionStrategy

    pipeline = env.options["pipeline"]
    record = record_of(
        env,
        aot_compile,
        profile=None if how is None else digest_of(how.profile),
        strategy=None if how is None or how.strategy == FusionStrategy() else str(how.strategy),
        most=None if how is None else how.most,
        pipeline=pipeline if pipeline == OPTIONS["pipeline"].default else None,
        cpu_levels=levels,
        archive=archive,
    )
    write_record(record, found.general, *(branch.model for branch in found.branches))
    return replace(found, report=found.report.having(settings="" if record is None else record.to_json()))


def _general_only(env: Environment, model: ModelLike) -> Specialized:
    """The optimized model without variants."""
    from graphopt.specialization.build_variants import Specialized

    original = env.load(model)
    fingerprint, origin = ir.fingerprint(original, names=True), build_record_of(env, model, original)
    result = optimize(env, model)
    return Specialized(result.model, [], [], result.report, fingerprint, build_record=origin)


def _kernels(
    env: Environment, found: Specialized, levels: tuple[int, ...]
) -> tuple[BundleKernels, list[str]]:
    """The library of all kernels, and the reasons for missing kernels."""
    from graphopt.specialization.bundle.kernel_files import BundleKernels

    models = [found.general, *(branch.model for branch in found.branches)]

    def report(done: float | None, text: str) -> None:
        for watcher in env.options["instruments"]:
            watcher.entered(f"kernels: {text}", done)

    library = common_library(models, env.settings, env.target, levels or None, report)
    if library is None:
        idle = "the CPU levels have no effect, because the result has no native kernels"
        return BundleKernels(), [idle] if levels else []
    if library.path is None:
        return BundleKernels(), list(library.remarks)
    return BundleKernels(library.path, env.target.kind, library.levels), list(library.remarks)


def _write(found: Specialized, target: Path, kernels: BundleKernels, *, archive: bool) -> dict[str, int]:
    """Write the bundle; returns the sizes of its files."""
    from graphopt.specialization.bundle.archive import check_replaceable_archive, write_archive
    from graphopt.specialization.bundle.save import save_with_kernels, write_files

    if not archive:
        return {file.name: file.stat().st_size for file in save_with_kernels(found, target, kernels)}
    with publish.ScratchFolder(target.absolute().parent, f".{target.name}") as folder:
        try:
            files = write_files(found, folder, kernels)
        except OSError as error:
            raise unwritable(target, error) from error
        check_replaceable_archive(target)
        write_archive(files, target)
        return {file.name: file.stat().st_size for file in files}
