"""The host parts of kernels for CUDA under gcc's sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.fusion.backends.c.harness import compiler
from tests.fusion.backends.cuda import test_whole_kernels
from tests.fusion.backends.cuda.runtime.fakes import Fakes, library
from tests.fusion.backends.cuda.runtime.hand_written import HOSTED, SUMS, TWICE, Device

FLAGS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_SCRIPT = (
    "from tests.fusion.backends.cuda.runtime.test_sanitizers import check; check({folder!r}); print('fine')"
)


def check(folder: str) -> None:
    """Create, run and end sessions; each tensor is memory of its own."""
    fakes = Fakes(Path(folder) / "fakes", FLAGS)
    path = library(HOSTED, Path(folder) / "library", fakes.path, FLAGS)
    random = np.random.default_rng(3)
    for capability in (75, 90, 121):
        fakes.reset(gpus=2, capability=capability, current=0)
        fakes.run_by(Device())
        with fakes.opened(path) as opened:
            for device in (0, 1, 0):
                with opened.session(TWICE, device) as twice, opened.session(SUMS, device) as sums:
                    for rows, length in random.integers(0, 30, (40, 2)):
                        x = random.normal(size=(rows, length)).astype(np.float32)
                        np.testing.assert_array_equal(twice.run([x], in_place=bool(rows % 2))[0], 2 * x)
                        np.testing.assert_allclose(sums.run([x])[0], x.sum(1), rtol=1e-4, atol=1e-5)
                    for wrong in (np.zeros(3, np.float32), np.zeros((1, 2, 3), np.float32)):
                        with pytest.raises(RuntimeError, match="has another rank"):
                            twice.run([wrong])
    for driver in ({"version": 12000}, {"gpus": 0}, {"capability": 50}):
        fakes.reset(**driver)
        with fakes.opened(path) as opened:
            assert len(opened.operators) == len(HOSTED)
    test_whole_kernels.check(range(9050, 9060), Path(folder) / "random", fakes, FLAGS)


def _sanitizers() -> str | None:
    """The libraries of the sanitizers, for LD_PRELOAD."""
    if compiler() is None or "gcc" not in str(compiler()):
        return None
    words = [[str(compiler()), f"-print-file-name={name}.so"] for name in ("libasan", "libubsan")]
    found = [
        subprocess.run(each, capture_output=True, text=True, check=True).stdout.strip() for each in words
    ]
    return ":".join(found) if all(Path(path).is_absolute() for path in found) else None


def test_host_part_accesses_only_its_memory(tmp_path: Path) -> None:
    libraries = _sanitizers()
    if libraries is None:
        pytest.skip("gcc has no sanitizers")
    root = Path(__file__).parents[5]
    environ = {"LD_PRELOAD": libraries, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": str(root)}
    script = _SCRIPT.format(folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environ},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.endswith("fine\n"), done.stderr[-3000:]
