"""The name and the driver of a GPU."""

from __future__ import annotations

import shutil
import subprocess

from graphopt.ort.devices import Device
from graphopt.ort.gpu_properties import gpu_properties


def gpu_name(device: Device) -> str:
    """The name of a GPU, and the version of its driver if nvidia-smi reports it."""
    gpu = gpu_properties(device)
    name = "GPU of unknown name" if gpu is None else str(gpu)
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return name
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    return f"{name}, driver {lines[0].strip()}" if lines else name
