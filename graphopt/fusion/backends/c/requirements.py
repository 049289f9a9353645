"""Checks in C that fail with a message, for the shapes of the operands of templates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt.util.lazy_dataclass import dataclass


def require(condition: str, message: str, *values: str) -> Iterator[str]:
    """A statement that fails unless ``condition`` holds.

    Args:
        message: a format of printf, with ``%lld`` for each of ``values``, which are expressions of C. It does
            not name the kernel, because onnxruntime does.
    """
    arguments = "".join(f", (long long)({value})" for value in values)
    yield f'    if (!({condition})) return go_failure(call, "{message}"{arguments});'


@dataclass(frozen=True)
class ShapeRequirements:
    """Requirements for the shapes of operands, ``inK[axis]`` in C.

    Attributes:
        names: the operands in messages.
    """

    names: Sequence[str]

    def size(self, operand: int, axis: int, expected: str | int) -> Iterator[str]:
        """The size of an axis is ``expected``."""
        return self._axis(operand, axis, f"{{}} == {expected}", "%lld expected", str(expected))

    def shape(self, operand: int, expected: Sequence[str | int]) -> Iterator[str]:
        """The sizes of all axes are those of ``expected``."""
        for axis, size in enumerate(expected):
            yield from self.size(operand, axis, size)

    def size_or_one(self, operand: int, axis: int, size: str | int) -> Iterator[str]:
        """The axis is broadcast to ``size``."""
        return self._axis(operand, axis, f"({{0}} == 1 || {{0}} == {size})", "1 or %lld expected", str(size))

    def multiple(self, operand: int, axis: int, of: int) -> Iterator[str]:
        """The size of an axis is a multiple of a number."""
        return self._axis(operand, axis, f"{{}} % {of} == 0", f"a multiple of {of} expected")

    def at_least(self, operand: int, axis: int, least: int) -> Iterator[str]:
        """The size of an axis is not less than a number."""
        if least > 0:
            yield from self._axis(operand, axis, f"{{}} >= {least}", f"at least {least} expected")

    def _axis(self, operand: int, axis: int, condition: str, expectation: str, *values: str) -> Iterator[str]:
        found = f"in{operand}[{axis}]"
        message = f"{self.names[operand]} is %lld long on axis {axis}, {expectation}"
        return require(condition.format(found), message, found, *values)
