"""Record the initializers whose contents rewrites depend on.

A rewrite that reads the contents of an initializer embeds them in the model: in a new constant, an attribute,
or the decision itself. Replacing the contents later invalidates the rewrite, so the read must be recorded.
Reads are collected while a pass or rule examines a site (:func:`graphopt.ir.constants.read`), and become part
of the record with the edit (:meth:`Contents.commit`). A derived constant lists the initializers of the
original model that it was computed from; splitting a model into a constant part and the rest relies on this
list, too.

The record is stored in ``graph.meta`` and in the metadata of derived constants, so that clones have it, too.
In a file, it is the metadata entry ``graphopt:folded`` of the model.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from graphopt.ir._onnx_ir import onnx_ir
from graphopt.ir.constants import CONTENTS, NAMESPACE, constant_of
from graphopt.ir.scopes import with_bodies
from graphopt.ir.weights import hash_of

#: The metadata entry of a model file that contains the record.
FOLDED = "graphopt:folded"
#: Metadata of a derived constant: the names of the initializers that it was computed from, as JSON.
_SOURCES = NAMESPACE + "sources"
#: Metadata of a constant that replaces equal ones of the original model: all their names, as JSON.
_STANDS_FOR = NAMESPACE + "stands_for"
_VERSION = 1
#: Encodes lists of names as JSON; one encoder is reused, because most lists are short.
_as_text = json.JSONEncoder(ensure_ascii=False).encode
#: Hex digits of a digest in the record.
_DIGITS = 8
#: Characters above which a record is compressed: names of one model have common parts.
_PLAIN = 512
#: Maximum bytes of a decompressed record; a longer one is rejected.
_LARGEST = 256 << 20


class _Named(NamedTuple):
    """The names of the first ``read`` pending constants, as a list and as JSON."""

    read: int
    names: list[str]
    text: str


@dataclass
class Contents:
    """The initializers that rewrites of a model depend on so far, and the reads in progress.

    Attributes:
        digests: digests of the contents of each folded initializer at that time, by name.
        built_in: initializers whose contents may have decided a rewrite, or became an attribute.
        of_facts: small constants that shape facts depend on, by name. Once the model was edited, they count
            as built in, even if they were removed.
        is_changed: whether the model was edited.
        unreadable: the record of the file, if it is invalid.
        pending: constants read since the last edit, or since :meth:`begin`.
    """

    digests: dict[str, str] = field(default_factory=dict)
    built_in: dict[str, None] = field(default_factory=dict)
    of_facts: dict[str, onnx_ir.Value] = field(default_factory=dict)
    is_changed: bool = False
    unreadable: str | None = None
    pending: dict[onnx_ir.Value, None] = field(default_factory=dict)
    _holders: dict[int, tuple[onnx_ir.TensorProtocol, onnx_ir.Value]] = field(default_factory=dict)
    _named: _Named | None = None
    _given: frozenset[onnx_ir.Value] = frozenset()
    _is_pure: bool = False
    _main: onnx_ir.Graph | None = None

    def begin(self) -> None:
        """Discard pending reads, which led to no edit."""
        self.pending.clear()
        self._named = None
        self._is_pure = False

    def begin_computing(self, sources: Iterable[onnx_ir.Value]) -> None:
        """Record reads of ``sources`` that only serve to compute new constants."""
        self.begin()
        for value in sources:
            self.note_read(value)
        self._is_pure = True

    def commit(self) -> None:
        """Add pending reads to the record after an edit that may depend on them."""
        self.is_changed = True
        if self.pending and not self._is_pure:
            self.built_in.update(dict.fromkeys(self._pending_names().names))
        self.begin()

    def note_constant(
        self, value: onnx_ir.Value, tensor: onnx_ir.TensorProtocol, graph: onnx_ir.Graph
    ) -> None:
        """Record that ``value``, a new constant of ``graph``, was computed from the pending reads.

        A constant that shares its tensor with another is a copy of it.
        """
        held = self._holders.get(id(tensor))
        if held is not None:
            self.pending[held[1]] = None
        value.metadata_props[_SOURCES] = self._pending_names().text
        if not (graph is self._main or (value.producer() is not None and CONTENTS in graph.meta)):
            self._is_pure = False  # its contents can't be replaced by name

    def merge(self, kept: onnx_ir.Value, gone: Iterable[onnx_ir.Value]) -> None:
        """Record that ``kept`` also replaces the equal constants ``gone``."""
        if kept.graph is None or CONTENTS not in kept.graph.meta:
            return
        is_computed, grows = _SOURCES in kept.metadata_props, False
        names = dict.fromkeys(self._names([kept]))
        for value in gone:
            if value.name in self.of_facts:
                self.note_read_for_facts(kept)
            found = dict.fromkeys(self._names([value]))
            if is_computed or _SOURCES not in value.metadata_props:
                names |= found
                grows = True
            else:  # a computed constant may no longer be equal later
                self.built_in.update(names | found)
        if grows:
            kept.metadata_props[_SOURCES if is_computed else _STANDS_FOR] = _as_text(list(names))
            self._named = None

    def note_read(self, value: onnx_ir.Value) -> None:
        """Record a read of the contents of ``value``."""
        if self._is_addressable(value):
            self.pending[value] = None

    def note_read_for_facts(self, value: onnx_ir.Value) -> None:
        """Record that facts depend on the contents of ``value``."""
        if value.name and self._is_addressable(value):
            self.of_facts[value.name] = value

    def watch(self, main: onnx_ir.Graph) -> None:
        """Register the constants of ``main`` and its bodies.

        This recognizes tensors that become other constants, and removed constants that facts depend on.
        """
        self._main = main
        given = []
        for graph in with_bodies(main):
            graph.meta[CONTENTS] = self
            for value in constants_in(graph):
                if value.const_value is not None and self._is_addressable(value):
                    self._holders[id(value.const_value)] = value.const_value, value
                    given.append(value)
        self._given = frozenset(given)

    def _is_addressable(self, value: onnx_ir.Value) -> bool:
        """Whether the contents of ``value`` can be replaced by name; false for initializers of a body."""
        return value.producer() is not None or value.graph is self._main

    def release(self) -> None:
        """Release values and tensors; an edited model depends on the sources of facts."""
        if self.is_changed and self._main is not None:
            for value in self.of_facts.values():
                is_gone = value.graph is None and value in self._given
                if is_gone or (value.graph is not None and _SOURCES not in value.metadata_props):
                    self.built_in.update(dict.fromkeys(self._names([value])))
        self.of_facts.clear()
        self.begin()
        self._holders.clear()
        self._given, self._main = frozenset(), None

    def _pending_names(self) -> _Named:
        """The names of the pending reads, cached for several constants computed from them."""
        if self._named is None or self._named.read != len(self.pending):
            names = self._names(self.pending)
            self._named = _Named(len(self.pending), names, _as_text(names))
        return self._named

    def _names(self, values: Iterable[onnx_ir.Value]) -> list[str]:
        names: dict[str, None] = {}
        for value in values:
            found = sources_of(value)
            names.update(dict.fromkeys(found))
            tensor = None if _SOURCES in value.metadata_props else _tensor_of(value)
            if tensor is not None and found[0] not in self.digests:
                self.digests[found[0]] = digest_of(tensor)
        return list(names)


def track(model: onnx_ir.Model) -> None:
    """Start recording for ``model``, independently of models that it was cloned from."""
    graph = model.graph
    before: Contents | None = graph.meta.get(CONTENTS)
    now = Contents()
    if before is not None:
        if before._main is graph:  # a context that was not closed
            before.release()
        now = dataclasses.replace(
            before,
            digests=dict(before.digests),
            built_in=dict(before.built_in),
            of_facts={},
            is_changed=False,  # facts matter only for later edits
            pending={},
            _holders={},
            _named=None,
            _given=frozenset(),
            _is_pure=False,
            _main=None,
        )
    now.watch(graph)


def contents_of(model: onnx_ir.Model) -> Contents | None:
    """The record in progress of ``model``, or ``None``."""
    found: Contents | None = model.graph.meta.data.get(CONTENTS)  # the store's own lookup is slow
    return found


def sources_of(value: onnx_ir.Value) -> tuple[str, ...]:
    """The original initializers that the initializer ``value`` was derived from, usually itself."""
    text = value.metadata_props.get(_SOURCES) or value.metadata_props.get(_STANDS_FOR)
    return (value.name or "",) if text is None else _listed(text)


@lru_cache(maxsize=256)
def _listed(text: str) -> tuple[str, ...]:
    """Parse a list of names; cached, since many constants may have the same long list."""
    return tuple(json.loads(text))


def constants_in(graph: onnx_ir.Graph) -> Iterator[onnx_ir.Value]:
    """The initializers and outputs of Constant nodes of ``graph``."""
    yield from graph.initializers.values()
    for node in graph:
        if node.op_type == "Constant" and node.domain == "" and len(node.outputs) == 1:
            constant_of(node.outputs[0])  # stores the tensor with the value
            yield node.outputs[0]


def _addressable(main: onnx_ir.Graph) -> Iterator[onnx_ir.Value]:
    """The constants of ``main`` and its bodies whose contents can be replaced by name."""
    for graph in with_bodies(main):
        for value in constants_in(graph):
            if graph is main or value.producer() is not None:
                yield value


def _tensor_of(value: onnx_ir.Value) -> onnx_ir.TensorProtocol | None:
    return constant_of(value) if value.const_value is None else value.const_value


def digest_of(tensor: onnx_ir.TensorProtocol) -> str:
    """A short digest of type, shape and contents."""
    return hash_of(tensor)[:_DIGITS]


@dataclass(frozen=True)
class FoldRecord:
    """The initializers of the original model that a model depends on.

    Attributes:
        digests: digests of the contents of each folded initializer, by name.
        derived: the initializers, possibly none, that each constant of graphopt was computed from, by its
            name.
        merged: each initializer that replaces equal ones, with the names of all of them, by its name.
        built_in: initializers whose contents may have decided a rewrite, or became an attribute.
    """

    digests: dict[str, str] = field(default_factory=dict)
    derived: dict[str, tuple[str, ...]] = field(default_factory=dict)
    merged: dict[str, tuple[str, ...]] = field(default_factory=dict)
    built_in: frozenset[str] = frozenset()

    def to_json(self) -> str:
        """Serialize for :meth:`parse`. Each initializer is listed once, and other parts refer to it by index.

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
        if len(text) <= _PLAIN:
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
            data = json.loads(_unpacked(data["zlib"]))
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
            {name: tuple(_named(places, names)) for name, places in derived.items()},
            {name: tuple(_named(places, names)) for name, places in merged.items()},
            frozenset(_named(data.get("built_in"), names)),
        )


def _unpacked(packed: str) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        data = unpacking.decompress(base64.b85decode(packed), _LARGEST)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacking.eof:
        raise ValueError("it is truncated or too long")
    return data


def _named(places: Any, names: list[str]) -> list[str]:
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
    contents = contents_of(model)
    if contents is None:
        return FoldRecord()
    if contents.unreadable is not None:
        raise ValueError(contents.unreadable)
    derived, merged = {}, {}
    built_in, digests = dict(contents.built_in), dict(contents.digests)
    for value in _addressable(model.graph):
        name = value.name or ""
        if _SOURCES in value.metadata_props:
            derived[name] = sources_of(value)  # even if empty: another run would count it as original
            continue
        if _STANDS_FOR in value.metadata_props:
            merged[name] = sources_of(value)
        if contents.is_changed and name in contents.of_facts and (tensor := _tensor_of(value)) is not None:
            built_in[name] = None
            digests.setdefault(name, digest_of(tensor))
    tables = (*derived.values(), *merged.values())
    wanted = dict.fromkeys([*built_in, *(name for sources in tables for name in sources)])
    return FoldRecord(
        {name: digests.get(name, "") for name in sorted(wanted)}, derived, merged, frozenset(built_in)
    )


def keep_record(model: onnx_ir.Model, record: FoldRecord) -> None:
    """Set the record of ``model``."""
    model.graph.meta[CONTENTS] = Contents(
        dict(record.digests),
        dict.fromkeys(sorted(record.built_in)),
        is_changed=True,
    )
    for value in _addressable(model.graph):
        for key, table in ((_SOURCES, record.derived), (_STANDS_FOR, record.merged)):
            value.metadata_props.pop(key, None)
            if value.name in table:
                value.metadata_props[key] = _as_text(table[value.name])


def build_in(model: onnx_ir.Model, parts: Iterable[onnx_ir.Model]) -> None:
    """Record that ``model`` was assembled from ``parts``, and may lack some of their initializers."""
    own = {value.name for value in _addressable(model.graph)}
    digests: dict[str, str] = {}
    built_in: dict[str, None] = {}
    for part in parts:
        record = fold_record(part)
        digests = record.digests | digests
        built_in.update(dict.fromkeys(sorted(record.built_in)))
        for value in _addressable(part.graph):
            name = value.name or ""
            if _SOURCES in value.metadata_props or _STANDS_FOR in value.metadata_props:
                built_in.update(dict.fromkeys(sources_of(value)))
            elif name not in own and (tensor := _tensor_of(value)) is not None:
                built_in[name] = None
                digests.setdefault(name, digest_of(tensor))
    model.graph.meta[CONTENTS] = Contents(digests, built_in, is_changed=True)


def load_record(model: onnx_ir.Model) -> None:
    """Move the record from the metadata of a model that was just loaded to its graph."""
    text = model.metadata_props.pop(FOLDED, None)
    if text is None:
        return
    try:
        keep_record(model, FoldRecord.parse(text))
    except (ValueError, RecursionError) as error:
        model.graph.meta[CONTENTS] = Contents(unreadable=text[:200] if not str(error) else str(error))


def written_record(model: onnx_ir.Model) -> str | None:
    """The metadata entry for ``model``; ``None`` if nothing was folded."""
    try:
        record = fold_record(model)
    except ValueError as error:
        return json.dumps({"version": 0, "unreadable": str(error)})
    return record.to_json() if record.digests or (record.derived and model.functions) else None
