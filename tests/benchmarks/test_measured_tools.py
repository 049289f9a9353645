"""Parts of the benchmarks that define the meaning of a number."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks import doc_tables, judge, measured_models, measured_tools, nodes, process_time
from benchmarks.inputs import entry_of, make_feeds
from graphopt.timing import other_optimizers
from samples import models
from zoo import SAMPLES


def write(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def test_nodes_of_bodies_count_and_constants_do_not(tmp_path) -> None:
    path = models.write("control_flow", tmp_path)
    top = [node.op_type for node in onnx.load(path).graph.node]
    assert top.count("Constant") > 0
    assert measured_models.count_nodes(path) > len(top) - top.count("Constant")
    # Two calls of a function are two nodes, regardless of the function's nodes.
    assert measured_models.count_nodes(models.write("functions", tmp_path)) == 2


def test_judge_accepts_equal_models_and_names_differences(tmp_path) -> None:
    sample = SAMPLES["cnn"]
    entry = sample.manifest_entry("cnn")
    original = write(sample.build(), tmp_path / "original.onnx")
    assert judge.judge(original, original, entry)["verdict"] == "ok"

    changed = sample.build()
    bias = next(tensor for tensor in changed.graph.initializer if tensor.name == "head.bias")
    bias.CopyFrom(numpy_helper.from_array(np.arange(10, dtype=np.float32), bias.name))
    changed_path = write(changed, tmp_path / "changed.onnx")
    assert judge.judge(original, changed_path, entry)["verdict"] == "wrong"

    frozen = sample.build()
    frozen.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    frozen_path = write(frozen, tmp_path / "frozen.onnx")
    assert judge.judge(original, frozen_path, entry)["verdict"] == "signature"

    broken = sample.build()
    del broken.graph.node[0]
    broken_path = write(broken, tmp_path / "broken.onnx")
    assert judge.judge(original, broken_path, entry)["verdict"] == "refused"


def test_judge_allows_differences_due_to_onnxruntime(tmp_path, monkeypatch) -> None:
    class Session:
        """A session with one constant output."""

        def __init__(self, value: float) -> None:
            self.value = value

        def get_inputs(self) -> list:
            return []

        def get_outputs(self) -> list:
            return [SimpleNamespace(name="y", type="tensor(float)", shape=[1])]

        def run(self, names, feeds) -> list[np.ndarray]:
            return [np.float32([self.value])]

    # By (file, with onnxruntime's optimizations): they move the original by 0.25.
    outputs = {("original", False): 1.0, ("original", True): 1.25}
    monkeypatch.setattr(judge, "_session", lambda path, optimized: Session(outputs[path.name, optimized]))
    entry = {"inputs": {}, "shape_sets": [{}]}
    for plain, optimized, verdict in ((1.0, 1.5, "ok"), (1.0, 1.6, "wrong"), (1.1, 1.25, "wrong")):
        outputs |= {("result", False): plain, ("result", True): optimized}
        assert judge.judge(tmp_path / "original", tmp_path / "result", entry)["verdict"] == verdict


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (np.float32([1, np.nan, np.inf]), np.float32([1, np.nan, np.inf]), True),
        (np.float32([1, np.nan]), np.float32([1, 0]), False),
        (np.float32([1, 0]), np.float32([1, np.inf]), False),
        (np.float32([1]), np.float32([1 + 1e-6]), True),
        (np.float32([1]), np.float32([1.01]), False),
        (np.float32([1]), np.float64([1]), False),
        (np.int64([1, 2]), np.int64([1, 3]), False),
        (np.array(["a"], object), np.array(["b"], object), False),
        ([{"a": 0.5}], [{"a": 0.5}], True),
        ([{"a": 0.5}], [{"b": 0.5}], False),
    ],
)
def test_outputs_are_compared_by_contents(a, b, equal: bool) -> None:
    assert judge.compare(a, b)[0] is equal


def test_best_peer_is_right_and_not_bloated() -> None:
    def result(nodes: int, verdict: str = "ok", size: int = 100) -> dict:
        return {"nodes": nodes, "verdict": verdict, "bytes": size}

    model = {
        "bytes": 100,
        "tools": {
            "graphopt": result(1),
            "ort_ext": result(2),
            "wrong": result(3, "wrong"),
            "large": result(4, size=151),
            "good": result(6),
            "better": result(5, size=150),
        },
    }
    assert nodes.best_peer(model) == ("better", 5)
    model["tools"] = {"graphopt": result(1), "wrong": result(3, "wrong")}
    assert nodes.best_peer(model) is None


def test_table_totals_exclude_incomparable_models() -> None:
    def model(name: str, own: dict, peer: dict) -> dict:
        return {"model": name, "nodes": 10, "bytes": 100, "tools": {"graphopt": own, "peer": peer}}

    right = {"verdict": "ok", "nodes": 4, "bytes": 90}
    text = nodes.table(
        [
            model("a", right, right | {"nodes": 5}),
            model("b", right, {"verdict": "wrong", "nodes": 1, "bytes": 1}),
            model("c", {"verdict": "failed (1)"}, right),
        ]
    )
    assert "2 of 3 results of graphopt are right" in text
    assert "Over the 1 models" in text
    assert "10 nodes, graphopt 4, best peers 5, ratio 0.800" in text


def test_time_ratios_need_both_tools() -> None:
    measured = [
        {"medians": {"graphopt": 1.0, "onnxsim": 2.0}},
        {"medians": {"graphopt": 1.0}},
        {"medians": {"onnxsim": 1.0}},
    ]
    assert process_time.ratios(measured, "onnxsim") == [0.5]
    assert doc_tables.geometric_mean([0.5, 2.0]) == pytest.approx(1.0)


def test_section_is_replaced_and_must_be_there() -> None:
    page = "a\n<!-- begin t -->\nold\n<!-- end t -->\nb\n"
    assert doc_tables.replace_section(page, "t", "new\n") == page.replace("old", "new")
    with pytest.raises(ValueError, match="no single section 'u'"):
        doc_tables.replace_section(page, "u", "new")


def test_recipes_draw_the_declared_values() -> None:
    entry = {
        "inputs": {
            "x": {"dtype": "float32", "gen": {"kind": "uniform", "low": 2, "high": 3}},
            "i": {"dtype": "int64", "gen": {"kind": "sorted_randint", "low": 0, "high": "x.1"}},
            "n": {"dtype": "int64", "gen": {"kind": "dim", "of": "x.0"}},
        },
        "shape_sets": [{"x": [4, 7], "i": [50], "n": {"shape": [1]}}],
    }
    feeds = make_feeds(entry, 0)
    assert feeds["x"].shape == (4, 7)
    assert 2 <= feeds["x"].min() <= feeds["x"].max() <= 3
    assert (np.diff(feeds["i"]) >= 0).all()
    assert feeds["i"].max() < 7
    assert feeds["n"].tolist() == [4]
    assert all(np.array_equal(feeds[name], value) for name, value in make_feeds(entry, 0).items())


def test_model_without_manifest_has_a_generated_entry(tmp_path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Where", ["c", "x", "w"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, ["n", 3]),
            helper.make_tensor_value_info("x", TensorProto.INT32, ["n", 3]),
            helper.make_tensor_value_info("w", TensorProto.INT32, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.INT32, ["n", 3])],
        [helper.make_tensor("w", TensorProto.INT32, [1], [7])],
    )
    path = write(helper.make_model(graph), tmp_path / "m.onnx")
    entry = entry_of(path)
    assert list(entry["inputs"]) == ["c", "x"]
    assert [make_feeds(entry, i)["x"].shape for i in range(2)] == [(2, 3), (3, 3)]
    assert make_feeds(entry, 0)["c"].dtype == np.bool_


def test_failing_tool_has_status_and_message(tmp_path) -> None:
    tool = measured_tools.Tool("broken", (sys.executable, "-c", "import sys; sys.exit('no luck')"))
    outcome = tool.run(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert (outcome.status, outcome.message) == (1, "no luck")


def test_peers_are_those_that_the_interpreter_has() -> None:
    versions = other_optimizers.versions(sys.executable)
    assert [tool.name for tool in measured_tools.peer_tools(sys.executable)] == list(versions)
