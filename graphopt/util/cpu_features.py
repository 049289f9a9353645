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


#: The flags in /proc/cpuinfo of each level of x86-64, in addition to those of the lower levels.
_LEVELS = {
    2: ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"),
    3: ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"),
    4: ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}


def x86_level() -> int | None:
    """The level of x86-64 (1 to 4, System V ABI) of the processor; ``None`` if it is unknown."""
    flags = features().split()
    if not flags or platform.machine().lower() not in ("x86_64", "amd64"):
        return None
    level = 1
    for higher, needed in _LEVELS.items():
        if not all(flag in flags for flag in needed):
            break
        level = higher
    return level
