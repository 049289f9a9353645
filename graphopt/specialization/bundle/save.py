"""Save a bundle: a folder with a model per variant, one file of weights, kernels, and the manifest."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from graphopt import ir, publish
from graphopt.errors import UsageError
from graphopt.ir.signature import Signature
from graphopt.ops import graphopt_operators
from graphopt.ort.installation import version_of
from graphopt.ort.session_options import KEY as SESSION_OPTIONS
from graphopt.ort.target import Target
from graphopt.recorded_settings import KEY as RECORD
from graphopt.specialization.build_variants import Specialized
from graphopt.specialization.bundle.kernel_files import BundleKernels
from graphopt.specialization.bundle.manifest import BundleTarget, Manifest, Operators
from graphopt.specialization.bundle.names import (
    GENERAL,
    GENERAL_NAME,
    MANIFEST,
    PLAN,
    WEIGHTS,
    bundle_at,
)
from graphopt.specialization.bundle.read_manifest import read_manifest
from graphopt.util.argument_checks import checked
from graphopt.util.file_sums import FileSum
from graphopt.util.text_tables import counted

#: Session options of a variant for which none are recommended, although some are for the general model.
_DEFAULTS = "{}"


@checked
def save_bundle(found: Specialized, folder: str | os.PathLike[str]) -> list[Path]:
    """Save ``found`` to ``folder``, without kernels; returns the files, the manifest first.

    Weights that models share are written once. A temporary folder beside ``folder`` replaces it atomically,
    so that ``folder`` contains either the old or the new bundle, even if the process is killed. Of concurrent
    writers, the last one wins.

    Args:
        folder: a new or empty folder, or that of an older bundle without other files, which is replaced.

    Raises:
        UsageError: the folder has other contents, or can't be written.
        ResourceLimit: the disk is full.
    """
    return save_with_kernels(found, Path(folder), BundleKernels())


def save_with_kernels(found: Specialized, folder: Path, kernels: BundleKernels) -> list[Path]:
    """As :func:`save_bundle`, with the libraries of ``kernels``."""
    if folder.is_symlink():
        folder = folder.resolve()
    check_replaceable(folder)
    with publish.writing_folder(folder, _check_replaceable) as new:
        written = write_files(found, new, kernels)
    return [folder / file.name for file in written]


def write_files(found: Specialized, folder: Path, kernels: BundleKernels) -> list[Path]:
    """Write the files of a bundle to the new ``folder``; returns them, the manifest first.

    Raises:
        OSError: a file can't be written.
        UsageError: a model has guards, which no runtime supports.
    """
    models = {GENERAL: found.general}
    models |= {f"{branch.name}.onnx": branch.model for branch in found.branches}
    for name, model in models.items():
        count = len([*graphopt_operators.guards_of(model), *graphopt_operators.type_checks_of(model)])
        if count:
            raise UsageError(
                f"{name} would have {counted(count, 'guard')}, which no runtime supports",
                hint="leave out insert-guards, and let lower-fallbacks follow guard-groups",
            )
    written = ir.save_together(models, folder, WEIGHTS)
    for name, library in kernels.files.items():
        shutil.copyfile(library, folder / name)
        written.append(folder / name)
    return [_manifest(found, written, kernels).write(folder), *written]


def check_replaceable(folder: Path) -> None:
    """Check that ``folder`` does not exist, is empty, or contains an older bundle and nothing else.

    Raises:
        UsageError: ``folder`` has other contents.
    """
    with publish.locked(folder.absolute().parent):  # excludes concurrent writers
        _check_replaceable(folder)


def _check_replaceable(folder: Path) -> None:
    publish.check_replaceable(folder, "a bundle", _files_of)


def _files_of(folder: Path) -> list[str] | None:
    """The names of the files of the bundle in ``folder``; ``None`` without a bundle."""
    return None if bundle_at(folder) is None else [MANIFEST, PLAN, *read_manifest(folder).files]


def _manifest(found: Specialized, files: Sequence[Path], kernels: BundleKernels) -> Manifest:
    """The manifest of a bundle with ``files``."""
    sums = {file.name: FileSum.of(file) for file in files}
    options = {branch.name: branch.model.metadata_props.get(SESSION_OPTIONS) for branch in found.branches}
    of_general = found.general.metadata_props.get(SESSION_OPTIONS)
    variants = tuple(
        record.in_file(f"{record.name}.onnx", options[record.name] or (_DEFAULTS if of_general else None))
        for record in found.plan
    )
    models = {branch.name: branch.model for branch in found.branches} | {GENERAL_NAME: found.general}
    runtime = Target(found.build_record.device)
    versions = {
        "graphopt": version_of("graphopt"),
        "onnxruntime": runtime.version,
        "onnx": version_of("onnx"),
    }
    return Manifest(
        found.original,
        variants,
        Signature.of(found.general),
        ir.count_nodes(found.general.graph),
        weights=WEIGHTS if WEIGHTS in sums else None,
        sums=sums,
        session_options=of_general,
        versions={name: text for name, text in versions.items() if text},
        native=tuple(name for name, model in models.items() if graphopt_operators.has_groups(model)),
        kernels=kernels.entries,
        target=BundleTarget(
            runtime.device.kind,
            runtime.provider,
            ".".join(runtime.version.split(".")[:2]),
            kernels.system,
            kernels.machine,
            kernels.cpu_level,
        ),
        operators=_operators(models, runtime),
        original=found.build_record.original,
        settings=json.loads(found.general.metadata_props.get(RECORD, "{}")),
    )


def _operators(models: Mapping[str, ir.Model], runtime: Target) -> Operators:
    """The operator sets of ``models``, and the domains that need a library."""
    opsets: dict[str, int] = {}
    needed: dict[str, None] = {}
    provided = {*runtime.domains, "", graphopt_operators.NATIVE_DOMAIN}
    for model in models.values():
        scopes = (model.graph, *(function.graph for function in model.functions.values()))
        for domain, version in chain.from_iterable(scope.opset_imports.items() for scope in scopes):
            opsets[domain] = max(version, opsets.get(domain, 0))
        for graph in ir.graphs_of(model):
            for node in graph:
                if node.domain not in provided and node.op_identifier() not in model.functions:
                    needed[node.domain] = None
    return Operators(dict(sorted(opsets.items())), tuple(sorted(needed)))
