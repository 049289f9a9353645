"""The same input gives the same bytes for every seed of Python's string hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_results_do_not_depend_on_hash_order(tmp_path: Path) -> None:
    def run(*arguments: object, seed: str = "0") -> None:
        command = [sys.executable, *map(str, arguments)]
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed})

    samples = tmp_path / "samples"
    samples.mkdir()
    run("samples/models.py", "--out", samples)
    models = sorted(samples.glob("*.onnx"))
    for seed in "12":
        run("-m", "graphopt", "optimize", *models, "-o", tmp_path / seed, "--no-verify", "-q", seed=seed)
    for model in models:
        first, second = ((tmp_path / seed / model.name).read_bytes() for seed in "12")
        assert first == second, model.name
