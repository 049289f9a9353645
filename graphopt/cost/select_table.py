"""Select the current cost table: measured on this machine, shipped with graphopt, or a file."""

from __future__ import annotations

import json
from pathlib import Path

from graphopt.config import Settings
from graphopt.cost.cost_model import FORMAT, Costs, read, shipped
from graphopt.errors import UsageError, unknown
from graphopt.ort.devices import Device, choose
from graphopt.ort.gpu_properties import gpu_properties
from graphopt.ort.installation import version_of
from graphopt.util.cpu_features import processor
from graphopt.util.disk_store import COSTS, Store, key_of

AUTO, SHIPPED = "auto", "shipped"


def costs_for(setting: str, device: Device, cache: Path) -> Costs:
    """The table that ``setting`` selects for ``device``.

    Args:
        setting: ``auto`` for the table measured on this machine with this runtime, otherwise the shipped one;
            ``shipped``; or a file written by ``graphopt calibrate``.

    Raises:
        UsageError: the table does not exist; the file can't be read, or has no table for this kind of device.
    """
    if setting == SHIPPED:
        return shipped(device.kind)
    if setting == AUTO:
        return load_measured_table(Store(cache), device) or shipped(device.kind)
    if not Path(setting).suffix and not Path(setting).exists():
        raise unknown(
            "table of costs", setting, (AUTO, SHIPPED), "auto, shipped, or a file of graphopt calibrate"
        )
    costs = read(Path(setting))
    if costs.device != device.kind:
        raise UsageError(
            f"the costs in {setting} were measured on {costs.device}, and the result is for {device.kind}",
            hint=f"--set costs=auto, or --device {costs.device}",
        )
    return costs


def load_measured_table(store: Store, device: Device) -> Costs | None:
    """The table measured on this machine; ``None`` without a readable table."""
    data = store.get(COSTS, _key(device))
    if data is None:
        return None
    try:
        return Costs.from_dict(json.loads(data))
    except ValueError:
        store.remove(COSTS, _key(device))
        return None


def calibrated(settings: Settings) -> str | None:
    """The text of the table measured on this machine for the device of ``settings``."""
    store = Store(settings.cache_dir)
    if next(store.entries(COSTS), None) is None:  # without probing the device
        return None
    try:
        device, _ = choose(settings.device, allow_fallback=True)
    except UsageError:
        return None
    costs = load_measured_table(store, device)
    return None if costs is None else costs.text()


def is_automatic(settings: Settings) -> bool:
    """Whether the setting ``costs`` selects the same table as ``auto``."""
    if settings.costs == AUTO:
        return True
    measured = calibrated(settings)
    if settings.costs == SHIPPED:
        return measured is None
    try:
        costs = read(Path(settings.costs))
    except UsageError:  # the run reports it
        return False
    return costs.text() == (shipped(costs.device).text() if measured is None else measured)


def store_measured_table(store: Store, device: Device, costs: Costs) -> None:
    """Store ``costs`` as the table of this machine.

    Raises:
        ResourceLimit: the store can't be written.
    """
    store.put(COSTS, costs.text().encode(), _key(device))


def remove_measured_table(store: Store, device: Device) -> Costs | None:
    """Remove the table of this machine, so that the shipped one applies again; returns the removed table."""
    costs = load_measured_table(store, device)
    store.remove(COSTS, _key(device))
    return costs


def hardware(device: Device) -> str:
    """The name of the processor or GPU for which figures of ``device`` are valid."""
    gpu = gpu_properties(device)
    return processor() if gpu is None else str(gpu)


def runtime_version() -> str:
    """The version of onnxruntime, without importing it."""
    return version_of("onnxruntime-gpu") or version_of("onnxruntime")


def _key(device: Device) -> str:
    return key_of(FORMAT, hardware(device), runtime_version(), str(device))
