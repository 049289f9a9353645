"""Inferred types as text."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context
from graphopt.ir.printer import Types


def known_types(cx: Context) -> Types:
    """A function from a value to the text of its inferred type, such as ``f32[B, 4]``."""

    def text(value: ir.Value) -> str | None:
        dtype, shape = cx.dtype(value), cx.shape(value)
        if dtype is None and shape is None:
            return ir.declared_type(value)
        return ir.type_text(dtype, shape)

    return text
