"""The benchmarks as commands, on one small sample each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_nodes_judges_graphopt_and_fills_the_page(tmp_path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text("<!-- begin nodes -->\n<!-- end nodes -->\n")
    done = run(
        *("-m", "benchmarks.nodes", "--only", "functions|quantized", "--no-peers"),
        *("--docs", str(page), "--json", str(results)),
    )
    assert done.returncode == 0, done.stderr
    models = json.loads(results.read_text())["models"]
    assert [model["model"] for model in models] == ["quantized", "functions"]
    for model in models:
        assert model["tools"]["graphopt"]["verdict"] == "ok"
        assert f"| {model['model']} | {model['nodes']} |" in page.read_text()


def test_transcript_equals_the_output_of_the_command(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- begin transcript -->\n<!-- end transcript -->\n")
    done = run("-m", "benchmarks.transcript", "--docs", str(page))
    assert done.returncode == 0, done.stderr
    lines = page.read_text().splitlines()
    command = "$ graphopt optimize build/demo/transformer.onnx -o build/demo/transformer.opt.onnx"
    assert lines[1:3] == ["```", command]
    assert lines[3].split() == ["original", "optimized"] and any(
        "verified  bit-identical" in line for line in lines
    )
    readme = (ROOT / "README.md").read_text()
    assert command in readme and "<!-- begin transcript -->" in readme


def test_process_time_measures_graphopt_against_itself(tmp_path) -> None:
    results = tmp_path / "results.json"
    done = run(
        *("-m", "benchmarks.process_time", "--only", "functions", "--rounds", "2", "--json", str(results))
    )
    assert done.returncode == 0, done.stderr
    (model,) = json.loads(results.read_text())["models"]
    assert len(model["seconds"]["graphopt"]) == len(model["seconds"]["graphopt again"]) == 2
    assert "(band of the measurement)" in done.stdout


def test_an_unknown_model_is_refused() -> None:
    done = run("-m", "benchmarks.nodes", "--only", "no-such-model")
    assert done.returncode == 1
    assert "matches 'no-such-model'" in done.stderr


def test_scaling_builds_models_of_the_requested_sizes(tmp_path) -> None:
    results = tmp_path / "results.json"
    done = run(
        *("-m", "benchmarks.scaling", "--nodes", "280", "--chain", "50", "--rounds", "1"),
        *("--peer-limit", "0", "--json", str(results)),
    )
    assert done.returncode == 0, done.stderr
    models = {model["model"]: model for model in json.loads(results.read_text())["models"]}
    assert abs(models["transformer"]["nodes"] - 280) <= 45  # whole layers only
    assert models["transformer"]["left"] < 0.7 * models["transformer"]["nodes"]
    assert (models["chain"]["left"], models["folding_chain"]["left"]) == (50, 1)
    assert models["folding_chain"]["nodes"] == 50
    for model in models.values():
        (run_,) = model["runs"]["graphopt"]
        assert run_["cpu_seconds"] > 0 and run_["peak_bytes"] > 20e6


def test_memory_reports_the_peak_of_each_model(tmp_path) -> None:
    results = tmp_path / "results.json"
    done = run("-m", "benchmarks.memory", "--only", "functions", "--json", str(results))
    assert done.returncode == 0, done.stderr
    (model,) = json.loads(results.read_text())["models"]
    assert model["peaks"]["graphopt"] > 20e6
    assert "| functions |" in done.stdout


@pytest.mark.skipif(
    sys.platform != "linux", reason="anonymous memory is read from /proc, which only Linux has"
)
def test_weights_in_external_data_are_mapped(tmp_path) -> None:
    """300 MB of weights, while the process needs little but its libraries, some 70 MB."""
    results = tmp_path / "results.json"
    done = run("-m", "benchmarks.memory", "--large", "0.3", "--json", str(results))
    assert done.returncode == 0, done.stderr
    usage = json.loads(results.read_text())["large"]
    assert 10e6 < usage["anonymous_bytes"] < 250e6


def test_recognition_lists_fused_models_and_reasons_for_the_rest(tmp_path) -> None:
    folder = tmp_path / "transform" / "fusion"
    folder.mkdir(parents=True)
    for name, root in (("gelu_format2_1", 1.4142135), ("gelu_format2_2", 2.0)):
        text = f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[N, 4] x) => (float[N, 4] y) <float root = {{{root}}}, float one = {{1}}, float half = {{0.5}}> {{
            a = Div(x, root) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)
        }}"""
        onnx.save(onnx.parser.parse_model(text), folder / f"{name}.onnx")
    page, results = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text("<!-- begin recognition -->\n<!-- end recognition -->\n")
    done = run("-m", "benchmarks.recognition", str(tmp_path), "--docs", str(page), "--json", str(results))
    assert done.returncode == 0, done.stderr
    outcomes = {model["name"]: model["outcome"] for model in json.loads(results.read_text())["models"]}
    assert outcomes == {"gelu_format2_1": "fused", "gelu_format2_2": "left"}
    assert "| gelu | 2 | 1 | 0 | 1 | Gelu × 1 |" in page.read_text()
    assert "| gelu: the argument of Erf is 0.5 x, in a GELU it is 0.707107 x | 1 |" in page.read_text()


def test_sums_at_indices_are_right_in_all_runs() -> None:
    done = run("-m", "benchmarks.scatter_gradients", "--runs", "3", "--no-times")
    assert done.returncode == 0 and "| GatherND | 3 |" in done.stdout, done.stdout + done.stderr


def test_decoders_counts_verified_models(tmp_path) -> None:
    head = '<ir_version: 8, opset_import: ["" : 17]> '
    for name, shape in (("fits", "{-1, 5}"), ("never", "{7, 11}")):
        graph = f"g (float[N, 2] x) => (float[A, B] y) <int64[2] s = {shape}> {{ y = Reshape(x, s) }}"
        onnx.save(onnx.parser.parse_model(head + graph), tmp_path / f"{name}.onnx")
    done = run("-m", "benchmarks.decoders", "verify", str(tmp_path), "-O", "1")
    assert done.returncode == 0, done.stderr
    fits, never, count = done.stdout.splitlines()
    assert fits.startswith("fits ") and "verified  " in fits
    assert "no inputs that the original accepts were found" in never and count == "1 of 2 verified"
