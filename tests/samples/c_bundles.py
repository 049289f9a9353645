"""Bundles with chosen guards, for the tests of the host in C."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphopt import ir
from graphopt.ir.signature import Signature
from graphopt.profile import Guard
from graphopt.specialization.bundle.manifest import BundleTarget, Manifest, Operators
from graphopt.specialization.variant_records import VariantRecord
from graphopt.util.disk_store import file_digest
from graphopt.util.file_sums import FileSum, checksum

TARGET = BundleTarget("cpu", "CPUExecutionProvider", "1.17")


def write_bundle(
    folder: Path,
    model: ir.Model,
    guards: Mapping[str, Guard],
    *,
    native: Sequence[str] = (),
    session_options: str | None = None,
) -> Path:
    """A bundle whose variants, with these guards, are all equal to ``model``."""
    folder.mkdir()
    names = ["general.onnx", *(f"{name}.onnx" for name in guards)]
    files = ir.save_together({name: model.clone() for name in names}, folder, "weights.bin")
    sums = {file.name: FileSum(file_digest(file), file.stat().st_size) for file in files}
    records = [VariantRecord(name, guard, 1, 1, f"{name}.onnx") for name, guard in guards.items()]
    manifest = Manifest(
        "0",
        tuple(records),
        Signature.of(model),
        ir.count_nodes(model.graph),
        weights="weights.bin" if "weights.bin" in sums else None,
        sums=sums,
        session_options=session_options,
        native=tuple(native),
        target=TARGET,
        operators=Operators(dict(model.graph.opset_imports)),
        settings={  # values whose text the checksum depends on
            "version": "0",
            "settings": {"é": [0.1, 1e-7, -3, True, None, '\x7f\u2028𝄞\\"\n']},
        },
    )
    manifest.write(folder)
    return folder


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a bundle."""
    data: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return data


def write_manifest(folder: Path, data: Mapping[str, Any]) -> None:
    """Write the manifest of a bundle with a correct checksum."""
    text = json.dumps({**data, "checksum": checksum(dict(data))}, ensure_ascii=False, indent=1)
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def add_file(data: dict[str, Any], file: Path) -> None:
    """List ``file`` in the manifest ``data``."""
    data["files"][file.name] = {"bytes": file.stat().st_size, "sha256": file_digest(file)}
