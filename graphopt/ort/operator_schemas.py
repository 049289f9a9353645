"""Definitions of operators in the installed onnxruntime, and the binding of their type parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any

from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Formal:
    """A formal input or output: its name, its type or type parameter, and whether it is variadic."""

    name: str
    type: str
    variadic: bool


@dataclass(frozen=True)
class Schema:
    """One version of an operator.

    Attributes:
        since: the version.
        parameter: the type parameter of the first typed input or output; ``""`` without one.
        inputs, outputs: the formal inputs and outputs.
    """

    since: int
    parameter: str
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]

    def input_type(self, index: int) -> str:
        """The type or type parameter of the input at ``index``."""
        return _at(self.inputs, index)

    def output_type(self, index: int) -> str:
        """The type or type parameter of the output at ``index``."""
        return _at(self.outputs, index)

    def bound(
        self, parameter: str, inputs: Sequence[str | None], outputs: Sequence[str | None]
    ) -> str | None:
        """The type of the first present argument that ``parameter`` constrains; ``None`` if there is none.

        Args:
            parameter: a type parameter, or the name of an input or output.
            inputs, outputs: the types of a node's arguments; ``None`` for omitted ones.
        """
        actual = (*_paired(self.inputs, inputs), *_paired(self.outputs, outputs))
        return next(
            (type for formal, type in actual if type and parameter in (formal.type, formal.name)), None
        )


def _at(formals: Sequence[Formal], index: int) -> str:
    return formals[min(index, len(formals) - 1)].type


def _paired(formals: Sequence[Formal], types: Sequence[str | None]) -> Iterator[tuple[Formal, str | None]]:
    for index, type in enumerate(types):
        if index < len(formals):
            yield formals[index], type
        elif formals and formals[-1].variadic:
            yield formals[-1], type


def schema_of(op_type: str, domain: str, opset: int) -> Schema | None:
    """The operator's definition at ``opset``, or ``None``."""
    since = max(
        (since for since, _ in _definitions().get((domain, op_type), ()) if since <= opset), default=None
    )
    return None if since is None else _schema(op_type, domain, since)


def domains() -> frozenset[str]:
    """The domains of all operators."""
    return frozenset(domain for domain, _ in _definitions())


@lru_cache(maxsize=1)
def _definitions() -> dict[tuple[str, str], list[tuple[int, Any]]]:
    """All versions, and onnxruntime's objects for them, by (domain, op type)."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found: dict[tuple[str, str], list[tuple[int, Any]]] = {}
    for schema in state.get_all_operator_schema():
        found.setdefault((schema.domain, schema.name), []).append((schema.since_version, schema))
    return found


@cache
def _schema(op_type: str, domain: str, since: int) -> Schema:
    own = next(schema for version, schema in _definitions()[domain, op_type] if version == since)
    parameters = {constraint.type_param_str for constraint in own.type_constraints}
    inputs, outputs = (
        tuple(Formal(formal.name, formal.typeStr, "Variadic" in str(formal.option)) for formal in formals)
        for formals in (own.inputs, own.outputs)
    )
    parameter = next((one.type for one in (*inputs, *outputs) if one.type in parameters), "")
    return Schema(since, parameter, inputs, outputs)
