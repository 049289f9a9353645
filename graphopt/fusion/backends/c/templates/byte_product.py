"""Products of bytes in C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt.fusion.backends.c.byte_printer import ByteMatrixPrinter
from graphopt.fusion.backends.c.template_printer import PackedConstant
from graphopt.fusion.templates.byte_product import ByteProductParameters

_A, _B, _A_SCALE, _B_SCALES, _A_ZERO, _B_ZEROS, _BIAS, _SCALE, _ZERO = range(9)


class ByteProductPrinter(ByteMatrixPrinter):
    """Prints a product of bytes; the schedule is in ``byte_tiles.h`` and ``byte_products.h``."""

    headers = (
        *("products/gemm_tiles.h", "products/low_bits.h", "products/quantize.h"),
        *("products/byte_tiles.h", "products/byte_products.h"),
    )
    names = (
        "A",
        "B",
        "a_scale",
        "b_scale",
        "a_zero_point",
        "b_zero_point",
        "bias",
        "y_scale",
        "y_zero_point",
    )
    state = "go_byte_product product;"

    @property
    def _parameters(self) -> ByteProductParameters:
        found: ByteProductParameters = self.kernel.parameters
        return found

    @property
    def is_batched(self) -> bool:
        return self._parameters.batched

    def constants(self) -> Sequence[PackedConstant]:
        return [PackedConstant(_B, f"{self.name}_size", f"{self.name}_pack")]

    def functions(self) -> str:
        name = self.name
        return self.packing("go_byte", self.type_of(_B)) + (
            f"static void {name}_part(void *data, size_t index) {{\n"
            f"    {name}_run *const run = data;\n"
            f"    go_byte_part(&run->product, (int64_t)index, {self.result_type}, {self.finish}, run);\n}}\n"
        )

    def run(self) -> Iterator[str]:
        scales_vary, zeros_vary = map(int, self._parameters.by_column)
        fields = {
            "a_type": self.type_of(_A),
            "b_type": self.type_of(_B),
            "type": self.result_type,
            "a": f"run->in[{_A}]",
            **self.sizes(),
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
        if self.type_of(_A) == "GO_FLOATS":
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
