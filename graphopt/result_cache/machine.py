"""The parts of a key about hardware: the processor, the device, and costs measured on this machine."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from graphopt import config
from graphopt.result_cache.not_cached import NotCached
from graphopt.settings import Settings
from graphopt.util.cpu_features import features, processor
from graphopt.util.disk_store import COSTS, Store, file_digest, key_of


def machine_parts(settings: Settings, device: object) -> dict[str, str]:
    """The parts of a key about the machine.

    Args:
        settings: the current settings.
        device: the value of the option ``device``.

    Raises:
        NotCached: the file with the costs can't be read.
    """
    return {
        "processor": f"{processor()} {key_of(features())}",
        "gpu": "not used" if str(device).lower() == "cpu" else _gpu(),
        "costs": _costs(settings),
        "costs as by default": _automatic_costs(settings),
    }


def _costs(settings: Settings) -> str:
    """The contents of the table of costs; graphopt's own code contains the shipped table."""
    if settings.costs == "shipped":
        return "shipped"
    if settings.costs == "auto":
        store = Store(settings.cache_dir)
        measured = [store.get(COSTS, entry.key) or b"" for entry in store.entries(COSTS)]
        return key_of(*measured) if measured else "shipped"
    try:
        return file_digest(Path(settings.costs))
    except (OSError, ValueError) as error:
        raise NotCached(f"the costs in {settings.costs} can't be read") from error


def _automatic_costs(settings: Settings) -> str:
    """Whether the table of costs is the automatic one, which results do not record."""
    nothing_measured = next(Store(settings.cache_dir).entries(COSTS), None) is None
    if settings.costs == "auto" or (settings.costs == "shipped" and nothing_measured):
        return "yes"
    from graphopt.cost.select_table import is_automatic

    return "yes" if is_automatic(settings) else "no"


def _gpu() -> str:
    """The NVIDIA driver, its devices, and the folders of libraries, which determine the device ``auto``."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return "no NVIDIA driver"
    version, count, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    status = driver.cuInit(0), driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGetCount(ctypes.byref(count))
    names = []
    for index in range(count.value):
        driver.cuDeviceGetName(name, len(name), index)
        names.append(name.value.decode(errors="replace"))
    folders = [config.variable("LD_LIBRARY_PATH") or "", *sys.path]
    return f"driver {version.value} {status} {', '.join(names)} {key_of(*folders)}"
