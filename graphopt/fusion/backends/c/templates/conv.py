"""Conv and FusedConv in C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt.fusion.backends.c.expressions import float_literal
from graphopt.fusion.backends.c.requirements import require
from graphopt.fusion.backends.c.template_printer import OUT_OF_MEMORY, PackedConstant, TemplatePrinter
from graphopt.fusion.template_kernel import TemplateKernel
from graphopt.fusion.templates.byte_conv import ByteConvParameters
from graphopt.fusion.templates.conv import ConvParameters

_X, _WEIGHTS, _BIAS, _ADDEND = range(4)
#: The headers of each algorithm, and the name of its functions, ``go_NAME_chunk`` and so on.
_HEADERS = {
    "direct": ("conv_positions", "conv_filters", "conv"),
    "depthwise": ("depthwise_plan", "depthwise_rows", "depthwise_filters", "depthwise"),
    "winograd": ("conv_positions", "winograd"),
}
_NAMES = {"direct": "conv", "depthwise": "depthwise", "winograd": "winograd"}
MODES = {"NOTSET": 0, "SAME_UPPER": 1, "SAME_LOWER": 2}
#: The vector of results ``x`` of each activation, with parameters ``a`` and ``b``. NaN is propagated.
_ACTIVATIONS = {
    "": "x",
    "Relu": "more_w(splat_f32_w(0), x)",
    "Sigmoid": "sigmoid_w(x)",
    "Tanh": "tanh_w(x)",
    "LeakyRelu": "select_f32_w(x < 0, a * x, x)",
    "HardSigmoid": "more_w(splat_f32_w(0), less_w(splat_f32_w(1), a * x + b))",
    "Clip": "less_w(b, more_w(a, x))",
}


def least_size(found: ConvParameters | ByteConvParameters, axis: int) -> int:
    """The smallest size of a spatial axis for which the result is not empty."""
    if found.auto_pad != "NOTSET":
        return 1
    extent = (found.kernel[axis] - 1) * found.dilations[axis] + 1
    return max(0, extent - found.pads[axis] - found.pads[len(found.kernel) + axis])


class ConvPrinter(TemplatePrinter):
    """Prints a convolution; the schedules are in ``conv_*.h``, ``depthwise_*.h`` and ``winograd.h``."""

    names = ("X", "W", "B", "Z")

    def __init__(self, kernel: TemplateKernel) -> None:
        super().__init__(kernel)
        self.parameters: ConvParameters = kernel.parameters
        self.rank = len(self.parameters.kernel)
        self.kind = _NAMES[self.parameters.algorithm]

    @property
    def headers(self) -> tuple[str, ...]:  # type: ignore[override]
        names = ("shuffles", "conv_sizes", "conv_plan", *_HEADERS[self.parameters.algorithm])
        return tuple(f"products/{name}.h" for name in names)

    @property
    def state(self) -> str:  # type: ignore[override]
        return f"go_{self.kind} conv;"

    def dims(self) -> Sequence[Sequence[str]]:
        sizes = [f"go_conv_size(in{_X}[{2 + axis}], {self._axis(axis)})" for axis in range(self.rank)]
        return [[f"in{_X}[0]", f"in{_WEIGHTS}[0]", *sizes]]

    def _axis(self, axis: int) -> str:
        """Arguments of ``go_conv_size`` and ``go_conv_axis``."""
        found = self.parameters
        values = (found.kernel[axis], found.strides[axis], found.dilations[axis], found.pads[axis])
        return ", ".join(map(str, (*values, found.pads[self.rank + axis], MODES[found.auto_pad])))

    def checks(self) -> Iterator[str]:
        yield from self.shapes.size(_X, 1, f"{self.parameters.groups} * in{_WEIGHTS}[1]")
        for axis in range(self.rank):
            yield from self.shapes.at_least(_X, 2 + axis, least_size(self.parameters, axis))
        if self.operand(_BIAS) is not None:
            yield from self.shapes.size(_BIAS, 0, f"in{_WEIGHTS}[0]")
        if self.operand(_ADDEND) is not None:
            yield from self.shapes.shape(_ADDEND, self.dims()[0])

    def constants(self) -> Sequence[PackedConstant]:
        return [PackedConstant(_WEIGHTS, f"{self.name}_size", f"{self.name}_pack")]

    def functions(self) -> str:
        name = self.name
        return f"""\
{self._pack()}{self._store()}static void {name}_chunk(void *data, size_t chunk) {{
    {name}_run *const run = data;
    go_{self.kind}_chunk(&run->conv, chunk, {name}_store, run);
}}
"""

    def _pack(self) -> str:
        """The functions that pack weights."""
        name, found = self.name, self.parameters
        if found.algorithm == "winograd":
            wide = [size for size in found.kernel if size > 1]
            sizes = f"dims[0], dims[1], {wide[0] if len(wide) > 1 else 1}, {wide[-1]}"
        else:
            taps = " * ".join(f"dims[{2 + axis}]" for axis in range(self.rank))
            groups = "dims[0]" if self.kind == "depthwise" else f"{found.groups}, dims[0] / {found.groups}"
            sizes = f"{groups}, dims[1] * {taps}"
        return f"""\
static size_t {name}_size(const int64_t *dims) {{ return go_{self.kind}_packed({sizes}); }}
static void {name}_pack(const void *from, const int64_t *dims, void *to) {{
    go_{self.kind}_pack(from, {sizes}, to);
}}
"""

    def _store(self) -> str:
        """``NAME_store``, which adds the addend, applies the activation, and finishes a run of results."""
        name, found = self.name, self.parameters
        addend = self.operand(_ADDEND) is not None
        lines = [
            f"static inline void {name}_store(void *data, int64_t at, int64_t count, const void *values) {{"
        ]
        lines.append(f"    {name}_run *const run = data;")
        if self.is_direct or addend or found.activation:
            for letter, value in zip("ab", found.activation_parameters, strict=False):
                lines.append(f"    const f32_w {letter} = splat_f32_w({float_literal(value)});")
            target = "(float *)run->out[0] + at" if self.is_direct else "(float *)values"
            lines.append(f"    const float *const from = values;\n    float *const to = {target};")
            if addend:
                lines.append(f"    const float *const addend = (const float *)run->in[{_ADDEND}] + at;")
            lines.append("    int64_t i = 0;")
            lines.append("    for (; i + LANES_w <= count; i += LANES_w) {")
            lines += self._point("", "")
            lines.append("    }")
            lines.append("    if (i < count) {\n        const int m = (int)(count - i);")
            lines += self._point("_part", ", m")
            lines.append("    }")
        if not self.is_direct:
            lines.append(f"    {self.finish}(run, at, count, values);")
        return "\n".join([*lines, "}"]) + "\n"

    def _point(self, part: str, count: str) -> Iterator[str]:
        """Statements for a vector of results."""
        yield f"        f32_w x = load{part}_f32_w(from + i{count});"
        if self.operand(_ADDEND) is not None:
            yield f"        x += load{part}_f32_w(addend + i{count});"
        yield f"        x = {_ACTIVATIONS[self.parameters.activation]};"
        yield f"        store{part}_f32_w(to + i, x{count});"

    def run(self) -> Iterator[str]:
        found = self.parameters
        taps = " * ".join(f"in{_WEIGHTS}[{2 + axis}]" for axis in range(self.rank))
        yield f"    go_conv *const conv = &run->conv{'' if self.kind == 'conv' else '.c'};"
        yield f"    conv->weights = {self.packed(_WEIGHTS)};"
        yield "    if (!conv->weights) return 1;"
        yield f"    conv->x = run->in[{_X}], conv->bias = run->in[{_BIAS}];"
        if self.kind == "winograd":
            yield f"    run->conv.weights = run->in[{_WEIGHTS}];"
        yield f"    conv->batch = in{_X}[0], conv->groups = {found.groups}, conv->channels = in{_WEIGHTS}[1];"
        yield f"    conv->filters = in{_WEIGHTS}[0] / {found.groups};"
        for axis in range(3):
            place = axis - (3 - self.rank)
            arguments = f"in{_X}[{2 + place}], {self._axis(place)}" if place >= 0 else "1, 1, 1, 1, 0, 0, 0"
            yield f"    go_conv_axis(conv, {axis}, {arguments});"
        count = f"{4 if self.kind == 'winograd' else 1} * in{_WEIGHTS}[1] * {taps}"
        yield f"    int64_t *const offset = malloc((size_t)({count}) * sizeof(int64_t));"
        yield from require("offset", OUT_OF_MEMORY)
        yield f"    const int64_t chunks = go_{self.kind}_plan(&run->conv, offset);"
        yield from self._chunks()
        yield "    free(offset);"
        yield "    run->failed = conv->failed;"
        yield from self.memory_check()

    def _chunks(self) -> Iterator[str]:
        """Statements that run all chunks."""
        if self.kind != "winograd":
            yield f"    go_parallel(call, {self.name}_chunk, run, (size_t)chunks);"
            return
        yield "    if (go_winograd_share(&run->conv)) {"
        yield "        go_parallel(call, go_winograd_transform, &run->conv, (size_t)run->conv.transforms);"
        yield f"        if (!conv->failed) go_parallel(call, {self.name}_chunk, run, (size_t)chunks);"
        yield "    } else {"
        yield "        conv->failed = 1;"
        yield "    }"
        yield "    free(run->conv.inputs);"


PRINTER = ConvPrinter
