"""onnxruntime's contrib operators: signatures and attribute defaults, for which onnx has no schemas.

Source: the operator schemas of onnxruntime 1.31, and its kernels for the few defaults missing there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt import ir

#: Element types of inputs and outputs by operator; types with the same name are equal. ``_``, or an omitted
#: trailing entry, is an input type that no output has; ``?`` is a type that depends on more than the input
#: types.
SIGNATURES: Mapping[str, str] = {
    "Attention": "T T T _ T T -> T T",
    "AttnLSTM": "T T T T _ T T T T T T T _ T -> T T T",
    "BeamSearch": "_ _ _ _ _ T T -> int32 T T",
    "BiasAdd": "T T T -> T",
    "BiasDropout": "T T T -> T bool",
    "BiasGelu": "T T -> T",
    "BiasSoftmax": "T T -> T",
    "BiasSplitGelu": "T T -> T",
    "BifurcationDetector": "-> int64 int64",
    "BitmaskBiasDropout": "T T T -> T uint32",
    "BitmaskDropout": "T -> T uint32",
    "BranchwiseRMSNorm": "T -> T",
    "CDist": "T T -> T",
    "CausalConvWithState": "T T T T -> T T",
    "ComplexMul": "T T -> T",
    "ComplexMulConj": "T T -> T",
    "ConvTransposeWithDynamicPads": "T T _ T -> T",
    "CropAndResize": "T1 T1 -> T1",
    "DecoderAttention": "T T T T T _ T T -> T T T",
    "DecoderMaskedMultiHeadAttention": "T T T _ T T T _ _ _ T -> T T T ?",
    "DecoderMaskedSelfAttention": "T T T _ T T -> T T",
    "DequantizeLinear": "_ T2 -> T2",
    "DynamicQuantizeLSTM": "-> float float float",
    "DynamicQuantizeMatMul": "-> float",
    "DynamicSparseAttention": "T T T T T T T _ _ _ _ T T _ T T T -> T T T",
    "DynamicTimeWarping": "-> int32",
    "EmbedLayerNormalization": "_ _ T T T T T -> T int32 T",
    "EngramGate": "T T T T T T -> T T",
    "ExpandDims": "T -> T",
    "FastGelu": "T T -> T",
    "FusedConv": "T T T T -> T",
    "FusedGemm": "T T T -> T",
    "FusedMatMul": "T T -> T",
    "FusedMatMulActivation": "T T -> T",
    "GatedAdd": "T T T -> T",
    "GatedDeltaNet": "T T T -> T float float",
    "GatedRMSNorm": "T T T -> T",
    "GatedRelativePositionBias": "T T T T T T -> T",
    "GatherBlockQuantized": "_ _ T2 -> T2",
    "GatherND": "T -> T",
    "Gelu": "T -> T",
    "GemmFastGelu": "T T T -> T",
    "GemmaRotaryEmbedding": "-> float16 float16",
    "GreedySearch": "-> int32",
    "GridSample": "T1 T1 -> T1",
    "GroupNorm": "T -> T",
    "GroupQueryAttention": "T T T T_CACHE T_CACHE _ _ T T _ T T _ _ T T -> T T_CACHE T_CACHE T",
    "HyperConnectionPostMix": "T T -> T",
    "HyperConnectionPreMix": "T -> T",
    "Inverse": "T -> T",
    "Irfft": "T -> T",
    "IsAllFinite": "-> bool",
    "LinearAttention": "T T T S T T -> T S",
    "LinearAttentionGate": "T _ _ T -> T T",
    "LongformerAttention": "T T T T T T -> T",
    "MRotaryEmbedding": "T _ T T -> T",
    "MatMulBlockQuantizedFp4Weight": "T _ _ _ _ T -> T",
    "MatMulBlockQuantizedFp8Weight": "T _ _ _ T -> T",
    "MatMulBnb4": "T1 _ T1 -> T1",
    "MatMulFpQ4": "-> float",
    "MatMulIntegerToFloat": "_ _ T3 T3 _ _ T3 -> T3",
    "MatMulNBits": "T1 _ T1 _ _ T1 -> T1",
    "MatMulNBitsMlp": "T1 T1 T1 _ T1 T1 _ T1 T1 -> T1 T1",
    "MatMulNBitsQkv": "T1 T1 T1 _ T1 T1 _ T1 T1 _ T1 T1 -> T1 T1 T1 T1",
    "MaxpoolWithMask": "-> float",
    "MoE": "T T T T T T T T -> T",
    "MulInteger": "-> int32",
    "MultiHeadAttention": "T T T T _ T T T -> T T T ?",
    "NGramHashMapping": "M M M M M M -> M M",
    "NGramRepeatBlock": "-> float",
    "NhwcConv": "T T T -> T",
    "NhwcFusedConv": "T T T T -> T",
    "NhwcMaxPool": "T -> T",
    "PackedAttention": "T T T _ _ T -> T",
    "PackedMultiHeadAttention": "T T T T _ _ T -> T",
    "PackedSparseAttentionIndexer": "T T T T T T _ _ T T T _ T T T -> int32 int32 T T T int32 T",
    "Pad": "T _ T -> T",
    "PagedAttention": "T T T T_CACHE T_CACHE _ _ _ T T _ T T T -> T T_CACHE T_CACHE",
    "QAttention": "_ _ T3 T3 T3 _ _ _ T3 -> T3 T3",
    "QEmbedLayerNormalization": "-> float int32",
    "QLinearAdd": "T _ T T _ T _ T -> T",
    "QLinearAveragePool": "T _ T _ T -> T",
    "QLinearConcat": "_ T8 -> T8",
    "QLinearConv": "_ _ _ _ _ _ _ T3 -> T3",
    "QLinearGlobalAveragePool": "T _ T _ T -> T",
    "QLinearLeakyRelu": "T _ T _ T -> T",
    "QLinearMul": "T _ T T _ T _ T -> T",
    "QLinearReduceMean": "T _ T _ T -> T",
    "QLinearSigmoid": "T _ T _ T -> T",
    "QLinearSoftmax": "T _ T _ T -> T",
    "QLinearWhere": "_ T _ T T _ T _ T -> T",
    "QMoE": "T T _ _ T _ _ T _ _ T _ _ _ T -> T",
    "QOrderedAttention": "-> int8",
    "QOrderedGelu": "-> int8",
    "QOrderedLayerNormalization": "-> int8",
    "QOrderedLongformerAttention": "-> int8",
    "QOrderedMatMul": "-> int8",
    "QuantizeBFP": "-> uint8 int64 int64",
    "QuantizeLinear": "_ _ T2 -> T2",
    "QuantizeWithOrder": "-> int8",
    "QuickGelu": "T -> T",
    "Range": "T T T -> T",
    "RelativePositionBias": "T -> T",
    "RemovePadding": "T -> T int32 int32 int32",
    "RestorePadding": "T -> T",
    "Rfft": "T -> T",
    "RotaryEmbedding": "T _ T T -> T",
    "SampleOp": "T -> T",
    "Sampling": "-> int32 float",
    "ScaledSiLU": "T -> T",
    "SkipGroupNorm": "T _ _ T T -> T T",
    "SkipLayerNormalization": "T T T T T -> T float float T",
    "SkipSimplifiedLayerNormalization": "T T T T -> T float float T",
    "Snpe": "T -> T",
    "SparseAttention": "T T T T T _ _ _ _ T T -> T T T",
    "SparseAttentionIndexer": "T T T T T T _ T T T T _ _ T -> int32 T T",
    "SparsePagedAttention": "T T T T_CACHE T_CACHE _ _ _ _ _ _ T T _ T T T T T -> T T_CACHE T_CACHE",
    "SparseToDenseMatMul": "_ T1 -> T1",
    "Tokenizer": "-> string",
    "TorchEmbedding": "T -> T",
    "TransposeMatMul": "T T -> T",
    "Trilu": "T -> T",
    "UnfoldTensor": "T -> T",
    "Unique": "T -> T int64 int64",
    "VarlenCausalConvWithState": "T T _ T T -> T T T",
    "VarlenNGramHashMapping": "M M M _ M M M -> M M int32 M",
    "WhisperBeamSearch": "_ _ _ _ _ T T _ _ _ _ _ _ _ T -> int32 T T float T",
    "WordConvEmbedding": "-> float",
}

#: Attribute defaults declared in the schemas.
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

#: Attribute defaults defined in the kernels only.
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


#: Operators added to the standard domain, at opsets without a standard operator of that name.
IN_STANDARD_DOMAIN: Mapping[str, Mapping[str, Any]] = {
    "LayerNormalization": {"axis": -1, "epsilon": 1e-05, "stash_type": 1},
    "SimplifiedLayerNormalization": {"axis": -1, "epsilon": 1e-05, "stash_type": 1},
}


def default(domain: str, op_type: str, name: str) -> Any:
    """The default of attribute ``name`` of an operator that onnx does not define; ``None`` without a default.

    Floats are rounded to the single precision of attributes.
    """
    tables = (IN_STANDARD_DOMAIN,) if domain == "" else (IN_SCHEMAS, IN_KERNELS)
    for table in tables if domain in ("", ir.MICROSOFT) else ():
        value = table.get(op_type, {}).get(name)
        if value is not None:
            return float(np.float32(value)) if isinstance(value, float) else value
    return None


def result_types(op_type: str) -> list[str | tuple[int, ...]]:
    """The element type of each output, or the inputs of the same type; ``()`` if unknown."""
    inputs, _, outputs = SIGNATURES.get(op_type, "->").partition("->")
    names = inputs.split()
    return [
        tuple(index for index, name in enumerate(names) if name == output)
        if output == "?" or output in names
        else output
        for output in outputs.split()
    ]
