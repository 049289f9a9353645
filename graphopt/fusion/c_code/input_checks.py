"""Sizes of a run, and checks of the shapes of its inputs, in C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphopt.fusion.c_code.size_variables import SizeVariables, product
from graphopt.fusion.loops.ir import Size
from graphopt.fusion.template_kernel import NativeKernel


def size_definitions(
    kernel: NativeKernel, sizes: SizeVariables, kept: str | None = None, dims: str = "in"
) -> Iterator[str]:
    """Definitions of the symbols and sizes of ``kernel``; ``kept`` is an array that also stores the sizes."""
    for index, symbol in enumerate(kernel.symbols):
        yield f"    const int64_t s{index} = {dims}{symbol.input}[{symbol.axis}];"
        yield f"    (void)s{index};"
    for index, size in enumerate(sizes.all):
        stored = "" if kept is None else f"{kept}[{index}] = "
        yield f"    const int64_t n{index} = {stored}{product(size)};"
        yield f"    (void)n{index};"


def input_checks(
    kernel: NativeKernel, sizes: SizeVariables, dims: str = "in", labels: Sequence[str] = ()
) -> Iterator[str]:
    """Statements that fail if the shape of an input contradicts the symbols.

    Args:
        labels: the names of the inputs in messages, by default ``input 0`` and so on.
    """
    for index, port in enumerate(kernel.inputs):
        label = labels[index] if labels else f"input {index}"
        for axis, dim in enumerate(port.dims):
            if not is_symbol(kernel, index, axis, dim):
                yield from size_check(index, axis, sizes.c(dim), dims, label)


def size_check(index: int, axis: int, expected: str, dims: str, label: str) -> Iterator[str]:
    """Statements that fail if ``{dims}{index}[axis]``, a dim of the input ``label``, is not ``expected``.

    onnxruntime adds the name of the kernel to the message.
    """
    yield f"    if ({dims}{index}[{axis}] != {expected}) {{"
    words = f'"{label} is %lld long on axis {axis}, %lld expected"'
    values = f"(long long){dims}{index}[{axis}], (long long){expected}"
    yield "        char message[256];"
    yield f"        snprintf(message, sizeof message, {words}, {values});"
    yield "        go_fail(call, message);"
    yield "        return 1;"
    yield "    }"


def is_symbol(kernel: NativeKernel, index: int, axis: int, dim: Size) -> bool:
    """Whether a dim defines its symbol, so that no check is needed."""
    if dim.factor != 1 or len(dim.symbols) != 1:
        return False
    symbol = kernel.symbols[dim.symbols[0]]
    return (symbol.input, symbol.axis) == (index, axis)
