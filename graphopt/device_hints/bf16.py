"""bfloat16: whether a device supports the computations of a model in bfloat16.

The counterpart of ``_check_triton_bf16_support`` of PyTorch's ``compile_fx``, which warns and runs the model
uncompiled. onnxruntime's CPU provider has kernels for bfloat16 only for operators that move data, and its
error names an operator, but no reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from graphopt import ir
from graphopt.context import context_for
from graphopt.diagnostics.hint import Hint
from graphopt.errors import GraphoptError, RuntimeFailure
from graphopt.ort.devices import Device
from graphopt.ort.gpu_properties import GpuProperties, gpu_properties
from graphopt.ort.target import Target
from graphopt.util.text_tables import shortened

#: Whether there is a kernel: operator, domain, opset version, element type or ``None`` for any.
HasKernel = Callable[[str, str, int, str | None], bool]
_BF16 = ir.DataType.BFLOAT16
#: Number of operators that a hint names.
_NAMED = 3


def has_bf16(model: ir.Model) -> bool:
    """Whether ``model`` has values in bfloat16: its inputs and weights, or results of casts."""
    return any(
        value.dtype == _BF16
        for graph in ir.graphs_of(model)
        for value in (*graph.inputs, *getattr(graph, "initializers", {}).values(), *_outputs(graph))
    ) or any(
        node.op_type in ("Cast", "Constant") and _creates_bf16(node)
        for graph in ir.graphs_of(model)
        for node in graph
    )


def _outputs(graph: ir.Graph) -> Iterator[ir.Value]:
    for node in graph:
        yield from node.outputs


def _creates_bf16(node: ir.Node) -> bool:
    if node.op_type == "Cast":
        return node.attributes.get_int("to", 0) == _BF16
    constant = ir.constant_of(node.outputs[0]) if node.outputs else None
    return constant is not None and constant.dtype == _BF16


def operators_without_kernels(model: ir.Model, has_kernel: HasKernel) -> list[str]:
    """The operators on bfloat16 for which there is no kernel, sorted; model functions are skipped."""
    if not has_bf16(model):
        return []
    cx = context_for(model)
    functions = {(key[0], key[1]) for key in model.functions}
    missing = set()
    for graph in ir.graphs_of(model):
        for node in graph:
            values = [value for value in (*node.inputs, *node.outputs) if value is not None]
            if (node.domain, node.op_type) in functions or node.op_type in ("Constant", "If", "Loop", "Scan"):
                continue
            if not any((value.dtype or cx.facts.dtype(value)) == _BF16 for value in values):
                continue
            if not has_kernel(node.op_type, node.domain, cx.edit.scopes.version(node), "bfloat16"):
                missing.add(node.op_type)
    return sorted(missing)


def bf16_unsupported(
    model: ir.Model, device: Device, gpu: GpuProperties | None, has_kernel: HasKernel | None = None
) -> Hint | None:
    """The hint for a model in bfloat16 on a device without support; ``None`` if there is nothing to report.

    Args:
        model: the model.
        device: the device.
        gpu: its properties; ``None`` if it is no GPU, or if they are unknown.
        has_kernel: whether its provider has a kernel; by default that of the installed onnxruntime.
    """
    if not has_bf16(model):
        return None
    if gpu is not None and not gpu.has_bf16:
        return Hint(
            "bf16-unsupported",
            f"the model computes in bfloat16, which {gpu} does not support natively",
            "convert the model to float16 or float32, or use a GPU of compute capability 8.0 or higher",
        )
    missing = operators_without_kernels(model, has_kernel or Target(device).has_kernel)
    if not missing:
        return None
    return Hint(
        "bf16-unsupported",
        f"the model computes in bfloat16, and onnxruntime has no kernels for {shortened(missing, _NAMED)}"
        f" in bfloat16 on {device}",
        "convert the model to float32, or run it on a GPU of compute capability 8.0 or higher",
    )


@contextlib.contextmanager
def naming_bf16(model: Callable[[], ir.Model], device: Device) -> Iterator[None]:
    """Add the hint about bfloat16 to an error of onnxruntime in the ``with`` block that has no hint.

    Args:
        model: returns the model; called only after an error.
        device: the device.
    """
    try:
        yield
    except RuntimeFailure as failure:
        found = None
        if not failure.hint:
            with contextlib.suppress(GraphoptError):  # onnxruntime may have failed because it is no model
                found = bf16_unsupported(model(), device, gpu_properties(device))
        if found is not None:
            failure.hint = f"{found.message}: {found.remedy}"
        raise
