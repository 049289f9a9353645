"""Sets of element types."""

from __future__ import annotations

from graphopt import ir

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


INTEGERS = frozenset(
    {
        ir.DataType.INT8,
        ir.DataType.INT16,
        ir.DataType.INT32,
        ir.DataType.INT64,
        ir.DataType.UINT8,
        ir.DataType.UINT16,
        ir.DataType.UINT32,
        ir.DataType.UINT64,
    }
)


def is_integer_or_bool(dtype: ir.DataType | None) -> bool:
    """Whether ``dtype`` is known to be an integer type, of any width, or bool."""
    return dtype is not None and (dtype.is_integer() or dtype == ir.DataType.BOOL)
