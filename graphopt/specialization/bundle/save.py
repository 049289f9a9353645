"""Save a bundle: a folder with a model per variant, one file of weights, and the plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from graphopt import ir, publish
from graphopt.errors import GraphoptError, UsageError
from graphopt.ir.signature import Signature
from graphopt.ops import graphopt_operators
from graphopt.ort.installation import version_of
from graphopt.ort.session_options import KEY as SESSION_OPTIONS
from graphopt.ort.target import Target
from graphopt.specialization.build_variants import Specialized
from graphopt.specialization.bundle.plan import (
    GENERAL,
    GENERAL_NAME,
    PLAN,
    WEIGHTS,
    BundlePlan,
    FileSum,
    folder_of,
)
from graphopt.util.argument_checks import checked
from graphopt.util.disk_store import file_digest

#: Session options of a variant for which none are recommended, although some are for the general model.
_DEFAULTS = "{}"


@checked
def save_bundle(found: Specialized, folder: str | os.PathLike[str]) -> list[Path]:
    """Save ``found`` to ``folder``; returns the files, the plan first.

    Weights that models share are written once. A temporary folder beside ``folder`` replaces it atomically,
    so that ``folder`` contains either the old or the new bundle, even if the process is killed. Of concurrent
    writers, the last one wins.

    Args:
        folder: a new or empty folder, or that of an older bundle without other files, which is replaced.

    Raises:
        UsageError: the folder has other contents, or can't be written.
        ResourceLimit: the disk is full.
    """
    folder = Path(folder)
    if folder.is_symlink():
        folder = folder.resolve()
    check_replaceable(folder)
    models = {GENERAL: found.general}
    models |= {f"{branch.name}.onnx": branch.model for branch in found.branches}
    with publish.writing_folder(folder, _check_replaceable) as new:
        written = ir.save_together(models, new, WEIGHTS)
        written.insert(0, _plan(found, written).write(new))
    return [folder / file.name for file in written]


def check_replaceable(folder: Path) -> None:
    """Check that ``folder`` does not exist, is empty, or contains an older bundle and nothing else.

    Raises:
        UsageError: ``folder`` has other contents.
    """
    with publish.locked(folder.absolute().parent):  # excludes concurrent writers
        _check_replaceable(folder)


def _check_replaceable(folder: Path) -> None:
    if not os.path.lexists(folder):
        return
    publish.check_not_current(folder)
    if not folder.is_dir():
        raise UsageError(f"can't write a bundle to {folder}: not a folder")
    inside = sorted(os.listdir(folder))
    if not inside:
        return
    hint = "choose a new folder, or that of an older bundle"
    try:
        known = None if folder_of(folder) is None else [PLAN, *BundlePlan.read(folder).files]
    except GraphoptError as error:
        raise UsageError(f"{folder} is not replaced: {error.message}", hint=hint) from error
    if known is None:
        raise UsageError(f"{folder} is not replaced: not a bundle", hint=hint)
    other = next((name for name in inside if name not in known), None)
    if other is not None:
        raise UsageError(f"{folder} is not replaced: {other} is not part of the bundle", hint=hint)


def _plan(found: Specialized, files: Sequence[Path]) -> BundlePlan:
    """The plan of a bundle with ``files``."""
    sums = {file.name: FileSum(file_digest(file), file.stat().st_size) for file in files}
    options = {branch.name: branch.model.metadata_props.get(SESSION_OPTIONS) for branch in found.branches}
    of_general = found.general.metadata_props.get(SESSION_OPTIONS)
    variants = tuple(
        record.in_file(f"{record.name}.onnx", options[record.name] or (_DEFAULTS if of_general else None))
        for record in found.plan
    )
    models = {branch.name: branch.model for branch in found.branches} | {GENERAL_NAME: found.general}
    found_versions = (("graphopt", version_of("graphopt")), ("onnxruntime", Target().version))
    return BundlePlan(
        found.original,
        variants,
        Signature.of(found.general),
        ir.count_nodes(found.general.graph),
        weights=WEIGHTS if WEIGHTS in sums else None,
        sums=sums,
        session_options=of_general,
        versions={name: text for name, text in found_versions if text},
        native=tuple(name for name, model in models.items() if graphopt_operators.has_groups(model)),
    )
