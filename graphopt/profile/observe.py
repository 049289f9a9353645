"""What a run shows of the values that it is fed, or computes."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from graphopt.ir.signature import Port
from graphopt.profile.guards import is_of
from graphopt.profile.seen import Seen, contents_of


def observe(
    types: Mapping[str, str], values: Mapping[str, Any], *, contents: Container[str] | None = None
) -> dict[str, Seen]:
    """What is seen of those ``values`` that are there, in the order of ``types``.

    Args:
        types: by name, as onnxruntime writes them.
        values: arrays by name; others, too.
        contents: the names of those whose contents count; by default all.
    """
    found = {}
    for name, type_ in types.items():
        value = values.get(name)
        if value is None:
            continue
        shape = _shape(type_, value)
        counts = shape is not None and (contents is None or name in contents)
        found[name] = Seen(type_, shape, contents_of(value) if counts else None)
    return found


def unfit(port: Port, value: Any) -> str | None:
    """Why nothing can be specialized for an input like that; ``None`` if something can.

    It would not get through guards, or onnxruntime does not take it.
    """
    if value is None:
        return f"{port.name!r} is not fed" if port.role == "required" and port.kind == "tensor" else None
    if port.kind != "tensor":
        return None
    shape = _shape(port.type, value)
    if shape is None:
        return f"{port.name!r} is no array"
    if not is_of(value.dtype, port.type):
        return f"{port.name!r} holds {value.dtype}, not {port.element}"
    if 0 in shape:
        return f"{port.name!r} is empty"
    return None if port.takes(shape) else f"{port.name!r} is not of the declared shape"


def _shape(type_: str, value: Any) -> tuple[int, ...] | None:
    """The sizes of a tensor; ``None`` for a sequence, a map or an optional."""
    shape = getattr(value, "shape", None)
    if not type_.startswith("tensor(") or not isinstance(shape, tuple):  # a method, as onnxruntime's own
        return None
    return tuple(map(int, shape))
