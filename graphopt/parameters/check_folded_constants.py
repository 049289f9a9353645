"""Refuse new contents for initializers that were folded into constants of an optimized model."""

from __future__ import annotations

from collections.abc import Mapping

from graphopt import ir
from graphopt.errors import InvalidModel, UsageError

#: Number of faults that a message lists.
_SHOWN = 4
_HINT = "put the parameters into the model that was optimized, and optimize the result"


def check_folded_constants(model: ir.Model, tensors: Mapping[str, ir.TensorProtocol]) -> None:
    """Check that no constant of ``model`` was folded from an initializer whose contents ``tensors`` changes.

    A tensor with unchanged contents is accepted. A change is accepted if ``tensors`` also contains the folded
    constants, like the result of :func:`graphopt.lift_parameters` for the same model.

    Raises:
        UsageError: a constant was folded from changed contents.
        InvalidModel: the record of folded constants can't be read.
    """
    try:
        record = ir.fold_record(model)
    except ValueError as error:
        raise InvalidModel(
            f"the record of folded constants (graphopt:folded) can't be read: {error}", hint=_HINT
        ) from error
    changed = {
        name
        for name, tensor in tensors.items()
        if name in record.digests and ir.digest_of(tensor) != record.digests[name]
    }
    faults = [*_merged(record, tensors), *_stale(record, changed, tensors)]
    reported = "; ".join(faults)
    faults += [
        f"{name!r} is built into nodes or branches"
        for name in sorted(changed & record.built_in)
        if repr(name) not in reported
    ]
    if faults:
        more = f", and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise UsageError(
            f"the model holds constants folded from old contents: {'; '.join(faults[:_SHOWN])}{more}",
            hint=_HINT,
        )


def _merged(record: ir.FoldRecord, tensors: Mapping[str, ir.TensorProtocol]) -> list[str]:
    """Merged initializers whose sources would no longer be equal."""
    faults = []
    for name, sources in record.merged.items():
        given = {
            ir.digest_of(tensors[source]) if source in tensors else record.digests[source]
            for source in sources
        }
        if len(given) > 1:
            others = ", ".join(repr(source) for source in sources if source != name)
            faults.append(f"{name!r} was merged with {others}, which had the same contents")
    return faults


def _stale(record: ir.FoldRecord, changed: set[str], tensors: Mapping[str, ir.TensorProtocol]) -> list[str]:
    """Folded constants that are not replaced although one of their sources changes.

    A constant may have reused the name of a source; a new tensor of that name replaces the source, not the
    constant.
    """
    faults = []
    for name, sources in record.derived.items():
        old = [source for source in sources if source in changed]
        if old and (name not in tensors or name in sources):
            faults.append(f"{name!r} was computed from {', '.join(map(repr, old))}")
    return faults
