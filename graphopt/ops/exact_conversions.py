"""Element types that can represent all values of another type."""

from __future__ import annotations

from graphopt import ir

_T = ir.DataType
#: Bits of integers, and of the significands of floats; all integers up to 2**bits are exact.
SIGNED = {_T.INT8: 8, _T.INT16: 16, _T.INT32: 32, _T.INT64: 64}
UNSIGNED = {_T.UINT8: 8, _T.UINT16: 16, _T.UINT32: 32, _T.UINT64: 64}
FLOATS = {_T.BFLOAT16: 8, _T.FLOAT16: 11, _T.FLOAT: 24, _T.DOUBLE: 53}
INTEGERS = {**SIGNED, **UNSIGNED}
_WIDER_FLOATS = {
    _T.FLOAT16: (_T.FLOAT, _T.DOUBLE), _T.BFLOAT16: (_T.FLOAT, _T.DOUBLE), _T.FLOAT: (_T.DOUBLE,)
}  # fmt: skip


def holds(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Whether ``wide`` can represent every value of ``narrow``."""
    if wide == narrow or narrow == _T.BOOL:
        return True
    if narrow in FLOATS:
        return wide in _WIDER_FLOATS.get(narrow, ())
    bits = INTEGERS[narrow]
    if wide in FLOATS:
        # a float with an 8-bit significand has a maximum above 2**8; likewise 16 and 32 bits
        return bits - (narrow in SIGNED) <= FLOATS[wide]
    if wide in SIGNED:
        return SIGNED[wide] >= bits + (narrow in UNSIGNED)
    return narrow in UNSIGNED and UNSIGNED.get(wide, 0) >= bits
