"""The generated decoders of ``benchmarks.large_decoders``."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks.generated_decoder import weight_files, write
from benchmarks.large_decoders import SHAPES, generate

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["tiny", "tiny-int4", "tiny-files"])
def test_logits_and_caches_depend_on_all_layers(name: str, tmp_path: Path) -> None:
    session = onnxruntime.InferenceSession(generate(name, tmp_path))
    past, seq = 3, 2
    feeds = {
        "input_ids": np.array([[5, 7]], np.int64),
        "attention_mask": np.ones((1, past + seq), np.int64),
        "position_ids": np.array([[3, 4]], np.int64),
    }
    for layer in range(SHAPES[name].layers):
        for part in ("key", "value"):
            feeds[f"past_key_values.{layer}.{part}"] = np.ones((1, 2, past, 16), np.float16)
    logits, *caches = session.run(None, feeds)
    assert logits.shape == (1, seq, SHAPES[name].words) and np.isfinite(logits).all() and logits.std() > 0
    assert all(cache.shape == (1, 2, past + seq, 16) and cache.std() > 0 for cache in caches)


def test_weights_are_sparse_and_all_different(tmp_path: Path) -> None:
    path = write(
        replace(SHAPES["tiny"], hidden=1024, inner=8192, words=512, is_split=True), tmp_path / "m.onnx"
    )
    files = list(weight_files(path))
    assert len(files) == len(onnx.load(path, load_external_data=False).graph.initializer)
    digests = {hashlib.sha256(file.read_bytes()).digest() for file in files}
    assert len(digests) == len(files)
    largest = max(files, key=lambda file: file.stat().st_size)
    assert largest.stat().st_size == 2 * 1024 * 8192
    assert largest.stat().st_blocks * 512 < largest.stat().st_size / 8


@pytest.mark.skipif(sys.platform != "linux", reason="limits on private memory need Linux")
def test_run_reports_memory_and_a_verdict(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks.large_decoders", "run", str(tmp_path / "models")]
    done = subprocess.run(
        [*command, "--names", "tiny", "--json", str(results)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "| tiny | 0.0 | 0 |" in done.stdout and "comparisons" in done.stdout
