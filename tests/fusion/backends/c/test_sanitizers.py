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
from importlib import import_module
from pathlib import Path
module, first, last, level, folder = sys.argv[1:]
flags = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DSTUB_EXACT", "-Wno-error")
import_module(module).check(range(int(first), int(last)), int(level), Path(folder), flags)
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


def _check(module: str, seeds: range, level: int, folder: Path) -> None:
    """Run ``check`` of a module in a process with the sanitizers."""
    libraries = _libraries()
    if libraries is None:
        pytest.skip("gcc has no sanitizers")
    root = str(Path(__file__).parents[4])
    arguments = [module, str(seeds.start), str(seeds.stop), str(level), str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env={**os.environ, "LD_PRELOAD": libraries, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": root},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.endswith("fine\n"), done.stderr[-3000:]


@pytest.mark.parametrize("level", levels())
def test_kernels_access_only_their_tensors(level: int, tmp_path: Path) -> None:
    _check("tests.fusion.backends.c.test_random", range(300 + 30 * level, 330 + 30 * level), level, tmp_path)


@pytest.mark.parametrize("batch", range(4))
@pytest.mark.parametrize("level", levels())
def test_templates_access_only_their_tensors(level: int, batch: int, tmp_path: Path) -> None:
    first = 5000 + 24 * (4 * level + batch)
    _check("tests.fuzz.products.isolated_kernels", range(first, first + 24), level, tmp_path)
