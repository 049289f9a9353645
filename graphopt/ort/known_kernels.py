"""Kernels of onnxruntime's CUDA provider, for machines on which they can't be listed.

Listing them loads the provider's library, which requires the libraries of CUDA. The table has the operators
of com.microsoft that graphopt writes; the kernels of other operators are assumed to be those of the CPU.
Source: onnxruntime/contrib_ops/cuda/cuda_contrib_kernels.cc.
"""

from __future__ import annotations

from collections.abc import Mapping

_HALVES = ("float16", "bfloat16")
_FLOATS = ("float", *_HALVES)

#: Element types of the main type parameter, by operator of com.microsoft; none without a kernel.
CUDA: Mapping[str, tuple[str, ...]] = {
    "BiasGelu": ("double", *_FLOATS),
    "DynamicQuantizeMatMul": (),
    "FastGelu": ("double", *_FLOATS),
    "FusedConv": ("float",),
    "FusedGemm": (),
    "FusedMatMul": ("double", *_FLOATS),
    "Gelu": ("double", *_FLOATS),
    "GroupQueryAttention": _HALVES,
    "MatMulIntegerToFloat": (),
    "MultiHeadAttention": _FLOATS,
    "QuickGelu": ("double", *_FLOATS),
    "RotaryEmbedding": _FLOATS,
    "SkipLayerNormalization": _FLOATS,
    "SkipSimplifiedLayerNormalization": _FLOATS,
}
