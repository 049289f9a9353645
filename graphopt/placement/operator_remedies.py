"""Remedies for operators without a kernel on CUDA that no rewrite and no type provides."""

from __future__ import annotations

from collections.abc import Mapping

from graphopt import ir

_QDQ = "quantize in the QDQ format: CUDA has kernels of its operators"
#: onnxruntime folds all constant DequantizeLinear with it. Otherwise it also quantizes constant float biases
#: of convolutions between quantizers (``WeightBiasQuantization``), although CUDA has no kernel for them.
_FOLD = "set the session option session.disable_quant_qdq to 1: onnxruntime then folds it"

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
