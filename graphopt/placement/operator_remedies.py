"""Remedies for operators without a CUDA kernel that neither a rewrite nor another type can move to CUDA."""

from __future__ import annotations

from collections.abc import Mapping

from graphopt import ir

_QDQ = "quantize the model in the QDQ format: CUDA has kernels of its operators"
#: With this option, onnxruntime folds all constant DequantizeLinear. Without it, it also quantizes constant
#: float biases of convolutions between quantizers (``WeightBiasQuantization``), for which CUDA has no kernel.
_FOLD = 'SessionOptions.add_session_config_entry("session.disable_quant_qdq", "1") lets onnxruntime fold it'

#: By domain and operator.
OPERATOR_REMEDIES: Mapping[tuple[str, str], str] = {
    ("", "DequantizeLinear"): _FOLD,
    **{("", name): _QDQ for name in ("QLinearConv", "QLinearMatMul", "ConvInteger", "DynamicQuantizeLinear")},
    **{
        (ir.MICROSOFT, f"QLinear{name}"): _QDQ
        for name in (
            *("Add", "AveragePool", "Concat", "Conv", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid"),
            *("Softmax", "Where"),
        )
    },
    **{(ir.MICROSOFT, name): _QDQ for name in ("QGemm", "DynamicQuantizeMatMul", "MatMulIntegerToFloat")},
}
