"""Name and instruction sets of the processor."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """The name, such as ``Intel(R) Xeon(R) Processor``, or the architecture if the name is unknown."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def features() -> str:
    """The instruction sets of the processor, if the system reports them (Linux)."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return " ".join(sorted(found.partition(":")[2].split()))
