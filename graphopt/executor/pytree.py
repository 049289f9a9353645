"""Nested inputs and outputs (pytrees): dicts, lists and tuples with tensors as leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from graphopt.errors import UsageError, unknown

#: A tree of names of inputs or outputs, with the structure of the caller's tensors.
Nested = str | Mapping[str, "Nested"] | list["Nested"] | tuple["Nested", ...]


def leaves(structure: Nested) -> Iterator[str]:
    """The names in ``structure``, in order.

    Raises:
        UsageError: ``structure`` has other nodes than dicts, lists and tuples.
    """
    if isinstance(structure, str):
        yield structure
    elif not isinstance(structure, Mapping | list | tuple):
        raise UsageError(
            f"names must be nested in dicts, lists and tuples, not in a {type(structure).__name__}"
        )
    else:
        for part in structure.values() if isinstance(structure, Mapping) else structure:
            yield from leaves(part)


def check_names(structure: Nested | None, known: list[str], kind: str) -> None:
    """Check that the names in ``structure`` are distinct and among ``known``.

    Args:
        kind: a noun for messages, such as ``input``.

    Raises:
        UsageError: a name is unknown or occurs twice.
    """
    names = [] if structure is None else list(leaves(structure))
    for name in names:
        if name not in known:
            raise unknown(kind, name, known)
        if names.count(name) > 1:
            raise UsageError(f"duplicate {kind} {name!r}")


def flatten(structure: Nested, values: Any, path: str = "inputs") -> Iterator[tuple[str, Any]]:
    """The leaves of ``values`` by their names in ``structure``.

    Args:
        path: the path of ``values``, for messages.

    Raises:
        UsageError: the structures differ.
    """
    if isinstance(structure, str):
        yield structure, values
    elif isinstance(structure, Mapping):
        if not isinstance(values, Mapping):
            raise UsageError(f"{path} is not a dict")
        for key in values:
            if key not in structure:
                raise UsageError(f"{path} has no key {key!r}; keys: {', '.join(map(str, structure))}")
        for key, part in structure.items():
            if key in values:
                yield from flatten(part, values[key], f"{path}[{key!r}]")
    else:
        if not isinstance(values, list | tuple) or len(values) != len(structure):
            raise UsageError(f"{path} is not a list of {len(structure)}")
        for index, (part, value) in enumerate(zip(structure, values, strict=True)):
            yield from flatten(part, value, f"{path}[{index}]")


def unflatten(structure: Nested, values: Mapping[str, Any]) -> Any:
    """The tensors in ``values``, by name, in a tree like ``structure``."""
    if isinstance(structure, str):
        return values[structure]
    if isinstance(structure, Mapping):
        return {key: unflatten(part, values) for key, part in structure.items()}
    parts = [unflatten(part, values) for part in structure]
    if hasattr(structure, "_fields"):  # a named tuple
        return type(structure)(*parts)
    return type(structure)(parts)


def as_array(value: Any) -> Any:
    """``value`` as a numpy array over the same memory, if it supports DLPack; otherwise unchanged.

    Raises:
        UsageError: the conversion by DLPack failed.
    """
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return value
    try:
        array = np.from_dlpack(value)
        if hasattr(value, "data_type") and value.data_type() == "tensor(bool)":
            return array.view(bool)  # onnxruntime exports booleans as bytes
        return array
    except Exception as error:  # any exception, for example for tensors that track gradients
        raise UsageError(f"can't read a {type(value).__name__} by DLPack: {error}") from error
