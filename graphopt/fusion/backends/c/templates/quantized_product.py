"""Products of quantized operands in C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt.fusion.backends.c.byte_printer import ByteMatrixPrinter
from graphopt.fusion.backends.c.expressions import float_literal
from graphopt.fusion.backends.c.template_printer import PackedConstant
from graphopt.fusion.templates.quantized_product import ProductParameters, Quantization

_A, _B, _SCALES, _ZEROS, _BIAS, _BIAS_SCALES = range(6)


class QuantizedProductPrinter(ByteMatrixPrinter):
    """Prints a product between quantizers, scheduled in ``quantized.h`` and ``vnni.h``."""

    headers = (
        *("products/gemm_tiles.h", "products/low_bits.h", "products/quantize.h"),
        *("products/quantized.h", "products/vnni.h"),
    )
    names = ("A", "B", "the scales of B", "the zero points of B", "the bias", "the scales of the bias")
    state = "go_quantized product;"

    @property
    def _parameters(self) -> ProductParameters:
        found: ProductParameters = self.kernel.parameters
        return found

    @property
    def is_batched(self) -> bool:
        return self._parameters.batched

    @property
    def is_transposed(self) -> bool:
        return self._parameters.is_transposed

    @property
    def _is_integer(self) -> bool:
        """Whether integers are multiplied if the machine does so."""
        return self._parameters.a is not None and self._parameters.b.zero is not None

    def constants(self) -> Sequence[PackedConstant]:
        return [PackedConstant(_B, f"{self.name}_size", f"{self.name}_pack")] if self._is_integer else []

    def functions(self) -> str:
        name, store = self.name, self.finish
        parts = []
        if self._is_integer:
            more = (self.type_of(_B), str(self._parameters.b.zero), str(int(self.is_transposed)))
            parts.append(self.packing("go_integers", *more))
        if self.result_type != "GO_FLOATS":
            store = f"{name}_quantize"
            parts.append(
                f"static void {store}(void *data, int64_t at, int64_t count, const void *values) {{\n"
                f"    char quantized[GO_LOW_WIDTH];\n"
                f"    go_quantize_row(&(({name}_run *)data)->product, values, count, quantized);\n"
                f"    {self.finish}(data, at, count, quantized);\n}}\n"
            )
        fine = f"go_quantized_floats(product, (int64_t)index, {store}, run)"
        if self._is_integer:
            whole = f"go_quantized_integers(product, (int64_t)index, {self.finish}, run)"
            fine = f"product->packed ? {whole} : {fine}"
        parts.append(
            f"static void {name}_part(void *data, size_t index) {{\n"
            f"    {name}_run *const run = data;\n"
            f"    const go_quantized *const product = &run->product;\n"
            f"    const int fine = {fine};\n"
            f"    if (!fine) __atomic_store_n(&run->failed, 1, __ATOMIC_RELAXED);\n}}\n"
        )
        return "".join(parts)

    def run(self) -> Iterator[str]:
        found = self._parameters
        fields = {
            "a_type": self.type_of(_A),
            "b_type": self.type_of(_B),
            "type": self.result_type,
            "a": f"run->in[{_A}]",
            "b": f"run->in[{_B}]",
            "b_scales": f"run->in[{_SCALES}]",
            "b_zeros": f"run->in[{_ZEROS}]",
            "is_turned": str(int(self.is_transposed)),
            **self.bias_members(found.bias_scale, _BIAS, _BIAS_SCALES),
            **self.sizes(),
        }
        for prefix, part in (("a_", found.a), ("b_", found.b), ("", found.result)):
            fields |= _numbers(prefix, part)
        values = ", ".join(f".{key} = {value}" for key, value in fields.items())
        yield f"    run->product = (go_quantized){{{values}}};"
        if found.result is not None:
            bounds = ", ".join(map(float_literal, (found.low, found.high)))
            yield "    go_quantized *const product = &run->product;"
            scaling = "product->scale, product->zero, product->type"
            yield f"    product->bounds = go_bounds_of({bounds}, {scaling});"
        if self._is_integer:
            yield "    if (go_has_integers(run->product.depth)) {"
            yield f"        run->product.packed = {self.packed(_B)};"
            yield "        if (!run->product.packed) return 1;"
            yield "    }"
        yield "    const int64_t parts = go_low_parts(run->product.rows, run->product.columns);"
        yield f"    go_parallel(call, {self.name}_part, run, (size_t)(run->product.batches * parts));"
        yield from self.memory_check()


def _numbers(prefix: str, part: Quantization | None) -> dict[str, str]:
    if part is None:
        return {}
    found = {} if part.scale is None else {f"{prefix}scale": float_literal(part.scale)}
    return found if part.zero is None else found | {f"{prefix}zero": str(part.zero)}


PRINTER = QuantizedProductPrinter
