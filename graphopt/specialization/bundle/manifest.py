"""The manifest of a bundle: its models, their guards, kernels, target, and checksums of the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from graphopt.ir.json.pretty_printer import render
from graphopt.ir.signature import Port, Signature
from graphopt.specialization.build_record import OriginalFile
from graphopt.specialization.bundle.names import GENERAL, GENERAL_NAME, MANIFEST, MARK, PLAN
from graphopt.specialization.variant_records import VariantRecord
from graphopt.util.file_sums import CHECKSUM, FileSum, checksum
from graphopt.util.lazy_dataclass import dataclass

#: The format version that is written.
VERSION = 3


@dataclass(frozen=True)
class KernelFile:
    """A library with the kernels of all native groups of a bundle.

    Attributes:
        file: its file.
        device: the kind of device of its kernels (:attr:`graphopt.ort.devices.Device.kind`).
        machine: the architecture, as :func:`platform.machine` names it in lower case.
        cpu_level: the lowest x86-64 level (2, 3 or 4) with kernels; ``None`` on other architectures. The
            library selects the kernels of the highest level that the CPU supports.
    """

    file: str
    device: str
    machine: str
    cpu_level: int | None = None


@dataclass(frozen=True)
class BundleTarget:
    """The device and the runtime for which a bundle was written.

    Attributes:
        device: the kind of device.
        provider: onnxruntime's execution provider.
        onnxruntime: the version that wrote the bundle, without the patch number; empty if it is unknown.
        system, machine: the system and the architecture of the libraries of kernels; ``None`` without
            libraries, because models run on any machine.
        cpu_level: the lowest x86-64 level that the libraries support; ``None`` for any.
    """

    device: str
    provider: str
    onnxruntime: str
    system: str | None = None
    machine: str | None = None
    cpu_level: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "device": self.device,
            "provider": self.provider,
            "system": self.system,
            "machine": self.machine,
            "cpu_level": self.cpu_level,
            "onnxruntime": self.onnxruntime,
        }


@dataclass(frozen=True)
class Operators:
    """The operators that the models of a bundle need.

    Attributes:
        opsets: the version of each imported operator set, by domain.
        libraries: the domains whose operators neither onnxruntime nor a function of a model implements: the
            program registers a library for each.
    """

    opsets: Mapping[str, int] = field(default_factory=dict)
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """The contents of a bundle.

    Attributes:
        model: fingerprint of the original.
        variants: records of the variants, in the order in which their guards are checked.
        signature: the signature of the model.
        nodes: the number of nodes of the general model.
        general: the file of the general model.
        weights: the file of shared weights; ``None`` if no weight is large.
        sums: checksums by file name; in bundles of format version 1, at most the checksum of the weights.
        session_options: the session options recommended for the general model, unparsed.
        versions: the versions of graphopt, onnxruntime and onnx that wrote the bundle.
        native: the variants, or ``general``, whose models have native groups.
        kernels: the libraries of kernels.
        target: the device and the runtime; ``None`` in format versions 1 and 2, as the next two attributes.
        operators: the operators that the models need.
        original: the file of the original, if it was read from a file.
        settings: the record of the settings that produced the bundle
            (:class:`graphopt.recorded_settings.SettingsRecord`), as data; empty without a record.
        version: the format version.
    """

    model: str
    variants: tuple[VariantRecord, ...]
    signature: Signature
    nodes: int
    general: str = GENERAL
    weights: str | None = None
    sums: Mapping[str, FileSum] = field(default_factory=dict)
    session_options: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    native: tuple[str, ...] = ()
    kernels: tuple[KernelFile, ...] = ()
    target: BundleTarget | None = None
    operators: Operators | None = None
    original: OriginalFile | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    version: int = VERSION

    @property
    def own_file(self) -> str:
        """The name of the file of the manifest itself."""
        return MANIFEST if self.version == VERSION else PLAN

    @property
    def digest(self) -> str:
        """The SHA-256 of the file of weights; empty if it is unknown, or there is no such file."""
        found = None if self.weights is None else self.sums.get(self.weights)
        return "" if found is None else found.sha256

    @property
    def files(self) -> list[str]:
        """The names of all files except the manifest."""
        weights = [self.weights] if self.weights else []
        libraries = [library.file for library in self.kernels]
        return list(dict.fromkeys([*self.models.values(), *weights, *libraries]))

    @property
    def models(self) -> dict[str, str]:
        """The files of the models by name of the variant, the general model last."""
        return {variant.name: variant.file or "" for variant in self.variants} | {GENERAL_NAME: self.general}

    def session_options_of(self, name: str) -> str | None:
        """The session options recommended for a variant; by default those for the general model."""
        own = {variant.name: variant.session_options for variant in self.variants}
        return own.get(name) or self.session_options

    def to_dict(self) -> dict[str, Any]:
        """The JSON form of format version 3; raises ValueError for older formats, which are not written."""
        if self.target is None or self.operators is None:
            raise ValueError(f"a bundle of format version {self.version} has no target")
        found: dict[str, Any] = {
            MARK: VERSION,
            "versions": dict(self.versions),
            "model": self.model,
            "original": None if self.original is None else vars(self.original),
            "inputs": [port_dict(port) for port in self.signature.inputs],
            "outputs": [port_dict(port) for port in self.signature.outputs],
            "general": {"file": self.general, "nodes": self.nodes},
            "variants": [variant.to_dict() for variant in self.variants],
            "weights": self.weights,
            "session_options": self.session_options,
            "native": list(self.native),
            "kernels": [vars(library) for library in self.kernels],
            "target": self.target.to_dict(),
            "operators": {
                "opsets": dict(self.operators.opsets),
                "libraries": list(self.operators.libraries),
            },
            "settings": dict(self.settings),
            "files": {name: {"bytes": item.bytes, "sha256": item.sha256} for name, item in self.sums.items()},
        }
        if self.original is None:
            del found["original"]
        return {**found, CHECKSUM: checksum(found)}

    def write(self, folder: Path) -> Path:
        """Write the manifest to ``folder``; raises OSError."""
        path = folder / MANIFEST
        path.write_text(render(self.to_dict()), encoding="utf-8")
        return path


def port_dict(port: Port) -> dict[str, Any]:
    """The JSON form of an input or output."""
    dims = None if port.dims is None else list(port.dims)
    found = {"name": port.name, "type": port.type, "dims": dims}
    return found if port.role == "required" else {**found, "role": port.role}
