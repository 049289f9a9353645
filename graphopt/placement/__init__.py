"""Prediction of the placement of a model's nodes on the providers of a CUDA session, without a device.

onnxruntime offers each node to the CUDA provider first, then to the CPU provider. :func:`predict` models it:

1. Functions of the model, and operators without a kernel that the standard defines as functions, are
   inlined (:mod:`graphopt.placement.inline_functions`); each reader of a DequantizeLinear has a copy.
2. A node belongs to CUDA if the provider has a kernel for its operator, version and types
   (:mod:`graphopt.placement.kernel_lookup`), and accepts its attributes
   (:mod:`graphopt.placement.refusals`).
3. Of these, nodes that only compute with sizes return to the CPU
   (:mod:`graphopt.placement.cpu_preference`).
4. A tensor that is produced in one memory and read in the other is copied
   (:mod:`graphopt.placement.copies`).

Source: onnxruntime, ``cuda_execution_provider.cc`` (GetCapability), ``fallback_cpu_capability.cc`` and
``transformer_memcpy.cc``. ``tests/placement/`` compares predictions with sessions of the installed wheel, in
which stand-ins that need no device replace the CUDA libraries.
"""

from graphopt.placement.check_placement import check_placement
from graphopt.placement.compare_placement import Difference, compare_placement
from graphopt.placement.predict import predict
from graphopt.placement.prediction import Cause, Copy, NodePlacement, Prediction

__all__ = [
    "Cause",
    "Copy",
    "Difference",
    "NodePlacement",
    "Prediction",
    "check_placement",
    "compare_placement",
    "predict",
]
