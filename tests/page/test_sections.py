"""The sections on run time, tensors, profiles and training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.compiler.page_source import page_source
from graphopt.compiler.run_time import measure_runs
from graphopt.inputs.feeds import InputOptions
from graphopt.ort.devices import parse_device
from graphopt.page import run_time as module
from graphopt.page.block_html import html_of_blocks
from graphopt.page.page_data import GraphData, NodeColumns, Scope, ValueColumns
from graphopt.page.render import page_of
from graphopt.page.run_time_data import NodeIndex, curve, distribution, flame, share_of_nodes, time_of_nodes
from graphopt.page.section import PageSource, sections_of
from graphopt.profile import Guard
from graphopt.specialization.variant_records import VariantRecord, record_variants
from graphopt.timing.alternating_runs import RaceLimits
from graphopt.timing.kernel_profile import KernelProfile
from graphopt.timing.machine_peaks import Peak, Peaks
from graphopt.timing.memory_over_time import MemoryStep
from graphopt.timing.roofline import KernelTime
from graphopt.training.loss_log import LossRecord
from graphopt.util.disk_store import Store
from graphopt.util.text_tables import Table
from tests.model_testing import parse
from tests.page.page_parser import parsed
from tests.page.run_times import kernel_time, run_time
from zoo import SAMPLES

PEAKS = Peaks({"float": Peak.of([100e9])}, Peak.of([10e9]))
HOSTILE = "</script><script>alert(1)</script>"
WEIGHTS = ", ".join(["0.01"] * 256)
MODEL = f"""
g (float[N, 16] x) => (float[N, 16] y) <float[16, 16] w = {{{WEIGHTS}}}> {{
  [enc_a] a = MatMul(x, w)
  [enc_b] b = Relu(a)
  [dec] y = Exp(b)
}}
"""


def kernel(name: str, milliseconds: float, *originals: str, share: float | None = None) -> KernelTime:
    """A kernel whose share of the bandwidth is ``share``."""
    memory = None if share is None else share * milliseconds
    compute = None if share is None else 0.0
    return KernelTime(name, "Op", originals, milliseconds, milliseconds, 1, "float", 8, 8, compute, memory)


def graph_of(id: Any, names: list[str], related: list[list[int]]) -> GraphData:
    """A graph whose nodes with names of the form ``enc_…`` are in the scope ``enc``."""
    scopes = [Scope("", -1, "graph"), Scope("model", 0, "module"), Scope("enc", 1, "module")]
    scope = [2 if name.startswith("enc") else 1 for name in names]
    return GraphData(
        id, id, NodeColumns(name=names, scope=scope, related=related), ValueColumns(), scopes=scopes
    )


ORIGINAL = NodeIndex.of(graph_of("original", ["enc_a", "enc_b", "dec"], [[0], [0], [1]]))
RESULT = NodeIndex.of(graph_of("optimized", ["fused", "dec"], [[0, 1], [2]]))


def test_the_time_of_a_kernel_is_divided_between_its_nodes() -> None:
    kernels = [kernel("k", 3.0, "enc_a", "enc_b"), kernel("l", 1.0, "enc_a"), kernel("m", 9.0, "elsewhere")]
    assert time_of_nodes(kernels, ORIGINAL) == [(0, 2.5), (1, 1.5)]


def test_the_share_of_a_node_is_that_of_its_slowest_kernel() -> None:
    kernels = [
        kernel("k", 3.0, "dec", share=0.5),
        kernel("l", 1.0, "dec", share=0.9),
        kernel("m", 9.0, "dec"),
    ]
    assert share_of_nodes(kernels, ORIGINAL) == [(2, 0.5)]


def test_flames_of_a_result_have_the_scopes_of_the_original() -> None:
    tree = flame([kernel("k", 3.0, "fused"), kernel("m", 1.0)], RESULT, ORIGINAL)
    assert tree["value"] == pytest.approx(0.004)
    model, inserted = tree["children"]
    assert (model["name"], inserted["name"]) == ("model", "inserted by onnxruntime")
    (enc,) = model["children"]
    assert (enc["name"], enc["value"]) == ("enc", pytest.approx(0.003))
    assert enc["children"][0]["children"][0]["name"] == "k"


def test_kernels_of_inlined_functions_belong_to_the_call() -> None:
    kernels = [kernel("k", 2.0, "enc_a/outer/inner"), kernel("l", 1.0, "enc_a/outer/other")]
    assert time_of_nodes(kernels, ORIGINAL) == [(0, 3.0)]
    entry = flame(kernels, ORIGINAL, ORIGINAL)
    for name in ("model", "enc", "enc_a", "outer"):
        (entry,) = entry["children"]
        assert (entry["name"], entry["value"]) == (name, pytest.approx(0.003))


def test_flames_without_graphs_have_the_scopes_of_names() -> None:
    (model,) = flame([kernel("k", 2.0, "/model/enc/a", "/model/b")], None, None)["children"]
    assert (model["name"], model["value"]) == ("model", pytest.approx(0.002))
    assert [(one["name"], one["value"]) for one in model["children"]] == [
        ("enc", pytest.approx(0.001)),
        ("Op", pytest.approx(0.001)),
    ]


def test_small_entries_of_a_flame_are_joined() -> None:
    tree = flame([kernel("k", 1000.0, "a"), *(kernel(f"s{n}", 0.1, "b") for n in range(5))], None, None)
    (op,) = tree["children"]
    assert [child["name"] for child in op["children"]] == ["k", "5 others"]
    assert sum(child["value"] for child in op["children"]) == pytest.approx(tree["value"])


def test_curves_keep_their_maximum() -> None:
    steps = [MemoryStep(f"k{n}", float(n), 7 if n == 5001 else 1) for n in range(10_000)]
    columns = curve(steps)
    assert len(columns["bytes"]) <= 4_000
    assert columns["kernel"][columns["bytes"].index(7)] == "k5001"


def test_distributions_count_each_run_once() -> None:
    series = [[1.0, 2.0, 3.0], [*np.linspace(1, 2, 200), 500.0]]
    found = distribution(series)
    for times, counts, beyond in zip(series, found["counts"], found["beyond"], strict=True):
        assert sum(counts) + beyond == len(times)
    assert found["edges"][0] == 1.0 and found["edges"][-1] < 500
    assert distribution([])["edges"] == []


def test_run_time_is_measured_and_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_known_peaks(profiles: list[KernelProfile], store: Store, threads: int | None) -> Any:
        return [one.roofline(PEAKS) for one in profiles]

    monkeypatch.setattr(module, "rooflines_of", with_known_peaks)
    original = parse(MODEL)
    models = {"original": original, "optimized": graphopt.optimize(original, verify=False).model}
    found = measure_runs(
        Environment(device="cpu"),
        models,
        InputOptions.parse(("x:3x16",), (), 0),
        threads=1,
        limits=RaceLimits(2, 1, 1, 1.0),
    )
    graphs = [
        graph_of(name, [ir.label(node) for node in model.graph], [[0], [1], [2]])
        for name, model in models.items()
    ]
    page = parsed(page_of(PageSource("model", graphs=graphs, run_time=found)))
    data = page.data["sections"]["run-time"]
    for one in data["models"]:
        assert sorted({node for nodes in one["kernels"]["nodes"] for node in nodes}) == [0, 1, 2]
        assert one["flame"]["children"][0]["name"] == "model"
        # a, b and y, of three rows of 16 floats
        assert max(one["memory"]["bytes"]) in (192, 384)
        assert {node for node, _ in one["time"]} == {0, 1, 2}
    assert data["models"][1]["ratios"] and len(data["band"]) == 2
    assert any("MatMul" in cell.text for cell in page.all("td"))


def test_copies_and_kernels_outside_of_the_device_have_a_line() -> None:
    kernels = [
        kernel_time("product", "MatMul", 6.0),
        kernel_time("copy", "MemcpyToHost", 3.0),
        kernel_time("size", "Shape", 1.0),
    ]
    providers = ["CUDAExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    page = parsed(page_of(PageSource("m", run_time=run_time(kernels, providers, parse_device("cuda")))))
    texts = [one.text for one in page.all("p")]
    assert texts.count("copies between devices: 1, 3.000 ms, 30.0% of the time") == 2
    assert texts.count("kernels on the CPU: 1, 1.000 ms, 10.0% of the time") == 2
    page = parsed(page_of(PageSource("m", run_time=run_time(kernels, providers))))
    assert not any("copies between" in one.text for one in page.all("p"))


def test_tensors_have_a_section() -> None:
    model, other = parse(MODEL), parse(MODEL.replace("Exp(b)", "Sin(b)"))
    found = graphopt.compare(model, other)
    graphs = [graph_of("original", ["dec", "enc_a"], [[], []]), graph_of("optimized", ["enc_b"], [[]])]
    page = parsed(page_of(PageSource("two", graphs=graphs, comparison=found, names=(HOSTILE, "b"))))
    tensors = page.data["sections"]["tensors"]["tensors"]
    assert tensors["name"] == ["a", "b", "y"]
    assert tensors["departed"] == [False, False, True]
    assert tensors["identical"] == [True, True, False]
    assert tensors["nodes"] == [[1, -1], [-1, 0], [0, -1]]
    assert any("first departure: y" in paragraph.text for paragraph in page.all("p"))
    assert len(page.all("script")) == 2


def test_profiles_and_executors_have_a_section() -> None:
    model = parse(MODEL)
    profile = graphopt.record_profile(model, [{"x": np.ones((n, 16), np.float32)} for n in (1, 1, 2)])
    executor = graphopt.compile(model)
    executor({"x": np.ones((1, 16), np.float32)})
    source = PageSource("model", profile=profile, executor_state=executor.debug_state())
    page = parsed(page_of(source))
    patterns = page.data["sections"]["profiles"]["patterns"]
    assert sorted(count for _, count in patterns) == [1, 2]
    cells = [cell.text for cell in page.all("td")]
    assert "general" in cells and any("[1, 16]" in cell for cell in cells)


def test_recorded_variants_have_a_row() -> None:
    model = parse(MODEL)
    assert all(section.name != "profiles" for section in sections_of(PageSource("m", models=[model])))
    record_variants(model, [VariantRecord("static-1", Guard(), runs=3, nodes=2)])
    sections = {one.name: one for one in sections_of(PageSource("m", models=[model]))}
    assert "static-1" in str(sections["profiles"].html)


def test_bundles_have_the_sizes_of_their_files(tmp_path: Path) -> None:
    # the shape of the input is a constant in the variant
    model = parse(
        "g (float[N, 4] x) => (float[N, 4] y)"
        "{ s = Shape(x)  z = Neg(x)  f = Cast<to = 1>(s)  r = ReduceProd<keepdims = 0>(f)  y = Div(z, r) }"
    )
    runs = [{"x": np.ones((n, 4), np.float32)} for n in (1, 1, 2, 3)]
    profile = graphopt.record_profile(model, runs)
    specialization = graphopt.Specialization(profile, graphopt.FusionStrategy.parse("static:1"))
    found = graphopt.specialize(model, specialization, bundle=True, verify=False, pipeline="O1")
    graphopt.save_bundle(found, tmp_path / "m.bundle")
    page = parsed(page_of(PageSource("m", profile=profile, bundle=graphopt.Bundle(tmp_path / "m.bundle"))))
    texts = [one.text for one in page.all("p")]
    (files,) = [text for text in texts if text.startswith("files of the bundle:")]
    assert "general.onnx" in files and "static-1.onnx" in files
    assert "guards in the profile: 2 hits, 2 misses" in texts
    assert any(cell.text == "static-1" for cell in page.all("td"))


def test_losses_have_a_section_with_a_bounded_curve() -> None:
    losses = [LossRecord(step, 1 / step, step / 100) for step in range(1, 10_001)]
    page = parsed(page_of(PageSource("model", losses=losses)))
    data = page.data["sections"]["training"]
    assert len(data["loss"]) == 2_000 and data["mean_of"] == 5 and data["step"][-1] == 10_000
    assert data["loss"][0] == pytest.approx(np.mean([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]))


def test_sections_without_contents_are_absent() -> None:
    assert sections_of(PageSource("empty")) == []


def test_rows_of_tables_have_a_cell_for_each_column() -> None:
    table = Table(["", "original", "result", ""], "<>><")
    table.add("nodes", 3, 2)
    table.add("Add", 1, 0, "cse")
    html = html_of_blocks([table])
    assert [row.count("<td") for row in html.split("<tr>")[2:]] == [4, 4]


def test_the_summary_lists_all_refusals_and_only_recorded_figures() -> None:
    source = page_source(Environment(), SAMPLES["transformer"].build(), labels=("model", "result"))
    assert source.report is not None
    page = parsed(page_of(source))
    texts = [one.text for one in page.all("p")]
    refusals = [
        f"left alone {one.count} × {one.rule}: {one.reason} (such as {one.example})"
        for one in source.report.refusals
    ]
    assert refusals and set(refusals) <= set(texts)
    assert not any("-vv" in text for text in texts)
    heads = [one.text for one in page.all("th")]
    assert "pass" in heads and "weights" not in heads
