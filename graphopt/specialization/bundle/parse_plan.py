"""Parse plans: manifests of format versions 1 and 2, which graphopt read and wrote up to version 0.2."""

from __future__ import annotations

from typing import Any

from graphopt.errors import InvalidModel
from graphopt.specialization.bundle.checked_json import (
    Entries,
    check_sums,
    signature_of,
    sums_of,
    variants_of,
)
from graphopt.specialization.bundle.manifest import Manifest
from graphopt.specialization.bundle.names import MARK
from graphopt.util.file_sums import CHECKSUM, FileSum, checksum

#: The format version that contains only a checksum of the weights.
_WITHOUT_SUMS = 1


def parse_plan(data: dict[str, Any]) -> Manifest:
    """Parse a plan, whose version is known to be 1 or 2.

    Raises:
        InvalidModel: ``data`` is malformed, or does not match its checksum.
    """
    entries = Entries(data, "plan")
    general = data.get("general")
    if not isinstance(general, dict):
        raise InvalidModel("malformed plan: no general model")
    versions = data.get("versions", {})
    if not isinstance(versions, dict):
        raise InvalidModel("malformed plan: versions must be a mapping")
    is_oldest = data[MARK] == _WITHOUT_SUMS
    found = Manifest(
        entries.text("model"),
        variants_of(entries),
        signature_of(entries),
        general["nodes"] if type(general.get("nodes")) is int else 0,
        Entries(general, "plan").text("file"),
        entries.optional_text("weights"),
        _sum_of_weights(entries) if is_oldest else sums_of(entries),
        entries.optional_text("session_options"),
        {str(key): str(value) for key, value in versions.items()},
        entries.texts("native") if "native" in data else (),
        version=data[MARK],
    )
    if any(name not in found.models for name in found.native):
        raise InvalidModel("malformed plan: native kernels of an unknown variant")
    if not is_oldest:
        if data.get(CHECKSUM) != checksum(data):
            raise InvalidModel("the plan is damaged: its checksum does not match")
        check_sums(found.files, found.sums, entries)
    return found


def _sum_of_weights(entries: Entries) -> dict[str, FileSum]:
    digest, weights = entries.text("digest"), entries.data.get("weights")
    return {weights: FileSum(digest)} if digest and isinstance(weights, str) else {}
