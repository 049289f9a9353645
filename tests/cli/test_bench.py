"""graphopt bench, with minimal measurements."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import onnx
import onnx.parser
import pytest

from graphopt.cli.views.bench_results import contradictions, next_steps, remarks
from graphopt.cli.views.latency_drawing import Bar, bars
from graphopt.errors import UsageError
from graphopt.ort.devices import CPU, Device
from graphopt.timing import bench_rooflines, other_optimizers
from graphopt.timing.alternating_runs import RaceLimits
from graphopt.timing.bench import Result, Row, graph_options
from graphopt.timing.compare_speed import Speed, Timing
from graphopt.timing.footprint import Footprint, Placement
from graphopt.timing.machine_peaks import Peak, Peaks
from graphopt.timing.ratios import Band, Comparison, Conclusion
from graphopt.verification.output_comparison import Outcome

from ..page.page_parser import parsed
from .conftest import Invoke

BRIEFLY = ("--device", "cpu", "--threads", 1, "--processes", 1, "--rounds", 3, "--warmup", 1)


def test_one_model_is_optimized_and_compared_in_each_shape(
    invoke: Invoke, small: Path, tmp_path: Path
) -> None:
    plot = tmp_path / "speed.svg"
    done = invoke("bench", small, *BRIEFLY, "--input-shape", "x:2x4,3x4", "--hot", "--plot", plot)
    assert done.status == 0, done.err
    for text in ("CPU (1 thread)", "inputs x [2, 4]", "inputs x [3, 4]", "outputs are equal", "Relu"):
        assert text in done.out
    rows = [
        line.split()
        for line in done.out.splitlines()
        if line.startswith(("  original  ", "  graphopt -O2  "))
    ]
    assert [row[0] for row in rows] == ["original", "graphopt"] * 2
    assert "original against itself" in done.out
    assert "x [3, 4]" in plot.read_text() and str(plot) in done.err


def test_a_page_with_the_runs(
    invoke: Invoke, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks = Peaks({"float": Peak.of([1e9])}, Peak.of([1e9]))
    monkeypatch.setattr(bench_rooflines, "peaks_of", lambda *arguments, **options: peaks)
    path = tmp_path / "runs.html"
    done = invoke("bench", small, *BRIEFLY, "--input-shape", "x:2x4", "--html", path)
    assert done.status == 0, done.err
    assert f"wrote     {path}" in done.err
    page = parsed(path.read_bytes())
    assert page.data["title"] == str(small)
    command = page.data["command"]
    assert command.startswith(f"graphopt bench {small} ") and command.endswith(f" --html {path}")
    assert [one.text for one in page.all("p")].count(command) == 1
    data = page.data["sections"]["run-time"]
    assert [one["name"] for one in data["models"]] == ["original", "graphopt -O2"]
    assert all(one["kernels"]["name"] and one["memory"]["bytes"] for one in data["models"])


def test_several_models_are_compared_unchanged(invoke: Invoke, small: Path, weights: Path) -> None:
    text = small.with_suffix(".onnxtxt")
    assert invoke("optimize", small, "-o", text, "--no-verify").status == 0
    copy = small.parent / "copy" / "small.onnx"
    copy.parent.mkdir()
    copy.write_bytes(small.read_bytes())
    done = invoke("bench", small, copy, text, weights, *BRIEFLY, "--json")
    assert done.status == 6 and "hint: --input-shape or --input chooses" in done.err
    told = json.loads(done.out)
    assert told["device"] == "CPU" and told["threads"] == 1
    (table,) = told["tables"]
    assert table["processes"] == 1 and table["rounds"] == 3 and len(table["twin"]) == 1
    first, same, optimized, other = table["models"]
    assert (first["name"], same["name"]) == (str(small), str(copy))
    assert first["nodes"] == same["nodes"] > optimized["nodes"] == 1
    assert first["placement"]["nodes"] == {"CPU": first["placement"]["kernels"]["CPU"]}
    assert "ratio" not in first and same["conclusion"] in ("no difference", "too few processes")
    assert optimized["difference"] == {"max": 0.0, "reason": None}
    assert "invalid dimensions for input: x" in other["error"]  # it requires 8 columns


def test_dims_that_one_model_fixes(invoke: Invoke, small: Path) -> None:
    fixed = small.with_name("fixed.onnx")
    assert invoke("optimize", small, "-o", fixed, "--dim", "N=3", "--no-verify").status == 0
    done = invoke("bench", small, fixed, *BRIEFLY)
    assert done.status == 6 and "hint: --dim N=3 or --input-shape" in done.err
    done = invoke("bench", small, fixed, *BRIEFLY, "--dim", "N=3")
    assert done.status == 0 and "inputs x [3, 4]" in done.out and "outputs are equal" in done.out


def test_options_that_change_the_measured_model(invoke: Invoke, small: Path) -> None:
    done = invoke("bench", small, *BRIEFLY, "--dim", "N=3", "--target-opset", 18, "--strip-docs")
    assert done.status == 0 and "inputs x [3, 4]" in done.out and "outputs are equal" in done.out
    done = invoke("bench", small, *BRIEFLY, "--dim-range", "N=5:5")
    assert done.status == 0 and "inputs x [5, 4]" in done.out


def test_failing_tool_has_a_row_with_the_failure(
    invoke: Invoke, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = {
        "onnxslim": "import shutil, sys; shutil.copy(*sys.argv[-2:])",
        "onnxsim": "raise SystemExit('no such op')",
    }
    monkeypatch.setattr(other_optimizers, "versions", lambda python: dict.fromkeys(scripts, "1"))
    monkeypatch.setattr(
        other_optimizers, "command", lambda python, name: (sys.executable, "-c", scripts[name])
    )
    done = invoke("bench", small, *BRIEFLY, "--against", "original,onnxslim,onnxsim")
    assert done.status == 0, done.err
    assert [line.split()[0] for line in done.out.splitlines()[2:6]] == [
        "original", "onnxslim", "onnxsim", "graphopt",
    ]  # fmt: skip
    assert "onnxsim: onnxsim failed: no such op" in done.out


def test_contents_of_an_interpreter_are_queried_in_a_child() -> None:
    assert other_optimizers.versions(sys.executable) == other_optimizers.installed()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against", "onnxslimm"], "no tool is called 'onnxslimm'; nearest: onnxslim"),
        (
            ["--against", "onnxslim", "--peer-python", "/nowhere/python"],
            "does not run as a Python interpreter",
        ),
        (["--device", "cpu", "--cuda-graph"], "--cuda-graph is for CUDA"),
        (["--device", "cpu", "--no-tf32"], "--no-tf32 is for CUDA"),
        (["--input-shape", "z:1x4"], "no input is called 'z'"),
        (["--plot", "nowhere/speed.svg"], "there is no folder nowhere"),
        (["--processes", 0], "--processes"),
        (["--html", "page.svg"], ".html"),
        (["--html", "page.html", "--input-shape", "x:2x4,3x4"], "one set of shapes"),
    ],
)
def test_wrong_requests(invoke: Invoke, small: Path, arguments: list[str], message: str) -> None:
    done = invoke("bench", small, *arguments)
    assert done.status == 2 and done.out == ""
    assert message in done.err


def test_a_tool_that_is_not_installed_is_named(
    invoke: Invoke, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_optimizers, "versions", lambda python: {})
    done = invoke("bench", small, "--device", "cpu", "--against", "onnxsim")
    assert done.status == 2
    assert "onnxsim is not installed for" in done.err and "pip install onnxsim" in done.err


def test_tools_go_with_one_model(invoke: Invoke, small: Path) -> None:
    done = invoke("bench", small, small, "--against", "onnxslim")
    assert done.status == 2 and "--against needs one model" in done.err


@pytest.mark.parametrize(
    ("option", "values"),
    [("--passes", ["nosuch"]), ("--exact", []), ("-O", ["3"]), ("--target-opset", ["18"])],
)
def test_passes_go_with_one_model(invoke: Invoke, small: Path, option: str, values: list[str]) -> None:
    done = invoke("bench", small, small, option, *values)
    assert done.status == 2 and f"{option} needs one model" in done.err


def test_cuda_graphs_are_an_option_of_the_cuda_provider() -> None:
    cuda = Device("cuda")
    assert graph_options(cuda, False) == graph_options(CPU, False) == {}
    assert cuda.providers(graph_options(cuda, True))[0][1]["enable_cuda_graph"] == "1"
    with pytest.raises(UsageError, match="--cuda-graph is for CUDA"):
        graph_options(CPU, True)


def test_remarks_report_failures_differences_and_placement() -> None:
    on_cuda = Placement({"CUDA": 7, "CPU": 2}, {"CUDA": 5, "CPU": 2}, copies=3)
    cost = Footprint(0.1, 1_000_000, on_cuda, [])
    speed = Speed(1.0, 2.0, 3.0, 100, (0.5,), Comparison(0.5, Band(0.4, 0.6), "faster"))
    rows = [
        Row("original", 9, replace(speed, comparison=None), cost),
        Row("close", 9, speed, cost, Outcome(1e-6)),
        Row("off", 9, speed, cost, Outcome(2.0, "1 of 4 elements differ")),
        Row("broken", failure="no such op"),
    ]
    timing = Timing({}, (1.0,), Band(0.9, 1.1), 40, 1.0)
    placement = "nodes 2 on CPU, 7 on CUDA; 3 Memcpy in each run"
    assert remarks(Result("x [1]", rows, timing, True)) == [
        "broken: no such op",
        "off: outputs differ: 1 of 4 elements differ (TF32 off)",
        *(f"{name}: {placement}" for name in ("original", "close", "off")),
    ]
    assert remarks(Result("x [1]", rows[:2], timing, False))[0] == "outputs agree: max |Δ| 1.0e-06"
    told = Result("x [1]", rows, timing, True).to_dict()
    assert [row.get("ratio") for row in told["models"]] == [None, 0.5, 0.5, None]
    assert told["models"][2]["difference"] == {"max": 2.0, "reason": "1 of 4 elements differ"}
    assert told["models"][1]["placement"]["copies"] == 3


@pytest.mark.parametrize(
    ("p50", "ratio", "contradicts"),
    [(0.5, 0.6, False), (1.5, 0.6, True), (0.5, 1.2, True), (1.05, 0.6, False), (1.5, 1.0, True)],
)
def test_latencies_that_contradict_the_ratio_are_reported(
    p50: float, ratio: float, contradicts: bool
) -> None:
    """The ratio is of the fastest runs of the same round, and the latencies are of all runs."""
    cost = Footprint(0.1, 1_000_000, Placement({"CPU": 2}, {"CPU": 2}, copies=0), [])
    speed = Speed(1.0, 2.0, 3.0, 9, (), None)
    comparison = Comparison(ratio, Band(ratio, ratio), "no difference")
    rows = [Row("a", 9, speed, cost), Row("b", 9, replace(speed, p50=p50, comparison=comparison), cost)]
    found = list(contradictions(Result("x [1]", rows, Timing({}, (1.0,), Band(0.9, 1.1), 40, 1.0), False)))
    assert [line[: len(f"b: p50 is {p50:.2f} times that of a")] for line in found] == [
        f"b: p50 is {p50:.2f} times that of a"
    ] * contradicts


@pytest.mark.parametrize(
    ("conclusion", "band", "timing", "limits", "steps"),
    [
        ("too few processes", 1.02, (2, 80, 9.5), RaceLimits(processes=2), ["--processes 5"]),
        ("too few processes", 1.02, (2, 80, 12.1), RaceLimits(seconds=12), ["--seconds 31"]),
        ("too few processes", 1.02, (1, 3, 12.0), RaceLimits(processes=1, seconds=10), ["--processes 5 --seconds 60"]),
        ("no difference", 1.25, (7, 280, 20.0), RaceLimits(), ["--rounds 80, or an idle machine"]),
        ("no difference", 1.25, (5, 100, 10.2), RaceLimits(seconds=10), ["--seconds 20, or an idle machine"]),
        ("no difference", 1.25, (7, 100, 20.0), RaceLimits(), ["use an idle machine"]),
        ("no difference", 1.05, (7, 280, 20.0), RaceLimits(), []),
        ("faster", 1.25, (7, 280, 20.0), RaceLimits(), []),
    ],
)  # fmt: skip
def test_measurements_without_a_claim_have_a_next_step(
    conclusion: Conclusion,
    band: float,
    timing: tuple[int, int, float],
    limits: RaceLimits,
    steps: list[str],
) -> None:
    processes, rounds, seconds = timing
    speed = Speed(1.0, 2.0, 3.0, 9, (), Comparison(0.9, Band(0.9, 0.9), conclusion))
    measured = Timing({}, (1.0,) * processes, Band(1 / band, band), rounds, seconds)
    rows = [Row("a", 9, replace(speed, comparison=None)), Row("b", 9, speed)]
    found = list(next_steps(Result("x [1]", rows, measured, False), limits))
    assert [line.endswith(step) for line, step in zip(found, steps, strict=True)] == [True] * len(steps)


def test_a_claim_of_one_process_requires_more(invoke: Invoke, tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast.onnx", tmp_path / "slow.onnx"
    for path, steps in ((fast, 1), (slow, 300)):
        body = " ".join(f"v{n + 1} = Sin (v{n})" for n in range(steps))
        text = f"g (float[20000] v0) => (float[20000] v{steps}) {{ {body} }}"
        onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'), path)
    outcome = invoke("bench", fast, slow, *BRIEFLY)
    assert "too few processes" in outcome.out
    assert "hint: a claim requires at least 5 processes: use --processes 5\n" in outcome.err


def test_a_drawing_is_svg_with_a_bar_for_each_model() -> None:
    group = [Bar("a<b", 1.0, 2.0, "", None), Bar("c", 0.5, 0.6, "× 0.50, faster", "faster")]
    root = ElementTree.fromstring(bars([("x [1, 4]", group), ("x [8, 4]", group)]))
    shapes = [node for node in root.iter() if node.tag.endswith("rect")]
    widths = [float(node.attrib["width"]) for node in shapes[1:]]  # the first is the ground
    assert len(widths) == 4 and widths[0] == pytest.approx(2 * widths[1])
    texts = [node.text for node in root.iter() if node.tag.endswith("text")]
    assert "a<b" in texts and "0.5 ms × 0.50, faster" in texts


def test_bench_prints_the_roofline_of_each_model(invoke: Invoke, small: Path) -> None:
    arguments = ("bench", small, "--device", "cpu", "--threads", 1, "--processes", 1, "--rounds", 2)
    done = invoke(*arguments, "--roofline")
    assert done.status == 0, done.err
    assert "below 50 % of both peaks" in done.out
    assert "repetitions: slowest, median, fastest" in done.out and "GB/s" in done.out
    done = invoke(*arguments, "--roofline", "--json")
    (models,) = json.loads(done.out)["rooflines"]
    assert [one["model"] for one in models] == ["original", "graphopt -O2"]
    assert all(one["kernels"] and one["kernels"][0]["originals"] for one in models)


def test_rooflines_have_whole_names(invoke: Invoke, tmp_path: Path) -> None:
    name = "/encoder/layers.0/attention/self/query/activation/Sin"
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[4096] x) => (float[4096] y) { y = Sin(x) }'
    )
    proto.graph.node[0].name = name
    onnx.save(proto, tmp_path / "m.onnx")
    done = invoke("bench", tmp_path / "m.onnx", *BRIEFLY, "--roofline")
    rows = [line.split()[:2] for line in done.out.splitlines() if name in line]
    assert rows.count([name, "Sin"]) == 2
