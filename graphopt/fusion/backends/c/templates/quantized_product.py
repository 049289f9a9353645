"""Products of quantized operands in C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt.fusion.backends.c.expressions import float_literal
from graphopt.fusion.backends.c.template_printer import PackedConstant, TemplatePrinter
from graphopt.fusion.loops.ir import Element
from graphopt.fusion.templates.quantized_product import ProductParameters, Quantization

_A, _B, _SCALES, _ZEROS = range(4)
_TYPES = {Element.F32: "GO_FLOATS", Element.U8: "GO_U8", Element.I8: "GO_I8"}


class QuantizedProductPrinter(TemplatePrinter):
    """Prints ``quantize(dequantize(a) · dequantize(b))``, scheduled in ``quantized.h`` and ``vnni.h``."""

    headers = ("products/gemm_tiles.h", "products/low_bits.h", "products/quantized.h", "products/vnni.h")
    state = "go_quantized product;"

    @property
    def _parameters(self) -> ProductParameters:
        found: ProductParameters = self.kernel.parameters
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
        if self._parameters.result is None:
            return "GO_FLOATS"
        if self.epilogue is None:
            return _TYPES[self.kernel.outputs[0].element]
        return _TYPES[self.epilogue.kernel.inputs[self.epilogue.result].element]

    @property
    def _is_integer(self) -> bool:
        """Whether integers are multiplied if the machine does so."""
        return self._parameters.a is not None and self._parameters.b.zero is not None

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
        return [PackedConstant(_B, f"{self.name}_size", f"{self.name}_pack")] if self._is_integer else []

    def functions(self) -> str:
        name, store = self.name, self.finish
        parts = [self._packing()] if self._is_integer else []
        if self._result != "GO_FLOATS":
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

    def _packing(self) -> str:
        name, rank, zero = self.name, self._rank(_B), self._parameters.b.zero
        batches = " * ".join([f"dims[{axis}]" for axis in range(rank - 2)] or ["1"])
        shape = f"{batches}, dims[{rank - 2}], dims[{rank - 1}]"
        return (
            f"static size_t {name}_size(const int64_t *dims) {{\n    return go_integers_size({shape});\n}}\n"
            f"static void {name}_pack(const void *from, const int64_t *dims, void *to) {{\n"
            f"    go_integers_pack(from, {shape}, {self._type(_B)}, {zero}, to);\n}}\n"
        )

    def run(self) -> Iterator[str]:
        found = self._parameters
        a, b = self._rank(_A), self._rank(_B)
        leading = [f"in0[{axis}]" for axis in range(a - 2)]
        rows = f"in0[{a - 2}]"
        if not found.batched:
            rows, leading = " * ".join([*leading, rows]), []
        fields = {
            "a_type": self._type(_A),
            "b_type": self._type(_B),
            "type": self._result,
            "a": f"run->in[{_A}]",
            "b": f"run->in[{_B}]",
            "b_scales": f"run->in[{_SCALES}]",
            "b_zeros": f"run->in[{_ZEROS}]",
            "batches": " * ".join(leading or ["1"]),
            "rows": rows,
            "columns": f"in1[{b - 1}]",
            "depth": f"in1[{b - 2}]",
            "shares_b": str(int(not found.batched)),
        }
        for prefix, part in (("a_", found.a), ("b_", found.b), ("", found.result)):
            fields |= _numbers(prefix, part)
        values = ", ".join(f".{key} = {value}" for key, value in fields.items())
        yield f"    run->product = (go_quantized){{{values}}};"
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
