"""SizeVariables in C: numbers where they are known, else variables that are computed once a run."""

from __future__ import annotations

from graphopt.fusion.loops.ir import Size


class SizeVariables:
    """The sizes that a kernel uses."""

    def __init__(self) -> None:
        self._names: dict[Size, int] = {}

    def __len__(self) -> int:
        return len(self._names)

    def c(self, size: Size) -> str:
        """``size`` as an expression: a number, or ``n3``."""
        if size.constant is not None:
            return str(size.constant)
        return f"n{self._names.setdefault(size, len(self._names))}"

    @property
    def all(self) -> list[Size]:
        """Those that are variables, in the order of their numbers."""
        return list(self._names)


def product(size: Size) -> str:
    """``size`` from the symbols ``s0``, ``s1`` ..."""
    factors = [f"s{symbol}" for symbol in size.symbols]
    return " * ".join(factors if size.factor == 1 else [str(size.factor), *factors])
