"""Available memory, and limits on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from graphopt.runtime import memory

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells it")
GIB = 1 << 30


def write(root: Path, files: dict[str, object]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    return root


def test_the_least_of_system_and_cgroups_counts(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {8 << 20} kB\n",
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": "max",
            "sys/fs/cgroup/a/b/memory.current": GIB,
            "sys/fs/cgroup/a/memory.max": 4 * GIB,
            "sys/fs/cgroup/a/memory.current": 3 * GIB,
            "sys/fs/cgroup/a/memory.stat": f"anon 7\ninactive_file {GIB}\n",
        },
    )
    assert memory.available(root) == 2 * GIB
    write(tmp_path, {"sys/fs/cgroup/a/memory.max": 64 * GIB})
    assert memory.available(root) == 8 * GIB


def test_cgroups_of_version_1(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "12:cpu,cpuacct:/x\n5:memory:/docker/1\n",
            # the path is the host's: in a container, the mount's root is the group
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 3 * GIB,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": GIB,
        },
    )
    assert memory.available(root) == 2 * GIB
    write(tmp_path, {"sys/fs/cgroup/memory/memory.limit_in_bytes": 0x7FFFFFFFFFFFF000})
    assert memory.available(root) is None


def test_a_limit_in_force_is_kept() -> None:
    code = (
        "import resource; from graphopt.runtime import memory\n"
        f"resource.setrlimit(resource.RLIMIT_DATA, ({GIB}, {GIB}))\n"
        f"assert memory.available() < {GIB}\n"
        f"memory.limit_data({4 * GIB}); memory.limit_data({64 << 20})\n"
        "print(*resource.getrlimit(resource.RLIMIT_DATA))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    soft, hard = map(int, done.stdout.split())
    assert soft == hard < GIB


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("can't start new thread"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("Failed to allocate memory for requested buffer of size 7"), True),
        (ValueError("no such thing"), False),
    ],
)
def test_errors_that_mean_no_more_memory(error: Exception, expected: bool) -> None:
    assert memory.is_exhausted(error) is expected
