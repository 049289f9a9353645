"""Sizes in C: numbers, or variables that are computed once per run."""

from __future__ import annotations

from graphopt.fusion.loops.ir import Size


class SizeVariables:
    """The variables for symbolic sizes of a kernel."""

    def __init__(self) -> None:
        self._names: dict[Size, int] = {}

    def __len__(self) -> int:
        return len(self._names)

    def c(self, size: Size) -> str:
        """The C expression of ``size``: a number, or a variable such as ``n3``."""
        if size.constant is not None:
            return str(size.constant)
        return f"n{self._names.setdefault(size, len(self._names))}"

    @property
    def all(self) -> list[Size]:
        """The sizes that have variables, in the order of their numbers."""
        return list(self._names)


def product(size: Size) -> str:
    """The C expression of ``size`` in terms of the symbols ``s0``, ``s1`` and so on."""
    factors = [f"s{symbol}" for symbol in size.symbols]
    return " * ".join(factors if size.factor == 1 else [str(size.factor), *factors])
