"""The time for which this process has been running."""

from __future__ import annotations

import os
import time


def age() -> float:
    """Seconds since the process began, to about 10 ms; 0 where the system does not report it."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            # the second field is the name in brackets, and may contain any character
            started = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
