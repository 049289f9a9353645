"""The initializers of the original model that an optimized model depends on, as stored in files.

In a file, the record is the metadata entry ``graphopt:folded`` of the model.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable
from dataclasses import field
from typing import Any

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import READ_RECORD
from graphopt.ir.initializer_reads import (
    SOURCES,
    STANDS_FOR,
    ReadRecord,
    addressable_constants,
    digest_of,
    names_to_json,
    read_record_of,
    sources_of,
    tensor_of,
)
from graphopt.util.lazy_dataclass import dataclass

#: The metadata entry of a model file that contains the record.
FOLDED = "graphopt:folded"
_VERSION = 1
#: Number of characters above which a record is compressed; names in a model often have common parts.
_MAX_PLAIN_CHARACTERS = 512
#: Maximum bytes of a decompressed record; a longer one is rejected.
_MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class FoldRecord:
    """The initializers of the original model that a model depends on.

    Attributes:
        digests: digests of the contents of each folded initializer, by name.
        derived: for each constant that graphopt created, by name, the initializers that it was computed from,
            possibly none.
        merged: for each initializer that replaces equal ones, by name, the names of all these initializers.
        built_in: initializers whose contents may have decided a rewrite, or became an attribute.
    """

    digests: dict[str, str] = field(default_factory=dict)
    derived: dict[str, tuple[str, ...]] = field(default_factory=dict)
    merged: dict[str, tuple[str, ...]] = field(default_factory=dict)
    built_in: frozenset[str] = frozenset()

    def to_json(self) -> str:
        """The text for :meth:`parse`. Each initializer is listed once; other parts refer to it by index.

        A long record is an object with one entry, ``zlib``: the text compressed and encoded in base 85.
        """
        place = {name: index for index, name in enumerate(self.digests)}
        derived, merged = (
            {name: [place[source] for source in sources] for name, sources in table.items()}
            for table in (self.derived, self.merged)
        )
        text = json.dumps(
            {
                "version": _VERSION,
                "initializers": self.digests,
                "derived": derived,
                "merged": merged,
                "built_in": sorted(place[name] for name in self.built_in),
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )
        if len(text) <= _MAX_PLAIN_CHARACTERS:
            return text
        return json.dumps({"zlib": base64.b85encode(zlib.compress(text.encode(), 9)).decode()})

    @classmethod
    def parse(cls, text: str) -> FoldRecord:
        """Parse untrusted text.

        Raises:
            ValueError: the text is not a record.
        """
        data = json.loads(text)
        if isinstance(data, dict) and isinstance(data.get("zlib"), str):
            data = json.loads(_decompress(data["zlib"]))
        if not isinstance(data, dict) or data.get("version") != _VERSION:
            raise ValueError("unknown version")
        digests, derived, merged = (data.get(key) for key in ("initializers", "derived", "merged"))
        if not (isinstance(digests, dict) and isinstance(derived, dict) and isinstance(merged, dict)):
            raise ValueError("an entry is missing")
        if not all(isinstance(digest, str) for digest in digests.values()):
            raise ValueError("a digest is not a string")
        names = list(digests)
        return cls(
            digests,
            {name: tuple(_names_at(places, names)) for name, places in derived.items()},
            {name: tuple(_names_at(places, names)) for name, places in merged.items()},
            frozenset(_names_at(data.get("built_in"), names)),
        )


def _decompress(text: str) -> bytes:
    decompressor = zlib.decompressobj()
    try:
        data = decompressor.decompress(base64.b85decode(text), _MAX_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not decompressor.eof:
        raise ValueError("it is truncated or too long")
    return data


def _names_at(places: Any, names: list[str]) -> list[str]:
    if not isinstance(places, list):
        raise ValueError("a list of initializers is not a list")
    if not all(type(place) is int and 0 <= place < len(names) for place in places):
        raise ValueError("an index of an initializer is out of range")
    return [names[place] for place in places]


def fold_record(model: onnx_ir.Model) -> FoldRecord:
    """The record of ``model``, empty if nothing was folded.

    Raises:
        ValueError: the file contained an invalid record.
    """
    reads = read_record_of(model)
    if reads is None:
        return FoldRecord()
    if reads.unreadable is not None:
        raise ValueError(reads.unreadable)
    derived, merged = {}, {}
    built_in, digests = dict(reads.built_in), dict(reads.digests)
    for value in addressable_constants(model.graph):
        name = value.name or ""
        if SOURCES in value.metadata_props:
            derived[name] = sources_of(value)  # even an empty record marks the model as optimized
            continue
        if STANDS_FOR in value.metadata_props:
            merged[name] = sources_of(value)
        if reads.is_changed and name in reads.of_facts and (tensor := tensor_of(value)) is not None:
            built_in[name] = None
            digests.setdefault(name, digest_of(tensor))
    tables = (*derived.values(), *merged.values())
    needed = dict.fromkeys([*built_in, *(name for sources in tables for name in sources)])
    return FoldRecord(
        {name: digests.get(name, "") for name in sorted(needed)}, derived, merged, frozenset(built_in)
    )


def keep_record(model: onnx_ir.Model, record: FoldRecord) -> None:
    """Set the record of ``model``."""
    model.graph.meta[READ_RECORD] = ReadRecord(
        dict(record.digests),
        dict.fromkeys(sorted(record.built_in)),
        is_changed=True,
    )
    for value in addressable_constants(model.graph):
        for key, table in ((SOURCES, record.derived), (STANDS_FOR, record.merged)):
            value.metadata_props.pop(key, None)
            if value.name in table:
                value.metadata_props[key] = names_to_json(table[value.name])


def build_in(model: onnx_ir.Model, parts: Iterable[onnx_ir.Model]) -> None:
    """Record that ``model`` was assembled from ``parts``, and may lack some of their initializers."""
    own = {value.name for value in addressable_constants(model.graph)}
    digests: dict[str, str] = {}
    built_in: dict[str, None] = {}
    for part in parts:
        record = fold_record(part)
        digests = record.digests | digests
        built_in.update(dict.fromkeys(sorted(record.built_in)))
        for value in addressable_constants(part.graph):
            name = value.name or ""
            if SOURCES in value.metadata_props or STANDS_FOR in value.metadata_props:
                built_in.update(dict.fromkeys(sources_of(value)))
            elif name not in own and (tensor := tensor_of(value)) is not None:
                built_in[name] = None
                digests.setdefault(name, digest_of(tensor))
    model.graph.meta[READ_RECORD] = ReadRecord(digests, built_in, is_changed=True)


def load_record(model: onnx_ir.Model) -> None:
    """Move the record from the metadata of a model that was just loaded to its graph."""
    text = model.metadata_props.pop(FOLDED, None)
    if text is None:
        return
    try:
        keep_record(model, FoldRecord.parse(text))
    except (ValueError, RecursionError) as error:
        model.graph.meta[READ_RECORD] = ReadRecord(unreadable=text[:200] if not str(error) else str(error))


def written_record(model: onnx_ir.Model) -> str | None:
    """The metadata entry for ``model``; ``None`` if nothing was folded."""
    try:
        record = fold_record(model)
    except ValueError as error:
        return json.dumps({"version": 0, "unreadable": str(error)})
    return record.to_json() if record.digests or (record.derived and model.functions) else None
