"""Typed access to the entries of manifests and plans, which are untrusted input."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from graphopt.errors import InvalidModel
from graphopt.ir.signature import Port, Signature
from graphopt.specialization.bundle.names import GENERAL_NAME
from graphopt.specialization.variant_records import VariantRecord
from graphopt.util.file_sums import FileSum

_ROLES = ("required", "overridable", "constant")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Entries:
    """The entries of a JSON object.

    Args:
        data: the object.
        subject: its name in messages, such as ``manifest``.

    Raises:
        InvalidModel: ``data`` is not an object; methods raise it for a missing entry or one of another type.
    """

    def __init__(self, data: Any, subject: str) -> None:
        if not isinstance(data, dict):
            raise InvalidModel(f"malformed {subject}: not a mapping")
        self.data: dict[str, Any] = data
        self._subject = subject

    def text(self, key: str) -> str:
        """The string ``key``."""
        return self._of(key, str, "a string")

    def optional_text(self, key: str) -> str | None:
        """The string ``key``; ``None`` if it is missing or null."""
        return None if self.data.get(key) is None else self.text(key)

    def nullable_text(self, key: str) -> str | None:
        """The string or null ``key``, which must be present."""
        return None if key in self.data and self.data[key] is None else self.text(key)

    def sha256(self, key: str) -> str:
        """The hex digits of a SHA-256."""
        found = self.text(key)
        if not _SHA256.fullmatch(found):
            raise self.error(f"{key} is not a SHA-256")
        return found

    def count(self, key: str) -> int:
        """The nonnegative integer ``key``."""
        found = self._of(key, int, "an integer")
        if type(found) is not int or found < 0:
            raise self.error(f"{key} must be a nonnegative integer")
        return found

    def items(self, key: str) -> list[Any]:
        """The list ``key``."""
        return self._of(key, list, "a list")

    def texts(self, key: str) -> tuple[str, ...]:
        """The list of different strings ``key``."""
        found = self.items(key)
        if not all(isinstance(item, str) for item in found) or len(set(found)) < len(found):
            raise self.error(f"{key} must be a list of different strings")
        return tuple(found)

    def mapping(self, key: str) -> dict[str, Any]:
        """The object ``key``."""
        return self._of(key, dict, "a mapping")

    def entries(self, key: str) -> Entries:
        """The entries of the object ``key``."""
        return Entries(self.mapping(key), f"{self._subject}, {key}")

    def texts_by_name(self, key: str) -> dict[str, str]:
        """The object ``key`` with strings as values."""
        found = self.mapping(key)
        if not all(isinstance(item, str) for item in found.values()):
            raise self.error(f"{key} must be a mapping to strings")
        return found

    def only(self, *keys: str, optional: tuple[str, ...] = ()) -> None:
        """Check that all of ``keys``, and no others except ``optional``, are present."""
        missing = next((key for key in keys if key not in self.data), None)
        if missing is not None:
            raise self.error(f"{missing} missing")
        unknown = next((key for key in self.data if key not in (*keys, *optional)), None)
        if unknown is not None:
            raise self.error(f"unknown entry {unknown!r}")

    def error(self, text: str) -> InvalidModel:
        """An error about these entries."""
        return InvalidModel(f"malformed {self._subject}: {text}")

    def _of(self, key: str, kind: type, name: str) -> Any:
        found = self.data.get(key)
        if not isinstance(found, kind):
            raise self.error(f"{key} {'missing' if found is None else f'must be {name}'}")
        return found


def signature_of(entries: Entries) -> Signature:
    """The signature of the model in ``inputs`` and ``outputs``."""
    inputs, outputs = entries.items("inputs"), entries.items("outputs")
    return Signature(
        tuple(_port(data, entries) for data in inputs), tuple(_port(data, entries) for data in outputs)
    )


def variants_of(entries: Entries) -> tuple[VariantRecord, ...]:
    """The records of the variants, whose names are distinct, and none is that of the general model."""
    variants = tuple(map(VariantRecord.from_dict, entries.items("variants")))
    names = [*(variant.name for variant in variants), GENERAL_NAME]
    if len(set(names)) < len(names):
        raise entries.error("duplicate variant names")
    return variants


def sums_of(entries: Entries) -> dict[str, FileSum]:
    """The size and the checksum of each file in ``files``."""
    sums = {}
    for name, entry in entries.mapping("files").items():
        try:
            item = Entries(entry, "checksum")
            sums[name] = FileSum(item.sha256("sha256"), item.count("bytes"))
        except InvalidModel as error:
            raise entries.error(f"no size or SHA-256 of the file {name!r}") from error
    return sums


def check_sums(files: list[str], sums: Mapping[str, FileSum], entries: Entries) -> None:
    """Check that each of ``files`` has a checksum."""
    lacking = next((name for name in files if name not in sums), None)
    if lacking is not None:
        raise entries.error(f"no checksum of {lacking}")


def _port(data: Any, entries: Entries) -> Port:
    if not isinstance(data, dict):
        raise InvalidModel("unsupported record format for an input or output")
    dims, role = data.get("dims"), data.get("role", "required")
    if role not in _ROLES or not (dims is None or (isinstance(dims, list) and all(map(_is_dim, dims)))):
        raise InvalidModel(f"unsupported record format for {data.get('name')!r}")
    port = Entries(data, "input or output")
    return Port(port.text("name"), port.text("type"), None if dims is None else tuple(dims), role)


def _is_dim(dim: Any) -> bool:
    return dim is None or isinstance(dim, str) or (type(dim) is int and dim >= 0)
