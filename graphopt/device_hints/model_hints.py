"""All hints about a model on a device that need no run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from graphopt import ir
from graphopt.device_hints.bf16 import HasKernel, bf16_unsupported
from graphopt.device_hints.tf32 import (
    float32_products,
    tf32_off,
    tf32_timed,
    tf32_verification,
    uses_tf32,
)
from graphopt.diagnostics.hint import Hint
from graphopt.diagnostics.record import Record
from graphopt.ort.devices import Device
from graphopt.ort.gpu_properties import GpuProperties, gpu_properties


def model_hints(
    model: ir.Model,
    device: Device,
    gpu: GpuProperties | None,
    *,
    tf32: bool | None = None,
    is_verified: bool = False,
    has_kernel: HasKernel | None = None,
) -> Iterator[Hint]:
    """The hints about ``model`` on ``device``.

    Args:
        model: the model.
        device: the device.
        gpu: its properties; ``None`` if it is no GPU.
        tf32: whether the sessions use TF32; ``None`` if they are not those of graphopt.
        is_verified: whether results are compared on the device.
        has_kernel: as for :func:`graphopt.device_hints.bf16.bf16_unsupported`.
    """
    found = [bf16_unsupported(model, device, gpu, has_kernel)]
    if uses_tf32(device, gpu):
        products = float32_products(model)
        found += [tf32_off(products, device, gpu)] if tf32 is False else []
        found += [tf32_verification(products, device, gpu)] if is_verified else []
    yield from (hint for hint in found if hint is not None)


def timing_hints(models: Mapping[str, ir.Model], device: Device, gpu: GpuProperties | None) -> Iterator[Hint]:
    """The hints for timings of ``models``, by name, on ``device`` with the properties ``gpu``."""
    if device.timed.has_tf32 and uses_tf32(device, gpu):
        products = {name: float32_products(model) for name, model in models.items()}
        found = tf32_timed(products, device.timed, gpu)
        if found is not None:
            yield found


def record_hints(record: Record, model: Callable[[], ir.Model], device: Device) -> None:
    """Record the hints about a model that sessions of graphopt run on a GPU.

    Args:
        record: receives the hints.
        model: returns the model; not called for the CPU, whose only hint is part of the error of a session.
        device: the device.
    """
    if device.capabilities.is_host:
        return
    for hint in model_hints(model(), device, gpu_properties(device), tf32=device.has_tf32):
        record.hint(hint)
