"""ConvTranspose in C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt.fusion.backends.c.requirements import require
from graphopt.fusion.backends.c.template_printer import OUT_OF_MEMORY, PackedConstant, TemplatePrinter
from graphopt.fusion.backends.c.templates.conv import MODES
from graphopt.fusion.template_kernel import TemplateKernel
from graphopt.fusion.templates.conv_transpose import ConvTransposeParameters

_X, _WEIGHTS, _BIAS = range(3)


class ConvTransposePrinter(TemplatePrinter):
    """Prints a transposed convolution; the schedule is in ``conv_transposed.h``."""

    names = ("X", "W", "B")
    headers = tuple(
        f"products/{name}.h"
        for name in ("shuffles", "conv_sizes", "conv_plan", "conv_positions", "conv_transposed")
    )
    state = "go_transposed conv;"

    def __init__(self, kernel: TemplateKernel) -> None:
        super().__init__(kernel)
        self.parameters: ConvTransposeParameters = kernel.parameters
        self.rank = len(self.parameters.kernel)

    def dims(self) -> Sequence[Sequence[str]]:
        sizes = [f"go_transposed_size({self._axis(axis)}, NULL)" for axis in range(self.rank)]
        return [[f"in{_X}[0]", f"{self.parameters.groups} * in{_WEIGHTS}[1]", *sizes]]

    def _axis(self, axis: int) -> str:
        """Arguments of ``go_transposed_size`` and ``go_transposed_axis``."""
        found = self.parameters
        steps = (found.kernel[axis], found.strides[axis], found.dilations[axis])
        pads = (found.pads[axis], found.pads[self.rank + axis], found.output_padding[axis])
        size = found.output_shape[axis] if found.output_shape else -1
        return ", ".join(map(str, (f"in{_X}[{2 + axis}]", *steps, *pads, MODES[found.auto_pad], size)))

    def checks(self) -> Iterator[str]:
        found = self.parameters
        yield from self.shapes.size(_X, 1, f"in{_WEIGHTS}[0]")
        for axis, size in enumerate(self.dims()[0][2:]):
            given = f"in{_X}[{2 + axis}]"
            if found.output_padding[axis] or found.output_shape or found.auto_pad != "NOTSET":
                yield from self.shapes.at_least(_X, 2 + axis, 1)
            if found.output_shape:  # more would be beyond the largest output padding
                extent = (found.kernel[axis] - 1) * found.dilations[axis] + 1 + found.output_padding[axis]
                whole = f"({given} - 1) * {found.strides[axis]} + {extent}"
                message = f"X is %lld long on axis {2 + axis}, too short for output_shape"
                yield from require(f"{size} < {whole} + {found.strides[axis]}", message, given)
            else:
                message = f"X is %lld long on axis {2 + axis}, for which the result is empty"
                yield from require(f"{size} >= 1", message, given)
        if self.operand(_BIAS) is not None:
            yield from self.shapes.size(_BIAS, 0, self.dims()[0][1])

    def constants(self) -> Sequence[PackedConstant]:
        return [PackedConstant(_WEIGHTS, f"{self.name}_size", f"{self.name}_pack")]

    def functions(self) -> str:
        name, groups = self.name, self.parameters.groups
        found = (self.parameters.kernel, self.parameters.strides, self.parameters.dilations)
        axes = ", ".join(f"{{{', '.join(map(str, ((1,) * (3 - self.rank) + values)))}}}" for values in found)
        sizes = f"&{name}_axes, {groups}, dims[0] / {groups}, dims[1]"
        return f"""\
static const go_transposed_axes {name}_axes = {{{axes}}};
static size_t {name}_size(const int64_t *dims) {{ return go_transposed_packed({sizes}); }}
static void {name}_pack(const void *from, const int64_t *dims, void *to) {{
    go_transposed_pack(from, {sizes}, to);
}}
static void {name}_chunk(void *data, size_t chunk) {{
    {name}_run *const run = data;
    go_transposed_chunk(&run->conv, chunk, {self.finish}, run);
}}
"""

    def run(self) -> Iterator[str]:
        groups = self.parameters.groups
        taps = " * ".join(f"in{_WEIGHTS}[{2 + axis}]" for axis in range(self.rank))
        yield "    go_conv *const conv = &run->conv.c;"
        yield f"    conv->weights = {self.packed(_WEIGHTS)};"
        yield "    if (!conv->weights) return 1;"
        yield f"    run->conv.axes = &{self.name}_axes;"
        yield f"    conv->x = run->in[{_X}], conv->bias = run->in[{_BIAS}];"
        yield f"    conv->batch = in{_X}[0], conv->groups = {groups};"
        yield f"    conv->channels = in{_WEIGHTS}[0] / {groups}, conv->filters = in{_WEIGHTS}[1];"
        for axis in range(3):
            place = axis - (3 - self.rank)
            arguments = self._axis(place) if place >= 0 else "1, 1, 1, 1, 0, 0, 0, 0, -1"
            yield f"    go_transposed_axis(&run->conv, {axis}, {arguments});"
        yield "    if (conv->in[0] == 0 || conv->in[1] == 0 || conv->in[2] == 0) {"
        yield f"        go_transposed_nothing(&run->conv, {self.finish}, run);"
        yield "        return 0;"
        yield "    }"
        yield f"    int64_t *const offset = malloc((size_t)(conv->channels * {taps}) * sizeof(int64_t));"
        yield from require("offset", OUT_OF_MEMORY)
        yield "    const int64_t chunks = go_transposed_plan(&run->conv, offset);"
        yield f"    go_parallel(call, {self.name}_chunk, run, (size_t)chunks);"
        yield "    free(offset);"
        yield "    run->failed = conv->failed;"
        yield from self.memory_check()


PRINTER = ConvTransposePrinter
