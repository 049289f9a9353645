"""How long something takes, and how much memory it needs on top."""

from __future__ import annotations

import os
import sys
import time


class ResourceMeter:
    """Measures the block under ``with``.

    Attributes:
        seconds: wall-clock time.
        peak_bytes: growth of the process's resident memory from the start to its peak inside
            the block. Where the system keeps only a peak since the process began (not Linux),
            growth below that peak is not seen.
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
    """The most memory, in bytes, that this process has held; 0 if the system does not tell."""
    if sys.platform == "win32":
        return 0
    status = _status("VmHWM")
    if status:
        return status
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _resident() -> int:
    return _status("VmRSS") or peak_resident()


def _status(entry: str) -> int:
    """An entry of ``/proc/self/status`` in bytes; 0 where there is none."""
    try:
        with open("/proc/self/status") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(entry + ":")), 0)
    except OSError:
        return 0


def _reset_peak() -> None:
    """Let Linux's record of the peak start anew (``proc(5)``, ``clear_refs``)."""
    try:
        descriptor = os.open("/proc/self/clear_refs", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(descriptor, b"5")
    except OSError:
        pass  # not permitted: the older peak stays, and less growth is seen
    finally:
        os.close(descriptor)
