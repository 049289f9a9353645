"""Convolutions of quantized operands in C."""

from __future__ import annotations

from collections.abc import Iterator

from graphopt.fusion.backends.c.expressions import float_literal
from graphopt.fusion.backends.c.templates.byte_conv import ByteConvPrinter, initializer
from graphopt.fusion.templates.byte_conv import ByteConvParameters
from graphopt.fusion.templates.quantized_conv import QuantizedConvParameters

_X, _WEIGHTS, _W_SCALES, _W_ZEROS, _BIAS, _BIAS_SCALES = range(6)


class QuantizedConvPrinter(ByteConvPrinter):
    """Prints a convolution between quantizers, scheduled in ``quantized_conv.h``."""

    headers = (*ByteConvPrinter.headers, "products/quantized_conv.h")
    names = ("x", "w", "the scales of w", "the zero points of w", "B", "the scales of B")
    state = "go_quantized_conv product;"
    conv = "run->product.c"
    convert = "go_quantized_conv_results"

    @property
    def _parameters(self) -> QuantizedConvParameters:
        found: QuantizedConvParameters = self.kernel.parameters
        return found

    @property
    def sizes(self) -> ByteConvParameters:
        return self._parameters.conv

    def functions(self) -> str:
        found = self._parameters
        scales = ", ".join(float_literal(each.scale or 0) for each in (found.x, found.weights, found.result))
        zeros = ", ".join(str((each.zero or 0) & 255) for each in (found.x, found.weights, found.result))
        return (
            f"static const float {self.name}_scales[] = {{{scales}}};\n"
            f"static const uint8_t {self.name}_zeros[] = {{{zeros}}};\n"
        ) + super().functions()

    def assignment(self) -> Iterator[str]:
        found, name = self._parameters, self.name
        scales_vary, zeros_vary = found.conv.by_filter
        fields = {
            **self.members(),
            "x_scale": f"{name}_scales",
            "w_scales": f"run->in[{_W_SCALES}]" if scales_vary else f"{name}_scales + 1",
            "scale": f"{name}_scales + 2",
            "x_zero": f"{name}_zeros",
            "w_zeros": f"run->in[{_W_ZEROS}]" if zeros_vary else f"{name}_zeros + 1",
            "zero": f"{name}_zeros + 2",
        }
        more = {
            "c": f"{{{initializer(fields)}}}",
            "weights": f"run->in[{_WEIGHTS}]",
            "low": float_literal(found.low),
            "high": float_literal(found.high),
        }
        more |= self.bias_members(found.bias_scale, _BIAS, _BIAS_SCALES)
        yield f"    run->product = (go_quantized_conv){{{initializer(more)}}};"

    def parts(self) -> Iterator[str]:
        yield "    if (go_quantized_conv_plan(&run->product)) {"
        bands = "(size_t)go_quantized_conv_bands(&run->product)"
        yield from self.compute(
            f"        if (!conv->failed) go_parallel(call, go_quantized_conv_norms, &run->product, {bands});"
        )
        yield "    } else {"
        yield "        conv->failed = 1;"
        yield "    }"
        yield "    free(run->product.norms);"


PRINTER = QuantizedConvPrinter
