"""Availability of operators at the opset of the model, and of their kernels on the target."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Refusal
from graphopt.ops import traits
from graphopt.rewrite import Match
from graphopt.rewrite.match import Refused


def require_opset(m: Match, op_type: str, x: ir.Value, since: int) -> None:
    """Refuse if the model's opset precedes ``since``, which introduced ``op_type``."""
    if m.version < since:
        hint = f"raise it: --target-opset {since}; --tune tries whether it pays"
        m.refuse(f"there is no {op_type} before opset {since}", x, hint=hint)


def require_kernel(
    m: Match,
    op_type: str,
    x: ir.Value,
    *,
    domain: str = ir.MICROSOFT,
    since: int = 1,
    in_float: bool = False,
) -> None:
    """Refuse if the target has no kernel of ``op_type`` for the type of ``x``.

    Args:
        domain: the domain of the operator.
        since: the opset version that introduced a standard operator.
        in_float: whether a kernel for float suffices, between casts that onnxruntime inserts, if none of the
            nodes of the match has a kernel for float16 either.
    """
    if domain and m.cx.options.portable:
        m.refuse(f"{op_type} is not an operator of the ONNX standard", x, hint="leave out --portable")
    dtype, version = m.dtype(x), 1 if domain else max(m.version, since)
    has_kernel = m.cx.target.has_kernel(op_type, domain, version, dtype)
    if not has_kernel and not (in_float and _runs_in_float(m, op_type, domain, version, dtype)):
        type_name = "unknown type" if dtype is None else dtype.name.lower()
        m.refuse(f"the target has no kernel for {op_type} of {type_name}", x)
    if not domain:
        require_opset(m, op_type, x, since)


#: Operators that select or move elements, whose kernels accept all types.
_MOVES = traits.VIEW | {"Cast", "IsNaN", "Transpose", "Where"}


def _runs_in_float(m: Match, op_type: str, domain: str, version: int, dtype: ir.DataType | None) -> bool:
    """Whether onnxruntime runs the nodes of the match in float between casts, and ``op_type``, too."""
    target = m.cx.target
    if dtype != ir.DataType.FLOAT16 or not target.device.capabilities.is_host:
        return False
    if not target.has_kernel(op_type, domain, version, ir.DataType.FLOAT):
        return False
    computing = [node for node in m.nodes if node.op_type not in _MOVES]
    return not any(
        target.has_kernel(node.op_type, node.domain, m.cx.version(node), dtype) for node in computing
    )


def kernel_refusal(
    m: Match,
    op_type: str,
    x: ir.Value,
    *,
    domain: str = ir.MICROSOFT,
    since: int = 1,
    in_float: bool = False,
) -> Refusal | None:
    """The refusal of :func:`require_kernel`; ``None`` if the target has a kernel."""
    try:
        require_kernel(m, op_type, x, domain=domain, since=since, in_float=in_float)
    except Refused as error:
        return error.refusal
    return None
