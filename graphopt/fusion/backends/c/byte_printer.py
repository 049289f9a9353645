"""The common parts of the printers of products and convolutions of bytes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from graphopt.fusion.backends.c.expressions import float_literal
from graphopt.fusion.backends.c.template_printer import TemplatePrinter
from graphopt.fusion.loops.ir import Element

#: Types of operands and results in ``quantize.h``.
_TYPES = {Element.F32: "GO_FLOATS", Element.U8: "GO_U8", Element.I8: "GO_I8", Element.I32: "GO_SUMS"}
_A, _B = range(2)


class BytePrinter(TemplatePrinter):
    """Prints a kernel of bytes."""

    def type_of(self, operand: int) -> str:
        """The type of an operand, in C."""
        port = self.operand(operand)
        assert port is not None
        return _TYPES[port.element]

    @property
    def result_type(self) -> str:
        """The type of the result, before the epilogue."""
        if self.epilogue is None:
            return _TYPES[self.kernel.outputs[0].element]
        return _TYPES[self.epilogue.kernel.inputs[self.epilogue.result].element]

    def bias_members(self, scale: float | None, bias: int, scales: int) -> dict[str, str]:
        """The members of ``go_bias`` in C, for a float bias, or an integer bias with one or more scales."""
        if scale is None and self.operand(scales) is None:
            return {"bias": f"{{.floats = run->in[{bias}]}}"}
        members = f".integers = run->in[{bias}], .scales = run->in[{scales}]"
        return {"bias": f"{{{members}, .scale = {float_literal(scale or 0)}}}"}


class ByteMatrixPrinter(BytePrinter):
    """Prints a product of operands 0 and 1: a [..., rows, depth] and b [depth, columns] or its transpose.

    If the product is batched, each matrix of ``a`` has its own ``b``. Otherwise, all batches of ``a`` are
    rows of one matrix.
    """

    @property
    @abstractmethod
    def is_batched(self) -> bool: ...

    @property
    def is_transposed(self) -> bool:
        """Whether ``b`` is [columns, depth]."""
        return False

    @property
    def _b_axes(self) -> tuple[int, int]:
        """The reduction axis and the column axis of ``b``."""
        last = self.rank_of(_B) - 1
        return (last, last - 1) if self.is_transposed else (last - 1, last)

    def dims(self) -> Sequence[Sequence[str]]:
        return [[*(f"in0[{axis}]" for axis in range(self.rank_of(_A) - 1)), f"in1[{self._b_axes[1]}]"]]

    def checks(self) -> Iterator[str]:
        a = self.rank_of(_A)
        pairs = [(a - 1, self._b_axes[0])]
        if self.is_batched:
            pairs += [(axis, axis) for axis in range(a - 2)]
        for left, right in pairs:
            yield from self.shapes.size(_B, right, f"in{_A}[{left}]")

    def packing(self, prefix: str, *more: str) -> str:
        """``NAME_size`` and ``NAME_pack`` for ``b``, by the functions ``PREFIX_size`` and ``PREFIX_pack``.

        Args:
            more: arguments of ``PREFIX_pack`` after the sizes.
        """
        name, rank = self.name, self.rank_of(_B)
        batches = " * ".join([f"dims[{axis}]" for axis in range(rank - 2)] or ["1"])
        shape = ", ".join([batches, *(f"dims[{axis}]" for axis in self._b_axes)])
        return (
            f"static size_t {name}_size(const int64_t *dims) {{\n    return {prefix}_size({shape});\n}}\n"
            f"static void {name}_pack(const void *from, const int64_t *dims, void *to) {{\n"
            f"    {prefix}_pack({', '.join(('from', shape, *more, 'to'))});\n}}\n"
        )

    def sizes(self) -> Mapping[str, str]:
        """The members of a product in C that are its sizes."""
        a = self.rank_of(_A)
        leading = [f"in0[{axis}]" for axis in range(a - 2)]
        rows = f"in0[{a - 2}]"
        if not self.is_batched:
            rows, leading = " * ".join([*leading, rows]), []
        return {
            "batches": " * ".join(leading or ["1"]),
            "rows": rows,
            "columns": f"in1[{self._b_axes[1]}]",
            "depth": f"in1[{self._b_axes[0]}]",
            "shares_b": str(int(not self.is_batched)),
        }
