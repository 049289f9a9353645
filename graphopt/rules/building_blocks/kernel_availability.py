"""Availability of operators at the opset of the model, and of their kernels on the target."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Refusal
from graphopt.rewrite import Match
from graphopt.rewrite.match import Refused


def require_opset(m: Match, op_type: str, x: ir.Value, since: int) -> None:
    """Refuse if the model's opset precedes ``since``, which introduced ``op_type``."""
    if m.version < since:
        hint = f"raise it: --target-opset {since}; --tune tries whether it pays"
        m.refuse(f"there is no {op_type} before opset {since}", x, hint=hint)


def require_kernel(
    m: Match, op_type: str, x: ir.Value, *, domain: str = ir.MICROSOFT, since: int = 1
) -> None:
    """Refuse if the target has no kernel of ``op_type`` for the type of ``x``.

    Args:
        domain: the domain of the operator.
        since: the opset version that introduced a standard operator.
    """
    if domain and m.cx.options.portable:
        m.refuse(f"{op_type} is not an operator of the ONNX standard", x, hint="leave out --portable")
    dtype, version = m.dtype(x), 1 if domain else max(m.version, since)
    if not m.cx.target.has_kernel(op_type, domain, version, dtype):
        type_name = "unknown type" if dtype is None else dtype.name.lower()
        m.refuse(f"the target has no kernel for {op_type} of {type_name}", x)
    if not domain:
        require_opset(m, op_type, x, since)


def kernel_refusal(
    m: Match, op_type: str, x: ir.Value, *, domain: str = ir.MICROSOFT, since: int = 1
) -> Refusal | None:
    """The refusal of :func:`require_kernel`; ``None`` if the target has a kernel."""
    try:
        require_kernel(m, op_type, x, domain=domain, since=since)
    except Refused as error:
        return error.refusal
    return None
