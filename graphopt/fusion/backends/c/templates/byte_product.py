"""Products of bytes in C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt.fusion.backends.c.template_printer import PackedConstant, TemplatePrinter
from graphopt.fusion.loops.ir import Element
from graphopt.fusion.templates.byte_product import ByteProductParameters

_A, _B, _A_SCALE, _B_SCALES, _A_ZERO, _B_ZEROS, _BIAS, _SCALE, _ZERO = range(9)
_TYPES = {Element.F32: "GO_FLOATS", Element.U8: "GO_U8", Element.I8: "GO_I8", Element.I32: "GO_SUMS"}


class ByteProductPrinter(TemplatePrinter):
    """Prints a product of bytes; the schedule is in ``byte_tiles.h`` and ``byte_products.h``."""

    headers = (
        *("products/gemm_tiles.h", "products/low_bits.h", "products/quantized.h"),
        *("products/byte_tiles.h", "products/byte_products.h"),
    )
    state = "go_byte_product product;"

    @property
    def _parameters(self) -> ByteProductParameters:
        found: ByteProductParameters = self.kernel.parameters
        return found

    def _rank(self, operand: int) -> int:
        port = self.operand(operand)
        assert port is not None
        return len(port.dims)

    def _type(self, operand: int) -> str:
        port = self.operand(operand)
        assert port is not None
        return _TYPES[port.element]

    @property
    def _result(self) -> str:
        """The type of the result, before the epilogue."""
        if self.epilogue is None:
            return _TYPES[self.kernel.outputs[0].element]
        return _TYPES[self.epilogue.kernel.inputs[self.epilogue.result].element]

    def dims(self) -> Sequence[Sequence[str]]:
        a, b = self._rank(_A), self._rank(_B)
        return [[*(f"in0[{axis}]" for axis in range(a - 1)), f"in1[{b - 1}]"]]

    def checks(self) -> Iterator[str]:
        a, b = self._rank(_A), self._rank(_B)
        pairs = [(a - 1, b - 2)]
        if self._parameters.batched:
            pairs += [(axis, axis) for axis in range(a - 2)]
        for left, right in pairs:
            message = f"the operands do not match on axis {left}"
            yield from self.require(f"in0[{left}] == in1[{right}]", message=message)

    def constants(self) -> Sequence[PackedConstant]:
        return [PackedConstant(_B, f"{self.name}_size", f"{self.name}_pack")]

    def functions(self) -> str:
        name, rank = self.name, self._rank(_B)
        batches = " * ".join([f"dims[{axis}]" for axis in range(rank - 2)] or ["1"])
        shape = f"{batches}, dims[{rank - 2}], dims[{rank - 1}]"
        return (
            f"static size_t {name}_size(const int64_t *dims) {{\n    return go_byte_size({shape});\n}}\n"
            f"static void {name}_pack(const void *from, const int64_t *dims, void *to) {{\n"
            f"    go_byte_pack(from, {shape}, {self._type(_B)}, to);\n}}\n"
            f"static void {name}_part(void *data, size_t index) {{\n"
            f"    {name}_run *const run = data;\n"
            f"    go_byte_part(&run->product, (int64_t)index, {self._result}, {self.finish}, run);\n}}\n"
        )

    def run(self) -> Iterator[str]:
        a, b = self._rank(_A), self._rank(_B)
        leading = [f"in0[{axis}]" for axis in range(a - 2)]
        rows = f"in0[{a - 2}]"
        if not self._parameters.batched:
            rows, leading = " * ".join([*leading, rows]), []
        scales_vary, zeros_vary = map(int, self._parameters.by_column)
        fields = {
            "a_type": self._type(_A),
            "b_type": self._type(_B),
            "type": self._result,
            "a": f"run->in[{_A}]",
            "batches": " * ".join(leading or ["1"]),
            "rows": rows,
            "columns": f"in1[{b - 1}]",
            "depth": f"in1[{b - 2}]",
            "shares_b": str(int(not self._parameters.batched)),
            "a_zero": f"run->in[{_A_ZERO}]",
            "b_zeros": f"run->in[{_B_ZEROS}]",
            "a_scale": f"run->in[{_A_SCALE}]",
            "b_scales": f"run->in[{_B_SCALES}]",
            "b_zeros_vary": str(zeros_vary),
            "b_scales_vary": str(scales_vary),
            "bias": f"run->in[{_BIAS}]",
            "scale": f"run->in[{_SCALE}]",
            "zero": f"run->in[{_ZERO}]",
        }
        values = ", ".join(f".{key} = {value}" for key, value in fields.items())
        yield "    go_byte_product *const product = &run->product;"
        yield f"    *product = (go_byte_product){{{values}}};"
        yield f"    product->packed = {self.packed(_B)};"
        yield "    if (!product->packed) return 1;"
        yield "    if (go_byte_plan(product)) {"
        if self._type(_A) == "GO_FLOATS":
            yield "        go_parallel(call, go_byte_range, product, (size_t)go_byte_slices(product));"
            yield "        go_byte_scale(product);"
        yield "        go_parallel(call, go_byte_slice, product, (size_t)go_byte_slices(product));"
        yield f"        go_parallel(call, {self.name}_part, run, (size_t)go_byte_parts(product));"
        yield "        free(product->rows_of_a);"
        yield "    } else {"
        yield "        product->failed = 1;"
        yield "    }"
        yield "    run->failed = product->failed;"
        yield from self.memory_check()


PRINTER = ByteProductPrinter
