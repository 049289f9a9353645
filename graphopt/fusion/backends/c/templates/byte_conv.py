"""Convolutions of bytes in C."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from graphopt.fusion.backends.c.byte_printer import BytePrinter
from graphopt.fusion.backends.c.template_printer import PackedConstant
from graphopt.fusion.backends.c.templates.conv import MODES, least_size
from graphopt.fusion.templates.byte_conv import ByteConvParameters

_X, _WEIGHTS, _X_SCALE, _W_SCALES, _X_ZERO, _W_ZEROS, _BIAS, _SCALE, _ZERO = range(9)


class ByteConvPrinter(BytePrinter):
    """Prints a convolution of bytes, of operands 0 and 1; the schedule is in ``byte_conv*.h``.

    Attributes:
        conv: the ``go_byte_conv`` in the run.
        convert: the function that converts sums to results.
    """

    headers: ClassVar[tuple[str, ...]] = (
        *("products/gemm_tiles.h", "products/low_bits.h", "products/quantize.h"),
        *("products/byte_tiles.h", "products/conv_sizes.h", "products/shuffles.h"),
        *("products/byte_conv_plan.h", "products/byte_conv_filters.h"),
        *("products/byte_conv_input.h", "products/byte_conv.h"),
    )
    names: ClassVar[tuple[str, ...]] = (
        *("x", "w", "x_scale", "w_scale", "x_zero_point", "w_zero_point"),
        *("B", "y_scale", "y_zero_point"),
    )
    state = "go_byte_conv conv;"
    conv: ClassVar[str] = "run->conv"
    convert: ClassVar[str] = "go_byte_conv_results"

    @property
    def sizes(self) -> ByteConvParameters:
        """The static parameters of the convolution."""
        found: ByteConvParameters = self.kernel.parameters
        return found

    def _axis(self, axis: int) -> str:
        """Arguments of ``go_conv_size`` and ``go_byte_conv_axis``."""
        found = self.sizes
        values = (found.kernel[axis], found.strides[axis], found.dilations[axis])
        pads = (found.pads[axis], found.pads[2 + axis], MODES[found.auto_pad])
        return ", ".join(map(str, (f"in0[{2 + axis}]", *values, *pads)))

    def dims(self) -> Sequence[Sequence[str]]:
        return [["in0[0]", "in1[0]", *(f"go_conv_size({self._axis(axis)})" for axis in range(2))]]

    def checks(self) -> Iterator[str]:
        yield from self.shapes.size(_X, 1, f"{self.sizes.groups} * in{_WEIGHTS}[1]")
        for axis in range(2):
            yield from self.shapes.at_least(_X, 2 + axis, least_size(self.sizes, axis))

    def constants(self) -> Sequence[PackedConstant]:
        return [PackedConstant(_WEIGHTS, f"{self.name}_size", f"{self.name}_pack")]

    def functions(self) -> str:
        name, groups = self.name, self.sizes.groups
        shape = f"{groups}, dims[0] / {groups}, dims[1], dims[2], dims[3]"
        return (
            f"static size_t {name}_size(const int64_t *dims) {{\n"
            f"    return go_byte_filters_size({shape});\n}}\n"
            f"static void {name}_pack(const void *from, const int64_t *dims, void *to) {{\n"
            f"    go_byte_filters_pack(from, {shape}, {self.type_of(_WEIGHTS)}, to);\n}}\n"
            f"static void {name}_part(void *data, size_t index) {{\n"
            f"    {name}_run *const run = data;\n"
            f"    go_byte_conv_part(&{self.conv}, (int64_t)index, {self.result_type}, {self.convert},\n"
            f"                      {self.finish}, run);\n}}\n"
        )

    def run(self) -> Iterator[str]:
        yield f"    go_byte_conv *const conv = &{self.conv};"
        yield from self.assignment()
        yield f"    conv->packed = {self.packed(_WEIGHTS)};"
        yield "    if (!conv->packed) return 1;"
        for axis in range(2):
            yield f"    go_byte_conv_axis(conv, {axis}, {self._axis(axis)});"
        yield from self.parts()
        yield "    free(conv->input);"
        yield "    free(conv->offset);"
        yield "    run->failed = conv->failed;"
        yield from self.memory_check()

    def members(self) -> Mapping[str, str]:
        """The members of ``go_byte_conv`` that are independent of the operator."""
        groups = self.sizes.groups
        scales_vary, zeros_vary = map(int, self.sizes.by_filter)
        return {
            "x_type": self.type_of(_X),
            "w_type": self.type_of(_WEIGHTS),
            "type": self.result_type,
            "x": f"run->in[{_X}]",
            "w_zeros_vary": str(zeros_vary),
            "w_scales_vary": str(scales_vary),
            "batch": "in0[0]",
            "convs": str(groups),
            "channels": "in1[1]",
            "filters": f"in1[0] / {groups}",
        }

    def assignment(self) -> Iterator[str]:
        """Statements that set the members of the run, except sizes."""
        fields = {
            **self.members(),
            "x_scale": f"run->in[{_X_SCALE}]",
            "w_scales": f"run->in[{_W_SCALES}]",
            "x_zero": f"run->in[{_X_ZERO}]",
            "w_zeros": f"run->in[{_W_ZEROS}]",
            "scale": f"run->in[{_SCALE}]",
            "zero": f"run->in[{_ZERO}]",
            "bias": f"run->in[{_BIAS}]",
        }
        yield f"    *conv = (go_byte_conv){{{initializer(fields)}}};"

    def parts(self) -> Iterator[str]:
        """Statements that plan the convolution and compute its parts."""
        yield "    if (go_byte_conv_plan(conv)) {"
        yield from self.compute()
        yield "    } else {"
        yield "        conv->failed = 1;"
        yield "    }"

    def compute(self, *before: str) -> Iterator[str]:
        """Statements that compute a planned convolution; ``before`` runs after the planes of its input."""
        yield "        go_parallel(call, go_byte_conv_input, conv, (size_t)go_byte_conv_inputs(conv));"
        yield from before
        parts = "(size_t)go_byte_conv_parts(conv)"
        yield f"        if (!conv->failed) go_parallel(call, {self.name}_part, run, {parts});"


def initializer(fields: Mapping[str, str]) -> str:
    """The initializers of members in C."""
    return ", ".join(f".{key} = {value}" for key, value in fields.items())


PRINTER = ByteConvPrinter
