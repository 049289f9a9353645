"""How deep the bodies of a serialized model are nested; protobuf gives up on deep ones."""

from __future__ import annotations

from collections.abc import Iterator

#: protobuf reads 100 messages inside each other. A body takes three, a node, an attribute and a graph; the
#: types of its values take up to six more.
MOST_NESTED = 31
#: The fields that lead from a message to messages in it that may hold graphs (onnx.proto).
_MODEL = {7: "graph", 25: "function"}
_INSIDE = {
    "graph": {1: "node"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {6: "graph", 11: "graph"},
}


def nesting(data: bytes) -> int:
    """The depth of bodies in ``data``, a serialized model; 0 if it is malformed where bodies may be."""
    deepest, pending = 0, [("model", 0, len(data), -1)]
    while pending:
        kind, start, end, depth = pending.pop()
        depth += kind in ("graph", "function")
        deepest = max(deepest, depth)
        inner = _MODEL if kind == "model" else _INSIDE[kind]
        try:
            for field, at, stop in _fields(data, start, end):
                if field in inner:
                    pending.append((inner[field], at, stop, depth))
        except (IndexError, ValueError):
            return 0
    return deepest


def _fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message with a length, each with where it begins and ends.

    Raises:
        IndexError, ValueError: the message is malformed.
    """
    at = start
    while at < end:
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                _, at = _varint(data, at)
            case 1:
                at += 8
            case 2:
                size, at = _varint(data, at)
                yield tag >> 3, at, at + size
                at += size
            case 5:
                at += 4
            case _:
                raise ValueError("no such type of a field")
    if at != end:
        raise ValueError("a field is longer than its message")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
