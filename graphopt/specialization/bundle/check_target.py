"""Check that a bundle's target fits this machine: device, libraries of kernels, version of onnxruntime."""

from __future__ import annotations

from graphopt.config import Settings
from graphopt.errors import RuntimeFailure, UnsupportedModel
from graphopt.ort.devices import PROVIDERS, Device, choose, parse_device
from graphopt.ort.target import Target
from graphopt.specialization.bundle.kernel_files import machine, system
from graphopt.specialization.bundle.manifest import BundleTarget, Manifest
from graphopt.util.cpu_features import x86_level


def device_for(
    manifest: Manifest, device: str | Device | None, settings: Settings
) -> tuple[Device, str | None]:
    """The device for a bundle, by default that of its target, and a note if it falls back to the CPU.

    Args:
        manifest: the manifest; without a target, in older formats, any device is possible.
        device: the device that the caller names; by default that of ``settings``.

    Raises:
        UnsupportedModel: the bundle is for another device.
        RuntimeFailure: the device can't be used.
    """
    named = device if isinstance(device, Device) else parse_device(device or settings.device)
    target = manifest.target
    if target is not None and PROVIDERS.get(target.device) != target.provider:
        raise UnsupportedModel(
            f"the bundle is compiled for the device {target.device} with {target.provider}, which this"
            " version of graphopt does not support",
            hint="a newer graphopt may support it",
        )
    if named is None:
        text = "auto" if target is None else target.device
        try:
            return choose(text, allow_fallback=settings.allow_fallback)
        except RuntimeFailure as failure:
            raise RuntimeFailure(
                f"the bundle is compiled for {text}: {failure.message}",
                hint="graphopt compile MODEL --device cpu writes a bundle for the CPU; --allow-fallback runs"
                " this one on the CPU",
            ) from failure
    if target is not None and named.kind != target.device:
        raise UnsupportedModel(
            f"the bundle is compiled for the device {target.device}, not for {named.kind}",
            hint=f"graphopt compile MODEL --device {named.kind}; or name no device",
        )
    if isinstance(device, Device):
        return device, None
    return choose(device or settings.device, allow_fallback=settings.allow_fallback)


def check_kernels(target: BundleTarget) -> None:
    """Check that this machine can load the libraries of kernels of a bundle for ``target``.

    Raises:
        UnsupportedModel: they are for another system, architecture or CPU level.
    """
    if target.machine is None:
        return
    if (target.system, target.machine) != (system(), machine()):
        raise UnsupportedModel(
            f"the bundle has kernels for {target.system} on {target.machine}, and this machine is"
            f" {system()} on {machine()}",
            hint="compile it on such a machine, or without --fuser native for all machines",
        )
    level = x86_level()
    if target.cpu_level is not None and level is not None and level < target.cpu_level:
        raise UnsupportedModel(
            f"the bundle has kernels for x86-64-v{target.cpu_level} and higher, and this CPU is"
            f" x86-64-v{level}",
            hint=f"graphopt compile MODEL --fuser native --cpu-level v{max(level, 2)}",
        )


def is_older_runtime(target: BundleTarget, version: str | None = None) -> bool:
    """Whether ``version``, by default the installed onnxruntime, is older than that of ``target``."""
    return _numbers(version or Target().version) < _numbers(target.onnxruntime)


def with_remedy(failure: RuntimeFailure, target: BundleTarget | None) -> RuntimeFailure:
    """``failure`` of a session; if an older onnxruntime is installed, with that as the reason."""
    if target is None or not is_older_runtime(target):
        return failure
    return RuntimeFailure(
        f"{failure.message}; the bundle is compiled for onnxruntime {target.onnxruntime}, and"
        f" {Target().version} is installed",
        hint=f"pip install 'onnxruntime>={target.onnxruntime}', or compile it again with the older version",
    )


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version; zeros if they are unknown."""
    parts = version.split(".")[:2]
    return tuple(int(part) if part.isdecimal() else 0 for part in parts)
