"""Nested inputs and outputs: dicts, lists and tuples whose leaves are tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from graphopt.errors import UsageError, unknown

#: Names of inputs or outputs, nested as the caller wants the tensors.
Nested = str | Mapping[str, "Nested"] | list["Nested"] | tuple["Nested", ...]


def names_in(structure: Nested) -> Iterator[str]:
    """The names in ``structure``, in order."""
    if isinstance(structure, str):
        yield structure
    elif not isinstance(structure, Mapping | list | tuple):
        raise UsageError(f"names are nested in dicts, lists and tuples, not in a {type(structure).__name__}")
    else:
        for part in structure.values() if isinstance(structure, Mapping) else structure:
            yield from names_in(part)


def check_names(structure: Nested | None, known: list[str], what: str) -> None:
    """Check that ``structure`` names nothing else than ``known``, and nothing twice.

    Raises:
        UsageError: it does.
    """
    names = [] if structure is None else list(names_in(structure))
    for name in names:
        if name not in known:
            raise unknown(what, name, known)
        if names.count(name) > 1:
            raise UsageError(f"{what} {name!r} is named twice")


def flatten(structure: Nested, values: Any, path: str = "inputs") -> Iterator[tuple[str, Any]]:
    """The tensors in ``values``, which is nested like ``structure``, by name.

    Raises:
        UsageError: it is nested otherwise.
    """
    if isinstance(structure, str):
        yield structure, values
    elif isinstance(structure, Mapping):
        if not isinstance(values, Mapping):
            raise UsageError(f"{path} is no dict")
        for key in values:
            if key not in structure:
                raise UsageError(f"{path} has no part {key!r}; parts: {', '.join(map(str, structure))}")
        for key, part in structure.items():
            if key in values:
                yield from flatten(part, values[key], f"{path}[{key!r}]")
    else:
        if not isinstance(values, list | tuple) or len(values) != len(structure):
            raise UsageError(f"{path} is no list of {len(structure)}")
        for index, (part, value) in enumerate(zip(structure, values, strict=True)):
            yield from flatten(part, value, f"{path}[{index}]")


def unflatten(structure: Nested, values: Mapping[str, Any]) -> Any:
    """The tensors of ``values`` nested like ``structure``."""
    if isinstance(structure, str):
        return values[structure]
    if isinstance(structure, Mapping):
        return {key: unflatten(part, values) for key, part in structure.items()}
    parts = [unflatten(part, values) for part in structure]
    if hasattr(structure, "_fields"):  # a named tuple
        return type(structure)(*parts)
    return type(structure)(parts)


def as_array(value: Any) -> Any:
    """``value`` as a numpy array over the same memory, if it speaks DLPack; other things as they are.

    Raises:
        UsageError: it says that it speaks DLPack, and does not.
    """
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return value
    try:
        return np.from_dlpack(value)
    except Exception as error:  # whatever others raise, such as for tensors that track gradients
        raise UsageError(f"a {type(value).__name__} can't be read by DLPack: {error}") from error
