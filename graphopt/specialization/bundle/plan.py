"""The plan of a bundle: its models, their guards, and checksums of the files."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphopt.errors import InvalidModel, UsageError
from graphopt.ir.json.pretty_printer import render
from graphopt.ir.signature import Port, Signature
from graphopt.specialization.variant_records import VariantRecord

#: File name of the plan.
PLAN = "plan.json"
#: Names of the other files; a variant has its own name as file name.
GENERAL, WEIGHTS = "general.onnx", "weights.bin"
#: Name of the general model among the variants.
GENERAL_NAME = "general"
#: The key with the format version; the current version; and the oldest supported version, which contains
#: only a checksum of the weights.
_MARK, _VERSION, _OLDER = "graphopt_bundle", 2, 1
#: The key with the checksum of all other entries.
_CHECKSUM = "checksum"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ROLES = ("required", "overridable", "constant")


@dataclass(frozen=True)
class FileSum:
    """The checksum of a file.

    Attributes:
        sha256: the SHA-256, as hex digits.
        bytes: the size in bytes; ``None`` if unknown.
    """

    sha256: str
    bytes: int | None = None


@dataclass(frozen=True)
class BundlePlan:
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
        versions: the versions of graphopt and onnxruntime that wrote the bundle.
        native: the variants, or ``general``, whose models have native groups.
    """

    model: str
    variants: tuple[VariantRecord, ...]
    signature: Signature
    nodes: int
    general: str = GENERAL
    weights: str | None = None
    sums: dict[str, FileSum] = field(default_factory=dict)
    session_options: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    native: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """The SHA-256 of the file of weights; empty if it is unknown, or there is no such file."""
        found = None if self.weights is None else self.sums.get(self.weights)
        return "" if found is None else found.sha256

    @property
    def files(self) -> list[str]:
        """The names of all files except the plan."""
        return list(dict.fromkeys([*self.models.values(), *([self.weights] if self.weights else [])]))

    @property
    def models(self) -> dict[str, str]:
        """The files of the models by name of the variant, the general model last."""
        return {variant.name: variant.file or "" for variant in self.variants} | {GENERAL_NAME: self.general}

    def session_options_of(self, name: str) -> str | None:
        """The session options recommended for a variant; by default those for the general model."""
        own = {variant.name: variant.session_options for variant in self.variants}
        return own.get(name) or self.session_options

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        found = {
            _MARK: _VERSION,
            "versions": dict(self.versions),
            "model": self.model,
            "inputs": [_port_dict(port) for port in self.signature.inputs],
            "outputs": [_port_dict(port) for port in self.signature.outputs],
            "general": {"file": self.general, "nodes": self.nodes},
            "variants": [variant.to_dict() for variant in self.variants],
            "weights": self.weights,
            "session_options": self.session_options,
            **({"native": list(self.native)} if self.native else {}),
            "files": {name: {"bytes": item.bytes, "sha256": item.sha256} for name, item in self.sums.items()},
        }
        return {**found, _CHECKSUM: checksum(found)}

    @classmethod
    def from_dict(cls, data: Any) -> BundlePlan:
        """Parse the result of :meth:`to_dict`.

        Raises:
            InvalidModel: ``data`` is malformed, or of an unsupported version.
        """
        if not isinstance(data, dict) or _MARK not in data:
            raise InvalidModel("not a bundle plan")
        if data[_MARK] not in (_VERSION, _OLDER):
            raise InvalidModel(
                f"unsupported plan version {data[_MARK]!r}; supported: {_OLDER}, {_VERSION}",
                hint="a newer graphopt may support it",
            )
        general = data.get("general")
        if not isinstance(general, dict):
            raise InvalidModel("malformed plan: no general model")
        variants = tuple(map(VariantRecord.from_dict, _list(data, "variants")))
        names = [*(variant.name for variant in variants), GENERAL_NAME]
        if len(set(names)) < len(names):
            raise InvalidModel("malformed plan: duplicate variant names")
        versions = data.get("versions", {})
        if not isinstance(versions, dict):
            raise InvalidModel("malformed plan: versions must be a mapping")
        found = cls(
            _text(data, "model"),
            variants,
            Signature(tuple(map(_port, _list(data, "inputs"))), tuple(map(_port, _list(data, "outputs")))),
            general["nodes"] if type(general.get("nodes")) is int else 0,
            _text(general, "file"),
            None if data.get("weights") is None else _text(data, "weights"),
            _sums(data),
            None if data.get("session_options") is None else _text(data, "session_options"),
            {str(key): str(value) for key, value in versions.items()},
            tuple(_list(data, "native")) if "native" in data else (),
        )
        if any(not isinstance(name, str) or name not in found.models for name in found.native):
            raise InvalidModel("malformed plan: native kernels of an unknown variant")
        if data[_MARK] == _VERSION:
            if data.get(_CHECKSUM) != checksum(data):
                raise InvalidModel("the plan is damaged: its checksum does not match")
            lacking = next((name for name in found.files if name not in found.sums), None)
            if lacking is not None:
                raise InvalidModel(f"malformed plan: no checksum of {lacking}")
        return found

    def write(self, folder: Path) -> Path:
        """Write the plan to ``folder``; raises OSError."""
        path = folder / PLAN
        path.write_text(render(self.to_dict()), encoding="utf-8")
        return path

    @classmethod
    def read(cls, folder: Path) -> BundlePlan:
        """Read the plan in ``folder``, and check that its files exist.

        Raises:
            UsageError: the plan is missing, or can't be read.
            InvalidModel: the plan is damaged, or a file is missing or outside of ``folder``.
        """
        path = folder / PLAN
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InvalidModel(f"{path}: not UTF-8") from error
        except FileNotFoundError as error:
            raise UsageError(f"{folder} is not a bundle: it has no {PLAN}") from error
        except OSError as error:
            raise UsageError(f"can't read {path}: {error.strerror or error}") from error
        try:
            plan = cls.from_dict(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise InvalidModel(f"{path}: not JSON, or truncated") from error
        except InvalidModel as error:
            raise InvalidModel(f"{path}: {error.message}", hint=error.hint) from error
        for file in plan.files:
            if not _is_inside(file, folder):
                raise InvalidModel(f"{path}: file outside of the bundle: {file!r}")
            if not (folder / file).is_file():
                raise InvalidModel(f"the bundle {folder} lacks {file}")
        return plan


def checksum(data: dict[str, Any]) -> str:
    """The SHA-256 of all entries of a plan except the checksum itself."""
    rest = {key: value for key, value in data.items() if key != _CHECKSUM}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _sums(data: dict[str, Any]) -> dict[str, FileSum]:
    if data[_MARK] == _OLDER:
        digest, weights = _text(data, "digest"), data.get("weights")
        return {weights: FileSum(digest)} if digest and isinstance(weights, str) else {}
    entries = data.get("files")
    if not isinstance(entries, dict):
        raise InvalidModel(f"malformed plan: files {'missing' if entries is None else 'must be a mapping'}")
    sums = {}
    for name, entry in entries.items():
        known = isinstance(entry, dict) and type(entry.get("bytes")) is int
        if not known or not isinstance(entry.get("sha256"), str) or not _SHA256.fullmatch(entry["sha256"]):
            raise InvalidModel(f"malformed plan: no size or SHA-256 of the file {name!r}")
        sums[name] = FileSum(entry["sha256"], entry["bytes"])
    return sums


def folder_of(path: Path) -> Path | None:
    """The folder of the bundle at ``path``, a folder or a plan; ``None`` without a bundle."""
    try:
        if path.is_dir():
            return path if (path / PLAN).is_file() else None
        is_plan = path.name == PLAN and path.is_file() and f'"{_MARK}"'.encode() in path.read_bytes()
    except (OSError, ValueError):  # for example a NUL in the path, which a later read reports
        return None
    return path.parent if is_plan else None


def _is_inside(file: str, folder: Path) -> bool:
    """Whether ``file`` is a relative path inside ``folder``, also after resolving ``..`` and links."""
    try:
        if not file or Path(file).is_absolute():
            return False
        found = (folder / file).resolve()
    except (OSError, ValueError, RuntimeError):  # a NUL, or a cycle of links
        return False
    return found.is_relative_to(folder.resolve()) and found != folder.resolve()


def _port_dict(port: Port) -> dict[str, Any]:
    dims = None if port.dims is None else list(port.dims)
    found = {"name": port.name, "type": port.type, "dims": dims}
    return found if port.role == "required" else {**found, "role": port.role}


def _port(data: Any) -> Port:
    if not isinstance(data, dict):
        raise InvalidModel("unsupported record format for an input or output")
    dims, role = data.get("dims"), data.get("role", "required")
    if role not in _ROLES or not (dims is None or (isinstance(dims, list) and all(map(_is_dim, dims)))):
        raise InvalidModel(f"unsupported record format for {data.get('name')!r}")
    return Port(_text(data, "name"), _text(data, "type"), None if dims is None else tuple(dims), role)


def _is_dim(dim: Any) -> bool:
    return dim is None or isinstance(dim, str) or (type(dim) is int and dim >= 0)


def _text(data: dict[str, Any], key: str) -> str:
    text = data.get(key)
    if not isinstance(text, str):
        raise InvalidModel(f"malformed plan: {key} {'missing' if text is None else 'must be a string'}")
    return text


def _list(data: dict[str, Any], key: str) -> list[Any]:
    found = data.get(key)
    if not isinstance(found, list):
        raise InvalidModel(f"malformed plan: {key} {'missing' if found is None else 'must be a list'}")
    return found
