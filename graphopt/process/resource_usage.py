"""Measure the duration and the additional memory of a ``with`` block."""

from __future__ import annotations

import os
import sys
import time

from graphopt.process.memory import status_bytes


class ResourceMeter:
    """Measures a ``with`` block.

    Attributes:
        seconds: wall-clock seconds.
        peak_bytes: growth of the process's resident memory in bytes, from the start of the block to the peak
            within it. Systems other than Linux record only the peak since the start of the process, so growth
            below that peak is missed.
    """

    seconds: float = 0.0
    peak_bytes: int = 0

    def __enter__(self) -> ResourceMeter:
        _reset_peak()
        self._before = _resident()
        self._began = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self.peak_bytes = max(0, peak_resident() - self._before)


def peak_resident() -> int:
    """Peak resident memory of this process in bytes; 0 if unknown."""
    if sys.platform == "win32":
        return 0
    peak = status_bytes("VmHWM")
    if peak:
        return peak
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _resident() -> int:
    return status_bytes("VmRSS") or peak_resident()


def _reset_peak() -> None:
    """Reset Linux's record of the peak (``proc(5)``, ``clear_refs``)."""
    try:
        descriptor = os.open("/proc/self/clear_refs", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(descriptor, b"5")
    except OSError:
        pass  # not permitted: the earlier peak remains, which hides some growth
    finally:
        os.close(descriptor)
