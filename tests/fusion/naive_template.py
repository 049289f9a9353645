"""A template for tests: matrix products, row by row, with weights packed as transposed columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion import template_table
from graphopt.fusion.backends.c import template_printer
from graphopt.fusion.backends.c.template_printer import PackedConstant, TemplatePrinter
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.template_table import Match, Template
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Parameters:
    """None."""


def match(anchor: ir.Node, cx: Context) -> Match:
    """A · B for matrices of floats."""
    for value in anchor.inputs:
        dtype = None if value is None else cx.dtype(value)
        if value is None or cx.rank(value) != 2 or dtype is not ir.DataType.FLOAT:
            raise CantFuse("its operands are no matrices of floats")
    return Match("naive", (anchor,), tuple(anchor.inputs), tuple(anchor.outputs), Parameters())


class Printer(TemplatePrinter):
    """Computes runs of three elements, which end in the middle of vectors."""

    state = "int64_t depth, columns; const float *packed;"

    def dims(self) -> Sequence[Sequence[str]]:
        return [("in0[0]", "in1[1]")]

    def constants(self) -> Sequence[PackedConstant]:
        return [PackedConstant(1, f"{self.name}_size", f"{self.name}_pack")]

    def functions(self) -> str:
        name = self.name
        return f"""
static size_t {name}_size(const int64_t *dims) {{ return (size_t)(dims[0] * dims[1]) * 4; }}
static void {name}_pack(const void *from, const int64_t *dims, void *to) {{
    for (int64_t k = 0; k < dims[0]; k++)
        for (int64_t j = 0; j < dims[1]; j++)
            ((float *)to)[j * dims[0] + k] = ((const float *)from)[k * dims[1] + j];
}}
static void {name}_row(void *data, size_t row) {{
    {name}_run *const run = data;
    const float *a = (const float *)run->in[0] + (int64_t)row * run->depth;
    for (int64_t j = 0; j < run->columns; j += 3) {{
        float sums[3] = {{0}};
        const int64_t count = run->columns - j < 3 ? run->columns - j : 3;
        for (int64_t c = 0; c < count; c++)
            for (int64_t k = 0; k < run->depth; k++) sums[c] += a[k] * run->packed[(j + c) * run->depth + k];
        {self.finish}(run, (int64_t)row * run->columns + j, count, sums);
    }}
}}
"""

    def checks(self) -> Iterator[str]:
        yield '    if (in0[1] != in1[0]) { go_fail(call, "the depths differ"); return 1; }'

    def run(self) -> Iterator[str]:
        yield "    run->depth = in0[1], run->columns = in1[1];"
        yield f"    if (!(run->packed = {self.packed(1)})) return 1;"
        yield f"    go_parallel(call, {self.name}_row, run, (size_t)in0[0]);"


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it the only template."""
    known = {"MatMul": (Template(("MatMul",), match, lambda match, cx: True),)}
    monkeypatch.setattr(template_table, "_by_operator", lambda: known)
    monkeypatch.setattr(template_printer, "_printers", lambda: {"naive": Printer})
