"""TF32: products of float32 with factors rounded to 10 bits, on GPUs of compute capability 8.0 and higher.

onnxruntime's CUDA provider uses TF32 by default (option ``use_tf32``), as opposed to PyTorch, whose
``compile_fx`` advises to switch it on. graphopt switches it off in its own sessions unless an option permits
it, and always in comparisons, because it hides faults. Timings use onnxruntime's default.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphopt import ir
from graphopt.context import context_for
from graphopt.diagnostics.hint import Hint
from graphopt.ort.devices import Device
from graphopt.ort.gpu_properties import GpuProperties
from graphopt.util.text_tables import counted

#: Operators of float32 products that the CUDA provider computes in TF32.
_PRODUCTS = frozenset(
    {"MatMul", "Gemm", "Conv", "ConvTranspose", "FusedMatMul", "FusedGemm", "FusedConv", "Einsum"}
)


def float32_products(model: ir.Model) -> int:
    """The number of float32 products and convolutions in ``model``, bodies and functions included."""
    candidates = [
        node for graph in ir.graphs_of(model) for node in graph if node.op_type in _PRODUCTS and node.inputs
    ]
    if not candidates:
        return 0
    facts = context_for(model).facts
    types = (
        None if (value := node.inputs[0]) is None else value.dtype or facts.dtype(value)
        for node in candidates
    )
    return sum(dtype == ir.DataType.FLOAT for dtype in types)


def uses_tf32(device: Device, gpu: GpuProperties | None) -> bool:
    """Whether products on ``device`` may be computed in TF32."""
    return device.capabilities.tf32 and gpu is not None and gpu.has_tf32


def tf32_off(products: int, device: Device, gpu: GpuProperties | None) -> Hint | None:
    """The hint for a session without TF32.

    Args:
        products: the number of float32 products of the model.
        device: the device of the session.
        gpu: its properties; ``None`` for the CPU.
    """
    if not products or not uses_tf32(device, gpu):
        return None
    return Hint(
        "tf32-off",
        f"TF32 is off, and {gpu} computes {counted(products, 'float32 product')} faster with it",
        "--tf32 permits it (in Python: cuda_options={'use_tf32': 1}), and graphopt bench measures with it;"
        " your own sessions have the provider option use_tf32=1 by default",
    )


def tf32_timed(products: Mapping[str, int], device: Device, gpu: GpuProperties | None) -> Hint | None:
    """The hint for timings of models with float32 products.

    Args:
        products: the number of float32 products of each model, by name.
        device: the device of the timed sessions.
        gpu: its properties; ``None`` for the CPU.
    """
    if not any(products.values()) or not device.has_tf32 or not uses_tf32(device, gpu):
        return None
    numbers = list(products.values())
    if len(set(numbers)) == 1:
        fact = f"TF32, which rounds factors to 10 bits, is on for {counted(numbers[0], 'float32 product')}"
    else:
        each = ", ".join(f"{number} of {name}" for name, number in products.items())
        fact = f"TF32 is on, and the models have different numbers of float32 products: {each}"
    return Hint("tf32-timed", fact, "--no-tf32 times them in float32, as outputs are compared")


def tf32_verification(products: int, device: Device, gpu: GpuProperties | None) -> Hint | None:
    """The hint for a comparison without TF32; arguments as for :func:`tf32_off`."""
    if not products or not uses_tf32(device, gpu):
        return None
    return Hint(
        "tf32-verification",
        "results were compared with TF32 off, and onnxruntime's CUDA provider switches it on by default:"
        f" {counted(products, 'float32 product')} may differ by about 1e-3 of their size",
        "the provider option use_tf32=0 computes in float32, as the comparison did",
    )
