"""Pointwise Conv in C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt.fusion.backends.c.expressions import float_literal
from graphopt.fusion.backends.c.requirements import require
from graphopt.fusion.backends.c.template_printer import OUT_OF_MEMORY, PackedConstant, TemplatePrinter
from graphopt.fusion.templates.pointwise import PointwiseParameters

_WEIGHTS, _BIAS, _NORM, _FACTOR, _ADDEND, _PARTS = 0, 1, 2, 6, 7, 8


class PointwisePrinter(TemplatePrinter):
    """Prints a pointwise convolution; the schedule is in ``pointwise.h``."""

    names = ("W", "B", "scale", "bias", "input_mean", "input_var", "the factor", "the addend")
    headers = ("products/gemm_tiles.h", "products/pointwise.h")
    state = "go_pointwise conv;"

    @property
    def _parameters(self) -> PointwiseParameters:
        found: PointwiseParameters = self.kernel.parameters
        return found

    @property
    def _parts(self) -> range:
        """The operands that are concatenated."""
        return range(_PARTS, _PARTS + self._parameters.parts)

    @property
    def _spatial(self) -> range:
        return range(2, self.rank_of(_WEIGHTS))

    def dims(self) -> Sequence[Sequence[str]]:
        sizes = [f"in{_PARTS}[{axis}]" for axis in self._spatial]
        return [[f"in{_PARTS}[0]", f"in{_WEIGHTS}[0]", *sizes]]

    def checks(self) -> Iterator[str]:
        channels = " + ".join(f"in{part}[1]" for part in self._parts)
        yield from self.shapes.size(_WEIGHTS, 1, channels)
        for axis in self._spatial:
            yield from self.shapes.size(_WEIGHTS, axis, 1)
        for part in self._parts[1:]:
            for axis in (0, *self._spatial):
                yield from self.shapes.size(part, axis, f"in{_PARTS}[{axis}]")
        if self.operand(_BIAS) is not None:
            yield from self.shapes.size(_BIAS, 0, f"in{_WEIGHTS}[0]")
        for operand in range(_NORM, _PARTS):
            if self.operand(operand) is not None:
                count = " * ".join(f"in{operand}[{axis}]" for axis in range(self.rank_of(operand)))
                message = f"{self.label(operand)} has %lld elements, %lld expected"
                yield from require(f"{count} == in{_WEIGHTS}[1]", message, count, f"in{_WEIGHTS}[1]")

    def label(self, operand: int) -> str:
        if operand < _PARTS:
            return self.names[operand]
        return "X" if self._parameters.parts == 1 else f"input {operand - _PARTS} of Concat"

    def constants(self) -> Sequence[PackedConstant]:
        return [PackedConstant(_WEIGHTS, f"{self.name}_size", f"{self.name}_pack")]

    def functions(self) -> str:
        name = self.name
        return f"""\
static size_t {name}_size(const int64_t *dims) {{ return go_pointwise_size(dims[0], dims[1]); }}
static void {name}_pack(const void *from, const int64_t *dims, void *to) {{
    go_pointwise_pack(from, dims[0], dims[1], to);
}}
{self.chunk_function("go_pointwise_chunk", "conv")}"""

    def run(self) -> Iterator[str]:
        points = " * ".join(f"in{_PARTS}[{axis}]" for axis in self._spatial)
        values = {
            "weights": self.packed(_WEIGHTS),
            "bias": f"run->in[{_BIAS}]",
            "rectified": str(int(self._parameters.rectified)),
            "part_count": str(len(self._parts)),
            "batch": f"in{_PARTS}[0]",
            "filters": f"in{_WEIGHTS}[0]",
            "channels": f"in{_WEIGHTS}[1]",
            "points": points,
        }
        if self.is_direct:
            values["out"] = "run->out[0]"
        yield "    go_pointwise *const conv = &run->conv;"
        for name, value in values.items():
            yield f"    conv->{name} = {value};"
        yield "    if (!conv->weights) return 1;"
        for number, part in enumerate(self._parts):
            yield f"    conv->parts[{number}].x = run->in[{part}];"
            yield f"    conv->parts[{number}].channels = in{part}[1];"
        is_affine = any(self.operand(operand) is not None for operand in range(_NORM, _PARTS))
        if is_affine:
            yield "    float *const affine = malloc(2 * (size_t)conv->channels * sizeof(float) + 1);"
            yield from require("affine", OUT_OF_MEMORY)
            norm = ", ".join(f"run->in[{operand}]" for operand in range(_NORM, _FACTOR))
            yield f"    const float *const norm[] = {{{norm}}};"
            yield (
                f"    go_pointwise_affine(conv->channels, norm, {float_literal(self._parameters.epsilon)}, "
                f"run->in[{_FACTOR}], run->in[{_ADDEND}], affine, affine + conv->channels);"
            )
            yield "    conv->scale = affine, conv->shift = affine + conv->channels;"
        yield f"    go_parallel(call, {self.name}_chunk, run, go_pointwise_plan(conv));"
        if is_affine:
            yield "    free(affine);"
        yield from self.memory_check()


PRINTER = PointwisePrinter
