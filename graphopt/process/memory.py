"""Available memory, limits on memory, and the return of free memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

from graphopt.errors import ResourceLimit
from graphopt.util.text_tables import human_bytes

#: Bytes from which a cgroup's limit counts as none: cgroups without a limit report a number near 2^63.
_NO_LIMIT = 1 << 60
#: Minimum memory limit, in bytes, of a process with sessions.
SESSION_BYTES = 1 << 28
#: The largest library that a process imports; onnxruntime runs models.
Libraries = Literal["onnx", "onnxruntime"]
#: Bytes that the interpreter needs with numpy and onnx, or with these and onnxruntime for the smallest model:
#: private memory, and address space, which also contains the libraries. Measured as the least ``ulimit -d``
#: and ``ulimit -v`` under which ``graphopt passes`` and ``graphopt optimize`` succeed, with one thread of
#: OpenBLAS: 70 MB and 140 MB, 92 MB and 190 MB.
_LEAST: dict[Libraries, tuple[int, int]] = {
    "onnx": (76 << 20, 144 << 20),
    "onnxruntime": (96 << 20, 192 << 20),
}


def available(root: Path = Path("/")) -> int | None:
    """Bytes available to a new process: the minimum over the system, cgroups and resource limits.

    Linux only; ``None`` elsewhere.

    Args:
        root: root of the file system with ``proc`` and ``sys``.
    """
    if not sys.platform.startswith("linux"):
        return None
    bounds = [*_of_system(root), *_of_cgroups(root), *_of_limits()]
    return max(0, min(bounds)) if bounds else None


def counted_mappings() -> int | None:
    """Bytes that a new process may use under limits that also count private mappings of files.

    onnxruntime maps weights privately and writably, so that RLIMIT_DATA counts them, although no memory is
    used until a page is written. ``None`` without such a limit.
    """
    if not sys.platform.startswith("linux"):
        return None
    return min((max(0, bound) for bound in _of_limits()), default=None)


def is_limited() -> bool:
    """Whether a limit (``ulimit``) on the memory of this process is in effect."""
    return sys.platform.startswith("linux") and any(True for _ in _of_limits())


def check_limits(libraries: Libraries) -> None:
    """Check that the limits of this process (``ulimit``) admit the libraries, and onnxruntime a small model.

    If memory does not suffice to initialize native libraries, these abort or interrupt the process.

    Raises:
        ResourceLimit: they do not.
    """
    if not sys.platform.startswith("linux"):
        return
    import resource

    data, space = _LEAST[libraries]
    kinds = ((resource.RLIMIT_DATA, data, "d"), (resource.RLIMIT_AS, space, "v"))
    for kind, least, name in kinds:
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY and soft < least:
            raise ResourceLimit(
                f"graphopt needs at least {human_bytes(least)} of memory, and ulimit -{name} allows"
                f" {human_bytes(soft)}",
                hint="raise this limit, for large models by a multiple of their weights",
            )


def limit_data(nbytes: int) -> None:
    """Limit further private memory of this process to ``nbytes``, unless the current limit is lower.

    Enforced on Linux only.
    """
    if not sys.platform.startswith("linux"):
        return
    import resource

    limits = [value for value in resource.getrlimit(resource.RLIMIT_DATA) if value != resource.RLIM_INFINITY]
    least = min([status_bytes("VmData") + nbytes, *limits])
    resource.setrlimit(resource.RLIMIT_DATA, (least, least))


def trim() -> None:
    """Return free memory of the C library to the system; no effect except with glibc.

    glibc keeps blocks below its adaptive threshold (up to 32 MB), such as weights, for later requests.
    """
    if sys.platform.startswith("linux"):
        import ctypes

        release = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if release is not None:
            release(0)


def _of_system(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _of_cgroups(root: Path) -> Iterator[int]:
    """Bytes available in each cgroup of this process (v2, and the memory controller of v1)."""
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, name = line.split(":", 2)
        mount = root / "sys/fs/cgroup"
        if number == "0" and not controllers:
            limit, used, cache = "memory.max", "memory.current", "inactive_file "
        elif "memory" in controllers.split(","):
            mount /= "memory"
            limit, used, cache = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "
        else:
            continue
        path = PurePosixPath(name.strip())
        for group in (path, *path.parents):
            folder = mount / str(group).lstrip("/")
            most, now = _number(folder / limit), _number(folder / used)
            if most is not None and now is not None and most < _NO_LIMIT:
                stat = (entry for entry in _lines(folder / "memory.stat") if entry.startswith(cache))
                yield most - now + next((int(entry.split()[1]) for entry in stat), 0)


def _of_limits() -> Iterator[int]:
    """Bytes that each resource limit leaves to this process.

    RLIMIT_AS counts the address space, RLIMIT_DATA private writable memory.
    """
    import resource

    for kind, entry in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            yield soft - status_bytes(entry)


def status_bytes(entry: str) -> int:
    """An entry of ``/proc/self/status`` in bytes; 0 if missing."""
    lines = _lines(Path("/proc/self/status"))
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{entry}:")), 0)


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        with open(os.fspath(path)) as file:
            return file.readlines()
    except OSError:
        return []
