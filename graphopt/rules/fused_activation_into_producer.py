"""A bias, convolution or product and the subsequent activation, as one operator of onnxruntime.

onnxruntime does the same when it creates a session: the benefit is a shorter model. These rules run last,
because other rules match the separate operators.
"""

from __future__ import annotations

from typing import Any

from graphopt import ir
from graphopt.rewrite import Builder, Exact, Match, Outcome, fusion
from graphopt.rules.building_blocks import quantizers
from graphopt.rules.building_blocks.kernel_availability import require_kernel
from graphopt.rules.building_blocks.operands import operand
from graphopt.rules.building_blocks.shape_equality import same_shape

#: Activations of FusedConv and FusedGemm, each with its attributes in order.
_OF_CONV = {"Relu": (), "Sigmoid": (), "Tanh": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
_OF_GEMM = _OF_CONV | {"Elu": ("alpha",), "Softplus": (), "Softsign": (), "ThresholdedRelu": ("alpha",)}
#: Providers that support fewer activations in FusedConv: cuDNN has only Relu.
_OF_CONV_BY_PROVIDER = {"CUDAExecutionProvider": ("Relu",)}


def _require_floats(m: Match, node: ir.Node) -> None:
    """Refuse if onnxruntime may run ``node`` on integers."""
    operands = [quantizers.dequantized(m, value) for value in node.inputs]
    ends = [user for user in ir.readers(m.root.outputs[0]) if quantizers.is_quantizer(user, "QuantizeLinear")]
    if any(operands) or ends:
        m.refuse("onnxruntime runs this form on integers", node.inputs[0])


# Bias -----------------------------------------------------------------------------------------


@fusion(
    lambda op, x, b: op.Gelu(op.Add(x, b)),
    lambda op, x, b: op.domain(ir.MICROSOFT).one_of("Gelu", "FastGelu")(op.Add(x, b)),
    phase=2,
    pattern="bias + GELU",
    anchors=(),
    tags=("onnxscript:bias-gelu", "onnxruntime:BiasGeluFusion"),
)
def bias_into_gelu(op: Builder, m: Match, x: ir.Value, b: ir.Value) -> Outcome:
    """Gelu(x + b) → BiasGelu(x, b) or FastGelu(x, b), if b is a vector along the last axis."""
    by_tanh = m.root.op_type == "FastGelu" or (
        m.root.domain == "" and m.attribute(m.root, "approximate") == "tanh"
    )
    name = "FastGelu" if by_tanh else "BiasGelu"
    require_kernel(m, name, x)
    for data, bias in ((x, b), (b, x)):
        bias_shape, data_shape = m.shape(bias), m.shape(data)
        if bias_shape is None or data_shape is None or len(bias_shape) != 1:
            continue
        if same_shape(m, bias_shape, data_shape[-1:]):
            return op.fused(op.node(name, [data, bias], domain=ir.MICROSOFT))
    return m.no("neither summand is one number per element of the last axis", b)


# Convolutions and products --------------------------------------------------------------------


def _bound(m: Match, index: int, name: str) -> float | int | bool | None:
    """A bound of the Clip at the root, an attribute before opset 11."""
    if m.version >= 11:
        return ir.scalar_of(operand(m.root, index))
    bound = m.attribute(m.root, name)
    return None if bound is None else float(bound)


@fusion(
    lambda op, x, w: op.one_of(*_OF_CONV)(op.Conv(x, w.rest(), tag="conv")),
    lambda op, x, w, r: op.Clip(op.Conv(x, w.rest(), tag="conv"), r.rest()),
    numerics=Exact,
    phase=2,
    pattern="Conv + activation",
    anchors=(),
    tags=("onnxruntime:ConvActivationFusion",),
)
def activation_into_conv(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """f(Conv(x, w, b)) → FusedConv(x, w, b, activation=f)."""
    conv, activation = m.node("conv"), m.root.op_type
    require_kernel(m, "FusedConv", x)
    _require_floats(m, conv)
    if activation not in _OF_CONV_BY_PROVIDER.get(m.cx.target.provider, (activation,)):
        return m.no(f"FusedConv does not support {activation} on {m.cx.target.device}", m.root.inputs[0])
    if activation == "Clip":
        bounds = [_bound(m, index, name) for index, name in ((1, "min"), (2, "max"))]
        parameters = [float(bound) for bound in bounds if bound is not None]
        if len(parameters) < 2:
            return m.no("the bounds are not two known numbers", m.root.inputs[0])
    else:
        parameters = [m.attribute(m.root, name) for name in _OF_CONV[activation]]
    attributes: dict[str, Any] = {**conv.attributes, "activation": activation}
    if parameters:
        attributes["activation_params"] = parameters
    return op.fused(op.node("FusedConv", conv.inputs, attributes, domain=ir.MICROSOFT))


@fusion(
    lambda op, a, b: op.one_of(*_OF_GEMM)(op.Gemm(a, b.rest(), tag="gemm")),
    numerics=Exact,
    phase=2,
    pattern="Gemm + activation",
    anchors=(),
    tags=("onnxruntime:GemmActivationFusion",),
)
def activation_into_gemm(op: Builder, m: Match, a: ir.Value) -> Outcome:
    """f(Gemm(a, b, c)) → FusedGemm(a, b, c, activation=f)."""
    gemm, activation = m.node("gemm"), m.root.op_type
    if not m.cx.target.device.capabilities.all_operators:
        return m.no(f"only the CPU has a kernel for it, not {m.cx.target.device}", a)
    require_kernel(m, "FusedGemm", a)
    _require_floats(m, gemm)
    parameters = {f"activation_{name}": m.attribute(m.root, name) for name in _OF_GEMM[activation]}
    attributes: dict[str, Any] = {**gemm.attributes, "activation": activation, **parameters}
    return op.fused(op.node("FusedGemm", gemm.inputs, attributes, domain=ir.MICROSOFT))
