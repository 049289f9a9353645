"""MatMulNBits in C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt.fusion.backends.c.template_printer import PackedConstant, TemplatePrinter
from graphopt.fusion.templates.nbits import NBitsParameters

_A, _WEIGHTS, _SCALES, _ZEROS, _BIAS = range(5)


class NBitsPrinter(TemplatePrinter):
    """Prints ``a · weightsᵀ + bias``; the schedules are in ``nbits.h`` and ``nbits_vnni.h``."""

    headers = (
        *(
            "products/gemm_tiles.h",
            "products/low_bits.h",
            "products/nbits.h",
            "products/quantize.h",
            "products/quantized.h",
        ),
        *("products/vnni.h", "products/nbits_vnni.h"),
    )
    names = ("A", "B", "scales", "zero_points", "bias")
    state = "go_nbits product;"

    @property
    def _parameters(self) -> NBitsParameters:
        found: NBitsParameters = self.kernel.parameters
        return found

    def dims(self) -> Sequence[Sequence[str]]:
        return [[*(f"in0[{axis}]" for axis in range(self.rank_of(_A) - 1)), str(self._parameters.columns)]]

    def checks(self) -> Iterator[str]:
        yield from self.shapes.size(_A, self.rank_of(_A) - 1, self._parameters.depth)

    def constants(self) -> Sequence[PackedConstant]:
        parts = [(_WEIGHTS, "weights"), (_SCALES, "scales")]
        if self.operand(_ZEROS) is not None:
            parts.append((_ZEROS, "zeros"))
        return [
            PackedConstant(operand, f"{self.name}_size_of_{part}", f"{self.name}_pack_{part}")
            for operand, part in parts
        ]

    @property
    def _has_integers(self) -> str:
        """The C expression of whether integers are multiplied."""
        found = self._parameters
        has_zeros = int(self.operand(_ZEROS) is not None)
        return f"go_nbits_has_integers({found.bits}, {found.size}, {has_zeros})" if found.rounds else "0"

    def functions(self) -> str:
        found, name = self._parameters, self.name
        shape = f"{found.columns}, {found.blocks}"
        static = f"{found.bits}, {found.size}"
        kind = f"{found.bits}_zeros" if self.operand(_ZEROS) is not None else str(found.bits)
        size, one_size = f"go_nbits_size({shape}, {static})", f"go_nbits_parameters_size({shape})"
        pack = f"go_nbits_pack(from, {shape}, {static}, to)"
        if found.rounds:
            quads = f"go_nbits_pack_quads(from, {shape}, {static}, to)"
            pack = f"if ({self._has_integers}) {quads};\n    else {pack}"
        parts = [
            self._packing("weights", size, pack),
            self._packing("scales", one_size, f"go_nbits_pack_scales(from, {shape}, to)"),
        ]
        if self.operand(_ZEROS) is not None:
            pack = f"go_nbits_pack_zeros(from, {shape}, {found.bits}, to)"
            parts.append(self._packing("zeros", one_size, pack))
        product = "&run->product, "
        real = (
            f"go_nbits_product({product}(int64_t)index, go_nbits_panel_{kind}, go_nbits_tiles_{kind},\n"
            f"                                      {self.finish}, run)"
        )
        whole = f"go_nbits_integers({product}{found.bits}, (int64_t)index, {self.finish}, run)"
        parts.append(
            f"static void {name}_part(void *data, size_t index) {{\n"
            f"    {name}_run *const run = data;\n"
            f"    const int fine = {f'{self._has_integers} ? {whole} : ' if found.rounds else ''}{real};\n"
            f"    if (!fine) __atomic_store_n(&run->failed, 1, __ATOMIC_RELAXED);\n"
            f"}}\n"
        )
        return "".join(parts)

    def _packing(self, part: str, size: str, pack: str) -> str:
        name = self.name
        return (
            f"static size_t {name}_size_of_{part}(const int64_t *dims) {{\n"
            f"    (void)dims;\n    return {size};\n}}\n"
            f"static void {name}_pack_{part}(const void *from, const int64_t *dims, void *to) {{\n"
            f"    (void)dims;\n    {pack};\n}}\n"
        )

    def run(self) -> Iterator[str]:
        found = self._parameters
        rows = " * ".join([f"in0[{axis}]" for axis in range(self.rank_of(_A) - 1)] or ["1"])
        zeros = self.packed(_ZEROS) if self.operand(_ZEROS) is not None else "NULL"
        yield (
            f"    run->product = (go_nbits){{{self.packed(_WEIGHTS)}, {self.packed(_SCALES)}, {zeros}, "
            f"run->in[{_A}], run->in[{_BIAS}], {rows}, {found.columns}, {found.depth}, {found.blocks}, "
            f"{found.size}, {int(found.rounds)}}};"
        )
        checked = ["values", "scales", *(["zeros"] if zeros != "NULL" else [])]
        yield f"    if ({' || '.join(f'!run->product.{part}' for part in checked)}) return 1;"
        yield "    const int64_t parts = go_low_parts(run->product.rows, run->product.columns);"
        yield f"    go_parallel(call, {self.name}_part, run, (size_t)parts);"
        yield from self.memory_check()


PRINTER = NBitsPrinter
