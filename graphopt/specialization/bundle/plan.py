"""The plan of a bundle: which models lie in its folder, and which guard lets inputs through to which."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphopt.errors import InvalidModel, UsageError
from graphopt.ir.json.layout import render
from graphopt.ir.signature import Port, Signature
from graphopt.specialization.branches import VariantRecord

#: What the file of a plan is called.
PLAN = "plan.json"
#: Names of the other files; each variant's is its own name.
GENERAL, WEIGHTS = "general.onnx", "weights.bin"
#: What the general model is called among the variants.
GENERAL_NAME = "general"
#: The entry that marks a plan, and its version. Version 1 had only the checksum of the weights.
_MARK, _VERSION, _OLDER = "graphopt_bundle", 2, 1
#: The entry for the checksum of all others.
_CHECKSUM = "checksum"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ROLES = ("required", "overridable", "constant")


@dataclass(frozen=True)
class FileSum:
    """What identifies the contents of a file.

    Attributes:
        sha256: in hex digits.
        bytes: its size; ``None`` if the plan does not say.
    """

    sha256: str
    bytes: int | None = None


@dataclass(frozen=True)
class BundlePlan:
    """What a bundle consists of.

    Attributes:
        model: fingerprint of the original.
        variants: in the order in which their guards are asked; each with its file.
        signature: how the model is called.
        nodes: how many the general model has.
        general: its file.
        weights: the file of weights that all share; ``None`` if no weight is large.
        sums: of the files, by name; of a bundle of an older graphopt, that of the weights at most.
        session_options: those that the model's metadata recommends, as it has them.
        versions: of graphopt and onnxruntime, when the bundle was made.
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

    @property
    def digest(self) -> str:
        """The SHA-256 of the file of weights; empty if there is none, or it is not known."""
        found = None if self.weights is None else self.sums.get(self.weights)
        return "" if found is None else found.sha256

    @property
    def files(self) -> list[str]:
        """All files but the plan's own."""
        return list(dict.fromkeys([*self.models.values(), *([self.weights] if self.weights else [])]))

    @property
    def models(self) -> dict[str, str]:
        """The files of models, by the name of the variant, the general one last."""
        return {variant.name: variant.file or "" for variant in self.variants} | {GENERAL_NAME: self.general}

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
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
            "files": {name: {"bytes": item.bytes, "sha256": item.sha256} for name, item in self.sums.items()},
        }
        return {**found, _CHECKSUM: checksum(found)}

    @classmethod
    def from_dict(cls, data: Any) -> BundlePlan:
        """Read what :meth:`to_dict` made.

        Raises:
            InvalidModel: it is something else.
        """
        if not isinstance(data, dict) or _MARK not in data:
            raise InvalidModel("it is no plan of a bundle")
        if data[_MARK] not in (_VERSION, _OLDER):
            raise InvalidModel(
                f"it is of version {data[_MARK]!r}, not {_VERSION}", hint="a newer graphopt may know it"
            )
        general = data.get("general")
        if not isinstance(general, dict):
            raise InvalidModel("it tells of no general model")
        variants = tuple(map(VariantRecord.from_dict, _list(data, "variants")))
        names = [*(variant.name for variant in variants), GENERAL_NAME]
        if len(set(names)) < len(names):
            raise InvalidModel("two variants have one name")
        versions = data.get("versions", {})
        if not isinstance(versions, dict):
            raise InvalidModel("its versions are not told by name")
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
        )
        if data[_MARK] == _VERSION:
            if data.get(_CHECKSUM) != checksum(data):
                raise InvalidModel("it is damaged: its contents do not match its checksum")
            lacking = next((name for name in found.files if name not in found.sums), None)
            if lacking is not None:
                raise InvalidModel(f"it has no checksum of {lacking}")
        return found

    def write(self, folder: Path) -> Path:
        """Write it to ``folder``; raises OSError."""
        path = folder / PLAN
        path.write_text(render(self.to_dict()), encoding="utf-8")
        return path

    @classmethod
    def read(cls, folder: Path) -> BundlePlan:
        """Read the plan in ``folder``, and check that the files of which it tells are there.

        Raises:
            UsageError: there is none, or it can't be read.
            InvalidModel: it is damaged, or a file is missing, or lies elsewhere.
        """
        path = folder / PLAN
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InvalidModel(f"{path} is not UTF-8") from error
        except FileNotFoundError as error:
            raise UsageError(f"{folder} is no bundle: it has no {PLAN}") from error
        except OSError as error:
            raise UsageError(f"can't read {path}: {error.strerror or error}") from error
        try:
            plan = cls.from_dict(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise InvalidModel(f"{path} is not JSON, or it is cut short") from error
        except InvalidModel as error:
            raise InvalidModel(f"{path}: {error.message}", hint=error.hint) from error
        for file in plan.files:
            if not _is_inside(file, folder):
                raise InvalidModel(f"{path} names a file outside of the bundle: {file!r}")
            if not (folder / file).is_file():
                raise InvalidModel(f"the bundle {folder} lacks {file}")
        return plan


def checksum(data: dict[str, Any]) -> str:
    """The SHA-256 of all entries of a plan but that of the checksum itself."""
    rest = {key: value for key, value in data.items() if key != _CHECKSUM}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _sums(data: dict[str, Any]) -> dict[str, FileSum]:
    if data[_MARK] == _OLDER:
        digest, weights = _text(data, "digest"), data.get("weights")
        return {weights: FileSum(digest)} if digest and isinstance(weights, str) else {}
    entries = data.get("files")
    if not isinstance(entries, dict):
        raise InvalidModel(f"its files are {'missing' if entries is None else 'not listed by name'}")
    sums = {}
    for name, entry in entries.items():
        known = isinstance(entry, dict) and type(entry.get("bytes")) is int
        if not known or not isinstance(entry.get("sha256"), str) or not _SHA256.fullmatch(entry["sha256"]):
            raise InvalidModel(f"its entry for the file {name!r} lacks size or SHA-256")
        sums[name] = FileSum(entry["sha256"], entry["bytes"])
    return sums


def folder_of(path: Path) -> Path | None:
    """The folder of the bundle that ``path`` names, as its folder or its plan; ``None`` if it names none."""
    try:
        if path.is_dir():
            return path if (path / PLAN).is_file() else None
        is_plan = path.name == PLAN and path.is_file() and f'"{_MARK}"'.encode() in path.read_bytes()
    except (OSError, ValueError):  # a NUL; whoever reads it will tell
        return None
    return path.parent if is_plan else None


def _is_inside(file: str, folder: Path) -> bool:
    """Whether ``file`` is a relative path that leads to no other place, by ``..`` or by links."""
    try:
        if not file or Path(file).is_absolute():
            return False
        found = (folder / file).resolve()
    except (OSError, ValueError, RuntimeError):  # a NUL, a loop of links
        return False
    return found.is_relative_to(folder.resolve()) and found != folder.resolve()


def _port_dict(port: Port) -> dict[str, Any]:
    dims = None if port.dims is None else list(port.dims)
    found = {"name": port.name, "type": port.type, "dims": dims}
    return found if port.role == "required" else {**found, "role": port.role}


def _port(data: Any) -> Port:
    if not isinstance(data, dict):
        raise InvalidModel("an input or output is not told of in a known way")
    dims, role = data.get("dims"), data.get("role", "required")
    if role not in _ROLES or not (dims is None or (isinstance(dims, list) and all(map(_is_dim, dims)))):
        raise InvalidModel(f"{data.get('name')!r} is not told of in a known way")
    return Port(_text(data, "name"), _text(data, "type"), None if dims is None else tuple(dims), role)


def _is_dim(dim: Any) -> bool:
    return dim is None or isinstance(dim, str) or (type(dim) is int and dim >= 0)


def _text(data: dict[str, Any], key: str) -> str:
    text = data.get(key)
    if not isinstance(text, str):
        raise InvalidModel(f"its {key} is {'missing' if text is None else 'no text'}")
    return text


def _list(data: dict[str, Any], key: str) -> list[Any]:
    found = data.get(key)
    if not isinstance(found, list):
        raise InvalidModel(f"its {key} are {'missing' if found is None else 'no list'}")
    return found
