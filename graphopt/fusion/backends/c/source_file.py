"""The source of kernels: one C file with the vector extensions of gcc and clang, on top of ``runtime.h``.

The same source is compiled for each CPU level (``-DGO_LEVEL=2 -march=x86-64-v2`` and so on), or once for the
default of the machine, with ``-ffp-contract=off``: sums and products are rounded separately, as in
separate operators.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from graphopt.fusion.backends.c.kernel_printer import kernel_text
from graphopt.fusion.backends.c.preamble import Lanes, header, preamble
from graphopt.fusion.backends.c.schedule import lanes
from graphopt.fusion.backends.c.template_printer import TemplatePrinter, printer_for
from graphopt.fusion.c_code.kernel_table import table_entry
from graphopt.fusion.loops.ir import Kernel
from graphopt.fusion.template_kernel import NativeKernel, TemplateKernel

#: Number of kernels per source file. They share the vector math; several files keep all cores busy.
_KERNELS_PER_FILE = 8


def sources(kernels: Sequence[NativeKernel]) -> list[str]:
    """The C files of a library with ``kernels``; raises the errors of :func:`source`."""
    starts = range(0, len(kernels), _KERNELS_PER_FILE)
    return [source(kernels[start : start + _KERNELS_PER_FILE]) for start in starts]


def source(kernels: Sequence[NativeKernel]) -> str:
    """One C file with ``kernels``.

    It defines ``GO_NAME(go_kernels)`` and ``GO_NAME(go_kernel_count)`` of ``runtime.h``.

    Raises:
        ValueError: the name of a kernel is not an identifier.
    """
    for kernel in kernels:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,199}", kernel.name):
            raise ValueError(f"names of kernels are identifiers of C, not {kernel.name[:200]!r}")
    printers = {kernel.name: printer_for(kernel) for kernel in kernels if isinstance(kernel, TemplateKernel)}
    used = {each for kernel in kernels for each in _lanes(kernel)}
    parts = [preamble([each for each in Lanes if each in used])]
    headers = dict.fromkeys(name for printer in printers.values() for name in printer.headers)
    parts += map(header, headers)
    parts += [_text(kernel, printers) for kernel in kernels]
    parts.append(_table(kernels, printers))
    return "\n".join(parts)


def _text(kernel: NativeKernel, printers: Mapping[str, TemplatePrinter]) -> str:
    return printers[kernel.name].text() if isinstance(kernel, TemplateKernel) else kernel_text(kernel)


def _lanes(kernel: NativeKernel) -> set[Lanes]:
    """The numbers of lanes in a kernel; templates use vectors of floats."""
    if isinstance(kernel, Kernel):
        return {lanes(kernel)}
    return {Lanes.WORDS} if kernel.epilogue is None else {Lanes.WORDS, lanes(kernel.epilogue.kernel)}


def _table(kernels: Sequence[NativeKernel], printers: Mapping[str, TemplatePrinter]) -> str:
    lines, rows = [], []
    for kernel in kernels:
        constants, count = printers[kernel.name].table() if kernel.name in printers else ("", 0)
        lines += [constants] if constants else []
        more, row = table_entry(kernel, count)
        lines += more
        rows.append(row)
    lines.append("extern const go_kernel GO_NAME(go_kernels)[];")
    lines.append("extern const int GO_NAME(go_kernel_count);")
    lines.append("const go_kernel GO_NAME(go_kernels)[] = {")
    lines += rows or ["    {0}"]
    lines.append("};")
    lines.append(f"const int GO_NAME(go_kernel_count) = {len(kernels)};")
    return "\n".join(lines) + "\n"
