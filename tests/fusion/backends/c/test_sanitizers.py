"""Random kernels under gcc's sanitizers: no access outside of tensors, no undefined behaviour."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fusion.backends.c.harness import compiler, levels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(compiler() is None or "gcc" not in str(compiler()), reason="no gcc"),
]

SCRIPT = """
import sys
from pathlib import Path
from tests.fusion.backends.c.test_random import check
flags = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DSTUB_EXACT", "-Wno-error")
check(range(int(sys.argv[1]), int(sys.argv[2])), int(sys.argv[3]), Path(sys.argv[4]), flags)
print("fine")
"""


def _libraries() -> str | None:
    names = [
        subprocess.run(
            [str(compiler()), f"-print-file-name={name}"], capture_output=True, text=True, check=True
        )
        for name in ("libasan.so", "libubsan.so")
    ]
    paths = [name.stdout.strip() for name in names]
    return ":".join(paths) if all(Path(path).is_absolute() for path in paths) else None


@pytest.mark.parametrize("level", levels())
def test_kernels_access_only_their_tensors(level: int, tmp_path: Path) -> None:
    libraries = _libraries()
    if libraries is None:
        pytest.skip("gcc has no sanitizers")
    root = str(Path(__file__).parents[4])
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            SCRIPT,
            str(300 + 30 * level),
            str(330 + 30 * level),
            str(level),
            str(tmp_path),
        ],
        env={**os.environ, "LD_PRELOAD": libraries, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": root},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.endswith("fine\n"), done.stderr[-3000:]
