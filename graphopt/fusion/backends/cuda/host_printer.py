"""The host parts of kernels for CUDA, in C: checks of shapes, outputs, scratch memory and launches.

One C file has the host parts of all kernels of a library. It includes ``device.h``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from graphopt.fusion.backends.cuda.launch import (
    MOST_BLOCKS,
    WIDE_FROM,
    Argument,
    Condition,
    Count,
    DeviceKernel,
    Extent,
    Input,
    Launch,
    Output,
    Scratch,
    SizeValue,
)
from graphopt.fusion.c_code.bounds_checks import check_functions, checks
from graphopt.fusion.c_code.input_checks import input_checks, size_definitions
from graphopt.fusion.c_code.kernel_table import table_entry
from graphopt.fusion.c_code.size_variables import SizeVariables
from graphopt.fusion.loops.ir import ZERO, Kernel
from graphopt.util.lazy_dataclass import dataclass

_INCLUDES = """\
#include <stdint.h>
#include <stdio.h>

#include "device.h"

#define GO_NOINLINE static __attribute__((noinline, unused))
"""


@dataclass(frozen=True)
class HostedKernel:
    """A kernel and its device code.

    Attributes:
        module: the text of the module of its device code, with the preamble.
    """

    kernel: Kernel
    device: DeviceKernel
    module: str

    @cached_property
    def functions(self) -> tuple[str, ...]:
        """The names of its device functions."""
        return tuple(dict.fromkeys(name for launch in self.device.launches for name in _functions(launch)))


def host_text(kernels: Sequence[HostedKernel]) -> str:
    """The C file of ``kernels``; it defines ``go_device_kernels`` and ``go_functions`` of ``device.h``."""
    parts = [_INCLUDES, check_functions()]
    lines: list[str] = []
    rows: list[str] = []
    functions: list[str] = []
    for index, hosted in enumerate(kernels):
        parts.append(_HostPrinter(hosted, len(functions)).text())
        functions += [f'    {{{index}, "{name}"}},' for name in hosted.functions]
        more, row = table_entry(hosted.kernel)
        lines += more
        rows.append(row)
    lines += ["const go_kernel go_device_kernels[] = {", *rows, "};"]
    lines += ["const go_function go_functions[] = {", *functions, "};"]
    return "\n".join([*parts, *lines]) + "\n"


def _functions(launch: Launch) -> tuple[str, ...]:
    """The device functions of ``launch``: one, or those with indices of 32 and 64 bits."""
    return tuple(f"{launch.function}_{bits}" for bits in (32, 64)) if launch.counts else (launch.function,)


class _HostPrinter:
    """Prints ``NAME_main`` of a kernel.

    Args:
        first: index of its first device function in ``go_functions``.
    """

    def __init__(self, hosted: HostedKernel, first: int) -> None:
        self._kernel, self._device = hosted.kernel, hosted.device
        self._sizes = SizeVariables()
        self._function = {name: first + index for index, name in enumerate(hosted.functions)}

    def text(self) -> str:
        """The function, in C."""
        kernel, sizes = self._kernel, self._sizes
        body = [*input_checks(kernel, sizes), *checks(kernel, sizes), *self._outputs(), *self._launches()]
        lines = [
            f"static int {kernel.name}_main(go_call *call) {{",
            *self._inputs(),
            *size_definitions(kernel, sizes),  # of the sizes in the body
            *body,
            "    return 0;",
            "}",
        ]
        return "\n".join(lines) + "\n"

    def _inputs(self) -> Iterator[str]:
        for index, port in enumerate(self._kernel.inputs):
            rank = len(port.dims)
            yield f"    int64_t in{index}[{max(rank, 1)}];"
            yield f"    const void *input{index} = go_input(call, {index}, {rank}, in{index});"
            yield f"    if (!input{index}) return 1;"

    def _outputs(self) -> Iterator[str]:
        for index, port in enumerate(self._kernel.outputs):
            shape = "NULL"
            if port.dims:
                shape = f"out{index}"
                yield f"    const int64_t {shape}[] = {{{', '.join(map(self._sizes.c, port.dims))}}};"
            yield f"    void *output{index} = go_output(call, {index}, {len(port.dims)}, {shape});"
            yield f"    if (!output{index}) return 1;"

    def _launches(self) -> Iterator[str]:
        launches = self._device.launches
        for number, launch in enumerate(launches):
            per = launch.grid.per_block
            points = self._count(launch.grid.extents)
            blocks = points if per == 1 else f"({points} + {per - 1}) / {per}"
            yield f"    const int64_t blocks{number} = {blocks};"
            made = f"blocks{number} > 0"
            if launch.condition is not None:
                made += f" && {self._condition(launch.condition)}"
            yield f"    const int made{number} = {made};"
        for index, buffer in enumerate(self._device.scratch):
            takers = [
                f"made{number}" for number, one in enumerate(launches) if Scratch(index) in one.arguments
            ]
            yield f"    void *scratch{index} = NULL;"
            yield f"    if ({' || '.join(takers) or '0'}) {{"
            size = f"(size_t)({self._count(buffer.count)}) * {buffer.bytes}"
            yield f"        scratch{index} = go_scratch(call, {size});"
            yield f"        if (!scratch{index}) return 1;"
            yield "    }"
        for number, launch in enumerate(launches):
            yield from self._launch(number, launch)

    def _launch(self, number: int, launch: Launch) -> Iterator[str]:
        yield f"    if (made{number}) {{"
        addresses = []
        for index, argument in enumerate(launch.arguments):
            if isinstance(argument, SizeValue):
                yield f"        int64_t size{index} = {self._sizes.c(argument.size)};"
            addresses.append(f"&{_name(argument, index)}")
        yield f"        void *arguments[] = {{{', '.join(f'(void *){each}' for each in addresses)}}};"
        function, *wide = [str(self._function[name]) for name in _functions(launch)]
        if wide:
            long = " || ".join(f"{self._count(count)} >= {WIDE_FROM}" for count in launch.counts)
            function = f"{long} ? {wide[0]} : {function}"
        yield f"        const int function = {function};"
        blocks = f"blocks{number} < {MOST_BLOCKS} ? blocks{number} : {MOST_BLOCKS}"
        yield f"        if (go_launch(call, function, {blocks}, {launch.block}, arguments)) return 1;"
        yield "    }"

    def _condition(self, condition: Condition) -> str:
        parts = []
        for bound in condition.bounds:
            count = self._count(bound.count)
            parts.append(f"{count} >= {bound.least}")
            if bound.most is not None:
                parts.append(f"{count} <= {bound.most}")
        return f"{'!' if condition.negated else ''}({' && '.join(parts) or '1'})"

    def _count(self, count: Count) -> str:
        return " * ".join(map(self._extent, count)) if count else "(int64_t)1"

    def _extent(self, extent: Extent) -> str:
        length = self._sizes.c(extent.stop)
        if extent.start != ZERO:
            length = f"({length} - {self._sizes.c(extent.start)})"
        if extent.step == 1:
            return f"(int64_t){length}"
        return f"(((int64_t){length} + {extent.step - 1}) / {extent.step})"


def _name(argument: Argument, index: int) -> str:
    """The variable of the argument at ``index``."""
    match argument:
        case Input():
            return f"input{argument.index}"
        case Output():
            return f"output{argument.index}"
        case Scratch():
            return f"scratch{argument.index}"
        case SizeValue():
            return f"size{index}"
