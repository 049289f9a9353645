"""Available memory, and limits on it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest

from graphopt.cli.output.error_messages import report_error
from graphopt.errors import ExitStatus, exhausted
from graphopt.process import memory

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
        "import resource; from graphopt.process import memory\n"
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
        (MemoryError(), "memory"),
        (RuntimeError("can't start new thread"), "memory"),
        (RuntimeError("std::bad_alloc"), "memory"),
        (RuntimeError("Failed to allocate memory for requested buffer of size 7"), "memory"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "memory"),
        (ImportError("x.so: failed to map segment from shared object"), "memory"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "x.py"), "open files"),
        (OSError(errno.ENOENT, os.strerror(errno.ENOENT), "x.py"), None),
        (ValueError("no such thing"), None),
    ],
)
def test_errors_of_exhausted_resources(error: Exception, expected: str | None) -> None:
    limit = exhausted(error)
    assert expected in limit if limit is not None and expected is not None else limit is expected
    status = report_error(error, debug=False).status
    assert (status == ExitStatus.RESOURCE_LIMIT) == (expected is not None)


def test_a_process_that_ignores_its_children_ends_quietly(tmp_path: Path) -> None:
    graph = "g (float[2] x) => (float[2] y) { y = Neg(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {graph}')
    onnx.save(model, tmp_path / "m.onnx")
    code = (
        "import signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "from graphopt.cli.main import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "optimize", "m.onnx", "-o", "o.onnx"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "") and "verified  bit-identical" in done.stdout


def test_a_limit_on_address_space_counts_the_address_space() -> None:
    code = (
        "import resource; from graphopt.process import memory\n"
        f"space = memory.status_bytes('VmSize') + {GIB}\n"
        "resource.setrlimit(resource.RLIMIT_AS, (space, space))\n"
        "print(memory.counted_mappings())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 0 < int(done.stdout) <= GIB
