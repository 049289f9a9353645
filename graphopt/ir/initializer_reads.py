"""Record the initializers whose contents rewrites depend on.

A rewrite that reads the contents of an initializer embeds them in the model: in a new constant, an attribute,
or the decision itself. Replacing the contents later invalidates the rewrite, so the read must be recorded.
Reads are collected while a pass or rule examines a site (:func:`graphopt.ir.constants.read`), and become part
of the record with the edit (:meth:`ReadRecord.commit`). A derived constant lists the initializers of the
original model that it was computed from; splitting a model into a constant part and the rest also relies on
this list.

The record is stored in ``graph.meta`` and in the metadata of derived constants, so that clones also have it.
:mod:`graphopt.ir.folded_initializers` stores it in files.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import field
from functools import lru_cache
from typing import NamedTuple

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import NAMESPACE, READ_RECORD, constant_of
from graphopt.ir.nested_graphs import with_bodies
from graphopt.ir.weights import hash_of
from graphopt.util.lazy_dataclass import dataclass

#: Metadata of a derived constant: the names of the initializers that it was computed from, as JSON.
SOURCES = NAMESPACE + "sources"
#: Metadata of a constant that replaces equal ones of the original model: the names of all of these constants,
#: as JSON.
STANDS_FOR = NAMESPACE + "stands_for"
#: Encodes lists of names as JSON; one encoder is reused, because most lists are short.
names_to_json = json.JSONEncoder(ensure_ascii=False).encode
#: Hex digits of a digest in the record.
_DIGITS = 8


class _PendingNames(NamedTuple):
    """The names of the first ``read`` pending constants, as a list and as JSON."""

    read: int
    names: list[str]
    text: str


@dataclass
class ReadRecord:
    """The initializers that rewrites of a model depend on so far, and the reads in progress.

    Attributes:
        digests: digests of the contents of each folded initializer at that time, by name.
        built_in: initializers whose contents may have decided a rewrite, or became an attribute.
        of_facts: small constants that shape facts depend on, by name. Once the model was edited, they count
            as built in, even if they were removed.
        is_changed: whether the model was edited.
        unreadable: the record of the file, if it is invalid.
        pending: constants read since the last edit, or since :meth:`begin`.
        operands: as ``pending``, but read only to compute new constants, so that they decide no rewrite.
    """

    digests: dict[str, str] = field(default_factory=dict)
    built_in: dict[str, None] = field(default_factory=dict)
    of_facts: dict[str, onnx_ir.Value] = field(default_factory=dict)
    is_changed: bool = False
    unreadable: str | None = None
    pending: dict[onnx_ir.Value, None] = field(default_factory=dict)
    operands: dict[onnx_ir.Value, None] = field(default_factory=dict)
    _holders: dict[int, tuple[onnx_ir.TensorProtocol, onnx_ir.Value]] = field(default_factory=dict)
    _cached_names: _PendingNames | None = None
    _given: frozenset[onnx_ir.Value] = frozenset()
    _is_pure: bool = False
    _main: onnx_ir.Graph | None = None

    def begin(self) -> None:
        """Discard pending reads, which led to no edit."""
        self.pending.clear()
        self.operands.clear()
        self._cached_names = None
        self._is_pure = False

    def begin_computing(self, sources: Iterable[onnx_ir.Value]) -> None:
        """Record reads of ``sources`` whose only purpose is to compute new constants."""
        self.begin()
        for value in sources:
            self.note_read(value)
        self._is_pure = True

    def commit(self) -> None:
        """Add pending reads to the record after an edit that may depend on them."""
        self.is_changed = True
        if self.pending and not self._is_pure:
            names = self._record_sources(self.pending) if self.operands else self._pending_names().names
            self.built_in.update(dict.fromkeys(names))
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
        value.metadata_props[SOURCES] = self._pending_names().text
        if not (graph is self._main or (value.producer() is not None and READ_RECORD in graph.meta)):
            self._is_pure = False  # the contents of this constant can't be replaced by name

    def merge(self, kept: onnx_ir.Value, gone: Iterable[onnx_ir.Value]) -> None:
        """Record that ``kept`` also replaces the equal constants ``gone``."""
        if kept.graph is None or READ_RECORD not in kept.graph.meta:
            return
        is_computed, grows = SOURCES in kept.metadata_props, False
        names = dict.fromkeys(self._record_sources([kept]))
        for value in gone:
            if value.name in self.of_facts:
                self.note_read_for_facts(kept)
            found = dict.fromkeys(self._record_sources([value]))
            if is_computed or SOURCES not in value.metadata_props:
                names |= found
                grows = True
            else:  # a computed constant may no longer be equal later
                self.built_in.update(names | found)
        if grows:
            kept.metadata_props[SOURCES if is_computed else STANDS_FOR] = names_to_json(list(names))
            self._cached_names = None

    def note_read(self, value: onnx_ir.Value) -> None:
        """Record a read of the contents of ``value``."""
        if self._is_addressable(value):
            self.pending[value] = None

    def note_operand(self, value: onnx_ir.Value) -> None:
        """Record a read of the contents of ``value`` that only serves to compute new constants."""
        if self._is_addressable(value):
            self.operands[value] = None

    def note_read_for_facts(self, value: onnx_ir.Value) -> None:
        """Record that facts depend on the contents of ``value``."""
        if value.name and self._is_addressable(value):
            self.of_facts[value.name] = value

    def watch(self, main: onnx_ir.Graph) -> None:
        """Register the constants of ``main`` and its bodies.

        The record then recognizes new constants that share the tensor of a registered one, and the removal of
        a constant that facts depend on.
        """
        self._main = main
        given = []
        for graph in with_bodies(main):
            graph.meta[READ_RECORD] = self
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
                if is_gone or (value.graph is not None and SOURCES not in value.metadata_props):
                    self.built_in.update(dict.fromkeys(self._record_sources([value])))
        self.of_facts.clear()
        self.begin()
        self._holders.clear()
        self._given, self._main = frozenset(), None

    def _pending_names(self) -> _PendingNames:
        """The names of the pending reads, cached for several constants computed from them."""
        count = len(self.pending) + len(self.operands)
        if self._cached_names is None or self._cached_names.read != count:
            names = self._record_sources(self.pending | self.operands)
            self._cached_names = _PendingNames(count, names, names_to_json(names))
        return self._cached_names

    def _record_sources(self, values: Iterable[onnx_ir.Value]) -> list[str]:
        names: dict[str, None] = {}
        for value in values:
            found = sources_of(value)
            names.update(dict.fromkeys(found))
            tensor = None if SOURCES in value.metadata_props else tensor_of(value)
            if tensor is not None and found[0] not in self.digests:
                self.digests[found[0]] = digest_of(tensor)
        return list(names)


def track(model: onnx_ir.Model) -> None:
    """Start recording for ``model``, independently of models that it was cloned from."""
    graph = model.graph
    before: ReadRecord | None = graph.meta.get(READ_RECORD)
    now = ReadRecord()
    if before is not None:
        if before._main is graph:  # left by a context that was not closed
            before.release()
        now = dataclasses.replace(
            before,
            digests=dict(before.digests),
            built_in=dict(before.built_in),
            of_facts={},
            is_changed=False,  # facts matter only for later edits
            pending={},
            operands={},
            _holders={},
            _cached_names=None,
            _given=frozenset(),
            _is_pure=False,
            _main=None,
        )
    now.watch(graph)


def read_record_of(model: onnx_ir.Model) -> ReadRecord | None:
    """The record in progress of ``model``, or ``None``."""
    found: ReadRecord | None = model.graph.meta.data.get(READ_RECORD)  # the store's own lookup is slow
    return found


def sources_of(value: onnx_ir.Value) -> tuple[str, ...]:
    """The original initializers from which ``value`` was derived, usually ``value`` itself."""
    text = value.metadata_props.get(SOURCES) or value.metadata_props.get(STANDS_FOR)
    return (value.name or "",) if text is None else _parse_names(text)


def merged_into(value: onnx_ir.Value) -> tuple[str, ...]:
    """The original initializers of equal contents that ``value`` replaces, itself included; often none."""
    return sources_of(value) if STANDS_FOR in value.metadata_props else ()


@lru_cache(maxsize=256)
def _parse_names(text: str) -> tuple[str, ...]:
    """Parse a list of names; cached, because many constants may have the same long list."""
    return tuple(json.loads(text))


def constants_in(graph: onnx_ir.Graph) -> Iterator[onnx_ir.Value]:
    """The initializers and outputs of Constant nodes of ``graph``."""
    yield from graph.initializers.values()
    for node in graph:
        if node.op_type == "Constant" and node.domain == "" and len(node.outputs) == 1:
            constant_of(node.outputs[0])  # stores the tensor with the value
            yield node.outputs[0]


def addressable_constants(main: onnx_ir.Graph) -> Iterator[onnx_ir.Value]:
    """The constants of ``main`` and its bodies whose contents can be replaced by name."""
    for graph in with_bodies(main):
        for value in constants_in(graph):
            if graph is main or value.producer() is not None:
                yield value


def tensor_of(value: onnx_ir.Value) -> onnx_ir.TensorProtocol | None:
    """The contents of ``value``, if it is constant."""
    return constant_of(value) if value.const_value is None else value.const_value


def digest_of(tensor: onnx_ir.TensorProtocol) -> str:
    """A short digest of type, shape and contents."""
    return hash_of(tensor)[:_DIGITS]
