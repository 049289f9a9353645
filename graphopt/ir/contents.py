"""Which constants a model was rewritten by: the record of folded initializers.

A rewrite that reads the contents of an initializer builds them into the model: into a new constant, an
attribute, or the decision itself. Whoever puts other contents into the initializer later has to know that.
Reads are collected while a pass or rule looks at a place (:func:`graphopt.ir.constants.read`), and become
part of the record when the change is made (:meth:`Contents.commit`). A derived constant names the
initializers of the original model that it was computed from, which is also what a model split into a
constant part and the rest needs.

The record lies in ``graph.meta`` and the metadata of derived constants, so that it follows clones, and is
written as the metadata entry ``graphopt:folded`` of the model.
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

#: The metadata entry of a model file that holds the record.
FOLDED = "graphopt:folded"
#: Metadata of a derived constant: the names of the initializers that it was computed from, as JSON.
_SOURCES = NAMESPACE + "sources"
#: Metadata of a constant that stands for others of the original model, equal to it: all their names, as JSON.
_STANDS_FOR = NAMESPACE + "stands_for"
_VERSION = 1
#: Lists of names as JSON; an encoder that is kept, as most lists are short.
_as_text = json.JSONEncoder(ensure_ascii=False).encode
#: Hex digits of a digest that the record keeps.
_DIGITS = 8
#: Characters above which a record is written compressed: names of one model have much in common.
_PLAIN = 512
#: Bytes that a compressed record may take; a longer one is no record of a model that was optimized.
_LARGEST = 256 << 20


class _Named(NamedTuple):
    """The names of the first ``read`` pending constants, as a list and as JSON."""

    read: int
    names: list[str]
    text: str


@dataclass
class Contents:
    """What a model was rewritten by so far, and what is being read at the moment.

    Attributes:
        digests: by the name of each initializer that was folded, a digest of its contents at that time.
        built_in: initializers whose contents may have decided a rewrite, or became an attribute.
        of_facts: by name, small constants that shape facts rely on; they count as built in once the model was
            changed, also if they are gone by then.
        is_changed: whether a rewrite was made.
        unreadable: the record of the file, if it makes no sense.
        pending: constants read since the last change, or since :meth:`begin`.
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
        """Forget what was read: it led to nothing."""
        self.pending.clear()
        self._named = None
        self._is_pure = False

    def begin_computing(self, sources: Iterable[onnx_ir.Value]) -> None:
        """Read ``sources`` for nothing else than constants that are computed from them."""
        self.begin()
        for value in sources:
            self.note_read(value)
        self._is_pure = True

    def commit(self) -> None:
        """Keep what was read since the last change: a change was made because of it."""
        self.is_changed = True
        if self.pending and not self._is_pure:
            self.built_in.update(dict.fromkeys(self._pending_names().names))
        self.begin()

    def note_constant(
        self, value: onnx_ir.Value, tensor: onnx_ir.TensorProtocol, graph: onnx_ir.Graph
    ) -> None:
        """Note that ``value``, a new constant of ``graph``, was made of what was read.

        A constant that shares its tensor with another is a copy of that.
        """
        held = self._holders.get(id(tensor))
        if held is not None:
            self.pending[held[1]] = None
        value.metadata_props[_SOURCES] = self._pending_names().text
        if not (graph is self._main or (value.producer() is not None and CONTENTS in graph.meta)):
            self._is_pure = False  # it can't be replaced by its name

    def merge(self, kept: onnx_ir.Value, gone: Iterable[onnx_ir.Value]) -> None:
        """Note that ``kept`` also stands for ``gone``, equal constants."""
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
            else:  # that it was computed to be equal may no longer be so
                self.built_in.update(names | found)
        if grows:
            kept.metadata_props[_SOURCES if is_computed else _STANDS_FOR] = _as_text(list(names))
            self._named = None

    def note_read(self, value: onnx_ir.Value) -> None:
        """Note that the contents of ``value`` are read at the moment."""
        if self._is_addressable(value):
            self.pending[value] = None

    def note_read_for_facts(self, value: onnx_ir.Value) -> None:
        """Note that facts come from the contents of ``value``."""
        if value.name and self._is_addressable(value):
            self.of_facts[value.name] = value

    def watch(self, main: onnx_ir.Graph) -> None:
        """Recognize constants of ``main`` and its bodies.

        That is: where their tensors become other constants, and where facts relied on one that is removed.
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
        """Whether other contents can be given to ``value`` by its name: no initializer of a body."""
        return value.producer() is not None or value.graph is self._main

    def release(self) -> None:
        """Let go of values and tensors; a changed model relies on what facts were taken from."""
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
        """The names of what was read since the last change, which several constants may be made of."""
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
    """Collect what the model is rewritten by from here on, apart from models that it was copied from."""
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
            is_changed=False,  # facts are of consequence only for changes from here on
            pending={},
            _holders={},
            _named=None,
            _given=frozenset(),
            _is_pure=False,
            _main=None,
        )
    now.watch(graph)


def contents_of(model: onnx_ir.Model) -> Contents | None:
    """What ``model`` was rewritten by, if anybody collects that."""
    found: Contents | None = model.graph.meta.data.get(CONTENTS)  # the store's own lookup is slow
    return found


def sources_of(value: onnx_ir.Value) -> tuple[str, ...]:
    """The initializers of the original model that ``value``, an initializer, holds: mostly itself."""
    text = value.metadata_props.get(_SOURCES) or value.metadata_props.get(_STANDS_FOR)
    return (value.name or "",) if text is None else _listed(text)


@lru_cache(maxsize=256)
def _listed(text: str) -> tuple[str, ...]:
    """The names in a list of them; many constants may have the same, and long, list."""
    return tuple(json.loads(text))


def constants_in(graph: onnx_ir.Graph) -> Iterator[onnx_ir.Value]:
    """The initializers and outputs of Constant nodes of ``graph``."""
    yield from graph.initializers.values()
    for node in graph:
        if node.op_type == "Constant" and node.domain == "" and len(node.outputs) == 1:
            constant_of(node.outputs[0])  # which keeps the tensor with the value
            yield node.outputs[0]


def _addressable(main: onnx_ir.Graph) -> Iterator[onnx_ir.Value]:
    """The constants of ``main`` and its bodies that can be given other contents by their names."""
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
    """Which initializers of the original model went into what.

    Attributes:
        digests: by name of each folded initializer, a digest of the contents that it had.
        derived: by name of a constant that graphopt computed, the initializers that it was computed from,
            perhaps none.
        merged: by name of an initializer, itself and others that were equal to it, which it stands for.
        built_in: initializers whose contents may have decided a rewrite, or became an attribute.
    """

    digests: dict[str, str] = field(default_factory=dict)
    derived: dict[str, tuple[str, ...]] = field(default_factory=dict)
    merged: dict[str, tuple[str, ...]] = field(default_factory=dict)
    built_in: frozenset[str] = frozenset()

    def to_json(self) -> str:
        """As :meth:`parse` reads it. Initializers are named once, and referred to by their place.

        A long record is an object whose only entry, ``zlib``, holds the text compressed and in base 85.
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
        """Read what anybody may have written.

        Raises:
            ValueError: it is no such record.
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
            raise ValueError("a digest is no text")
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
        raise ValueError("it is cut off or too long")
    return data


def _named(places: Any, names: list[str]) -> list[str]:
    if not isinstance(places, list):
        raise ValueError("a list of initializers is none")
    if not all(type(place) is int and 0 <= place < len(names) for place in places):
        raise ValueError("there is no such initializer")
    return [names[place] for place in places]


def fold_record(model: onnx_ir.Model) -> FoldRecord:
    """The record of ``model``, empty if nothing was folded.

    Raises:
        ValueError: the model came with a record that makes no sense.
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
            derived[name] = sources_of(value)  # also of none: another run would count it as an original
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
    """Let ``record`` be the record of ``model``."""
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
    """Note that ``model`` was put together from ``parts``; of their initializers it may lack some."""
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
    """Take the record out of the metadata of a model that was just read."""
    text = model.metadata_props.pop(FOLDED, None)
    if text is None:
        return
    try:
        keep_record(model, FoldRecord.parse(text))
    except (ValueError, RecursionError) as error:
        model.graph.meta[CONTENTS] = Contents(unreadable=text[:200] if not str(error) else str(error))


def written_record(model: onnx_ir.Model) -> str | None:
    """The metadata entry of ``model``; ``None`` if nothing was folded."""
    try:
        record = fold_record(model)
    except ValueError as error:
        return json.dumps({"version": 0, "unreadable": str(error)})
    return record.to_json() if record.digests or (record.derived and model.functions) else None
