"""protobuf's wire format: the fields of a serialized message (https://protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations

from collections.abc import Iterator

#: Maximum nesting depth of bodies. protobuf parses 100 nested messages; a body adds three levels (node,
#: attribute, graph), and the types of its values up to six.
MAX_NESTING = 31
#: Wire type of bytes and messages.
_BYTES = 2
#: Numbers of the fields that lead to graphs, by message kind (onnx.proto).
_MODEL = {7: "graph", 25: "function"}
_INSIDE = {
    "graph": {1: "node"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {6: "graph", 11: "graph"},
}


def fields(
    message: bytes | memoryview, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, int, int, int]]:
    """Number, start, start of the content and end of each field in ``message[start:end]``.

    The content of a field of bytes starts after its length. The content of any other field starts after its
    tag.

    Raises:
        IndexError, ValueError: the message is malformed.
    """
    end = len(message) if end is None else end
    while start < end:
        key, content = read_varint(message, start)
        stop = content
        match key & 7:
            case 0:  # varint
                _, stop = read_varint(message, content)
            case 1:  # 64 bits
                stop = content + 8
            case 2:  # bytes
                length, content = read_varint(message, content)
                stop = content + length
            case 5:  # 32 bits
                stop = content + 4
            case wire_type:
                raise ValueError(f"unknown wire type {wire_type}")
        yield key >> 3, start, content, stop
        start = stop
    if start != end:
        raise ValueError("a field extends beyond its message")


def read_varint(message: bytes | memoryview, at: int) -> tuple[int, int]:
    """The varint at index ``at``, and the index after it. Raises IndexError at the end of ``message``."""
    number = shift = 0
    while True:
        byte = message[at]
        number, shift, at = number | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return number, at


def varint(number: int) -> bytes:
    """``number``, which is not negative, as a varint."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def bytes_tag(number: int) -> bytes:
    """The tag of field ``number``, whose content is bytes or a message."""
    return varint(number << 3 | _BYTES)


def nesting_depth(model: bytes) -> int:
    """The nesting depth of bodies in a serialized model; 0 if a part that may contain bodies is malformed."""
    deepest, pending = 0, [("model", 0, len(model), -1)]
    while pending:
        kind, start, end, depth = pending.pop()
        depth += kind in ("graph", "function")
        deepest = max(deepest, depth)
        inner = _MODEL if kind == "model" else _INSIDE[kind]
        try:
            for number, field, content, stop in fields(model, start, end):
                if number in inner and model[field] & 7 == _BYTES:
                    pending.append((inner[number], content, stop, depth))
        except (IndexError, ValueError):
            return 0
    return deepest
