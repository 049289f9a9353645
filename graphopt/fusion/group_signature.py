"""Signatures: the types of the inputs and outputs of groups, as text in the metadata of the model.

>>> Signature.parse({"inputs": ["f32[d0,64]", "i64[2]={d0,-1}"], "outputs": ["f32[d0,64]"]})  # doctest: +SKIP
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from graphopt import ir
from graphopt.analysis.shape_inference.value_facts import Fact
from graphopt.analysis.symbolic import Dim, SymDim, lone_atom, product, symbol
from graphopt.context import Context
from graphopt.errors import InvalidModel
from graphopt.fusion.loops.ir import CantFuse, Element
from graphopt.fusion.operator_table import element_of
from graphopt.util.lazy_dataclass import dataclass

_TENSOR = re.compile(r"(\w+)\[([^\]]*)\](?:=\{([^}]*)\})?")


@dataclass(frozen=True)
class Tensor:
    """The type of an input or output.

    Attributes:
        dims: numbers, names, or products of them such as ``4*d0``.
        ints: the contents of a small integer tensor, if they are static.
    """

    element: Element
    dims: tuple[str, ...]
    ints: tuple[str, ...] | None = None

    def __str__(self) -> str:
        ints = "" if self.ints is None else f"={{{','.join(self.ints)}}}"
        return f"{self.element.name.lower()}[{','.join(self.dims)}]{ints}"

    @classmethod
    def parse(cls, text: str) -> Tensor:
        """The inverse of ``str``; raises ValueError if ``text`` is malformed."""
        match = _TENSOR.fullmatch(text)
        if match is None:
            raise ValueError(text)
        dims = tuple(match[2].split(",")) if match[2] else ()
        ints = None if match[3] is None else tuple(match[3].split(",")) if match[3] else ()
        for dim in (*dims, *(ints or ())):
            _dim(dim)
        if ints is not None and dims not in ((), (str(len(ints)),)):
            raise ValueError(text)
        try:
            return cls(Element[match[1].upper()], dims, ints)
        except KeyError as error:
            raise ValueError(text) from error

    @property
    def fact(self) -> Fact:
        """The type as a shape fact."""
        contents = None if self.ints is None else tuple(map(_dim, self.ints))
        return Fact(ir.DataType(self.element.value), tuple(map(_dim, self.dims)), contents)


def _dim(text: str) -> Dim:
    """Parse a product of numbers and names; raises ValueError if it is malformed."""
    found: list[Dim] = []
    for factor in text.split("*"):
        if re.fullmatch(r"-?\d+", factor):
            found.append(int(factor))
        elif re.fullmatch(r"d\d+", factor):
            found.append(symbol(factor))
        else:
            raise ValueError(text)
    return product(found)


@dataclass(frozen=True)
class Signature:
    """The types of the inputs and outputs of a group."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @classmethod
    def of(cls, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], cx: Context) -> Signature:
        """The signature of a group with these inputs and outputs.

        Raises:
            CantFuse: a type or rank is unknown, or unsupported by kernels.
        """
        names = _Names()
        shapes = [cx.shape(value) for value in (*inputs, *outputs)]
        for shape in shapes:  # lone symbols first, so that products refer to them
            for dim in shape or ():
                if isinstance(dim, SymDim) and lone_atom(dim) is not None:
                    names.text(dim)
        return cls(
            tuple(_tensor(value, names, cx) for value in inputs),
            tuple(_tensor(value, names, cx, contents=False) for value in outputs),
        )

    def to_dict(self) -> dict[str, list[str]]:
        return {"inputs": list(map(str, self.inputs)), "outputs": list(map(str, self.outputs))}

    @classmethod
    def parse(cls, data: Any) -> Signature:
        """The inverse of :meth:`to_dict`; raises InvalidModel if ``data`` is malformed."""
        try:
            parts = [tuple(Tensor.parse(item) for item in data[key]) for key in ("inputs", "outputs")]
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidModel(f"malformed types of a kernel: {data!r}"[:200]) from error
        return cls(*parts)


class _Names:
    """Names of symbols, numbered by first occurrence."""

    def __init__(self) -> None:
        self._names: dict[object, str] = {}

    def text(self, dim: Dim) -> str:
        """``dim`` as text; an expression other than a product has a separate name."""
        if isinstance(dim, int):
            return str(dim)
        if len(dim.terms) == 1:
            ((monomial, factor),) = dim.terms
            if len(monomial) == 1 and factor == 1:
                return self._name(monomial[0])
            if all(atom in self._names for atom in monomial):
                known = [self._names[atom] for atom in monomial]
                return "*".join([str(factor), *known] if factor != 1 else known)
        return self._name(dim)

    def _name(self, key: object) -> str:
        return self._names.setdefault(key, f"d{len(self._names)}")


def _tensor(value: ir.Value, names: _Names, cx: Context, contents: bool = True) -> Tensor:
    element, shape = element_of(cx.dtype(value)), cx.shape(value)
    if element is None or shape is None:
        raise CantFuse(f"the type of {value.name!r} is unknown or unsupported by kernels")
    ints = cx.known_ints(value) if contents else None
    values = None if ints is None else tuple(names.text(item) for item in ints)
    return Tensor(element, tuple(map(names.text, shape)), values)
