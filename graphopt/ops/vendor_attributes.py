"""Default values of the attributes of operators that onnxruntime adds to the standard.

onnx has no schemas of them. Source: the operator schemas of onnxruntime 1.31, and its kernels for the few
defaults that the schemas do not state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt import ir

#: As the schemas state them.
IN_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "Attention": {"unidirectional": 0},
    "BiasSoftmax": {"axis": 1},
    "CDist": {"metric": "sqeuclidean"},
    "ConvTransposeWithDynamicPads": {"auto_pad": "NOTSET", "group": 1},
    "CropAndResize": {"extrapolation_value": 0.0, "mode": "bilinear"},
    "DynamicQuantizeLSTM": {"direction": "forward", "input_forget": 0},
    "EmbedLayerNormalization": {"epsilon": 1e-12},
    "FusedConv": {"auto_pad": "NOTSET", "group": 1},
    "FusedGemm": {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0},
    "FusedMatMul": {"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0},
    "GatherBlockQuantized": {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1},
    "GridSample": {"align_corners": 0, "mode": "bilinear", "padding_mode": "zeros"},
    "GroupNorm": {"channels_last": 1, "epsilon": 1e-05},
    "GroupQueryAttention": {
        "causal": 1,
        "k_quant_type": "NONE",
        "local_window_size": -1,
        "qk_norm_epsilon": 1e-06,
        "qk_output": 0,
        "sliding_window_cache": 0,
        "smooth_softmax": -1,
        "v_quant_type": "NONE",
    },
    "Irfft": {"normalized": 0, "onesided": 1},
    "MatMulBnb4": {"training_mode": 0, "transB": 1},
    "MatMulFpQ4": {"blk_quant_type": 1},
    "MatMulNBits": {"accuracy_level": 0, "bits": 4, "weight_prepacked": 0},
    "MaxpoolWithMask": {"auto_pad": "NOTSET", "storage_order": 0},
    "MoE": {
        "activation_alpha": 1.0,
        "activation_beta": 0.0,
        "activation_type": "relu",
        "k": 1,
        "normalize_routing_weights": 0,
        "swiglu_fusion": 0,
        "use_sparse_mixer": 0,
    },
    "MultiHeadAttention": {"unidirectional": 0},
    "MurmurHash3": {"positive": 1, "seed": 0},
    "NhwcConv": {"auto_pad": "NOTSET", "group": 1},
    "NhwcFusedConv": {"auto_pad": "NOTSET", "group": 1},
    "NhwcMaxPool": {"auto_pad": "NOTSET", "ceil_mode": 0},
    "Pad": {"mode": "constant"},
    "QAttention": {"unidirectional": 0},
    "QEmbedLayerNormalization": {"epsilon": 1e-12},
    "QGemm": {"alpha": 1.0, "transA": 0, "transB": 0},
    "QLinearAveragePool": {"auto_pad": "NOTSET", "ceil_mode": 0, "channels_last": 0, "count_include_pad": 0},
    "QLinearConv": {"auto_pad": "NOTSET", "channels_last": 0, "group": 1},
    "QLinearGlobalAveragePool": {"channels_last": 0},
    "QLinearLeakyRelu": {"alpha": 0.01},
    "QLinearSoftmax": {"axis": -1},
    "QMoE": {
        "accuracy_level": 0,
        "activation_alpha": 1.0,
        "activation_beta": 0.0,
        "activation_type": "relu",
        "expert_weight_bits": 4,
        "k": 1,
        "normalize_routing_weights": 0,
        "quant_type": "int",
        "swiglu_fusion": 0,
        "use_sparse_mixer": 0,
        "weights_prepacked": -1,
    },
    "QuickGelu": {"alpha": 1.702},
    "RelativePositionBias": {"is_bidirectional": 0},
    "Rfft": {"normalized": 0, "onesided": 1, "signal_ndim": 1},
    "SkipGroupNorm": {"channels_last": 1, "epsilon": 1e-05},
    "SkipLayerNormalization": {"epsilon": 1e-12},
    "SkipSimplifiedLayerNormalization": {"epsilon": 1e-12},
    "SparseToDenseMatMul": {"alpha": 1.0, "transA": 0, "transB": 0},
    "TransposeMatMul": {"alpha": 1.0, "transA": 0, "transB": 0},
    "Trilu": {"upper": 1},
    "UnfoldTensor": {"dim": -1, "step": 1},
}

#: Defaults in the sources of the kernels alone.
IN_KERNELS: Mapping[str, Mapping[str, Any]] = {
    "Attention": {"do_rotary": 0, "mask_filter_value": -10000.0, "past_present_share_buffer": 0},
    "DecoderMaskedMultiHeadAttention": {"mask_filter_value": -10000.0},
    "DequantizeLinear": {"axis": 1, "block_size": 0},
    "GroupQueryAttention": {"do_rotary": 0, "rotary_interleaved": 0, "softcap": 0.0},
    "MultiHeadAttention": {"mask_filter_value": -10000.0},
    "QuantizeLinear": {"axis": 1, "block_size": 0},
    "RotaryEmbedding": {
        "interleaved": 0,
        "is_packed_batching": 0,
        "num_heads": 0,
        "rotary_embedding_dim": 0,
        "scale": 1.0,
    },
}


#: Operators that onnxruntime adds to the standard domain, at opsets where the standard has none of that name.
IN_STANDARD_DOMAIN: Mapping[str, Mapping[str, Any]] = {
    "LayerNormalization": {"axis": -1, "epsilon": 1e-05, "stash_type": 1},
    "SimplifiedLayerNormalization": {"axis": -1, "epsilon": 1e-05, "stash_type": 1},
}


def default(domain: str, op_type: str, name: str) -> Any:
    """The default of attribute ``name`` of an operator that onnx does not know; ``None`` if it has none.

    Floats are the single-precision number that an attribute holds.
    """
    tables = (IN_STANDARD_DOMAIN,) if domain == "" else (IN_SCHEMAS, IN_KERNELS)
    for table in tables if domain in ("", ir.MICROSOFT) else ():
        value = table.get(op_type, {}).get(name)
        if value is not None:
            return float(np.float32(value)) if isinstance(value, float) else value
    return None
