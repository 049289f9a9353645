"""Passes and rules of other packages, as pip would install them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parents[1]

MODULE = '''
from dataclasses import dataclass
from typing import ClassVar
from graphopt.passes.base import Pass
from graphopt.rewrite import Exact, Reassociates, rule


@dataclass(frozen=True)
class Shout(Pass):
    """Say that it ran."""

    name: ClassVar[str] = "shout"

    def run(self, model, cx):
        print("SHOUTED")


@rule(lambda op, x: op.Neg(op.Neg(op.Neg(x))), numerics=Exact)
def three_negations(op, m, x):
    """-(-(-x)) = -x."""
    return op.Neg(x)


@rule(lambda op, x: op.Mish(x), numerics=Reassociates, pass_="decompose")
def decompose_mish(op, m, x):
    """Mish(x) → x · Tanh(Softplus(x))."""
    return op.Mul(x, op.Tanh(op.Softplus(x)))
'''


DECOMPOSITIONS = '''
from graphopt.rewrite import Reassociates, rule


@rule(lambda op, x: op.domain("elsewhere").Swish(x), numerics=Reassociates, pass_="decompose")
def decompose_swish(op, m, x):
    """Swish(x) → x · Sigmoid(x)."""
    return op.Mul(x, op.Sigmoid(x))
'''


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment with a package `elsewhere` that has entry points of all groups."""
    (tmp_path / "elsewhere.py").write_text(MODULE)
    (tmp_path / "decompositions.py").write_text(DECOMPOSITIONS)
    information = tmp_path / "elsewhere-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[graphopt.passes]\nshout = elsewhere:Shout\n[graphopt.rules]\nelsewhere = elsewhere\n"
        "[graphopt.decompositions]\nelsewhere = decompositions\n"
    )
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}


def graphopt(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-c", "from graphopt.cli.main import run; run()"]
    done = subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_are_listed_and_run(environment: dict[str, str], tmp_path: Path) -> None:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    names = ["x", "a", "b", "y"]
    nodes = [helper.make_node("Neg", [names[i]], [names[i + 1]]) for i in range(3)]
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    model = helper.make_model(
        helper.make_graph(nodes, "g", value[:1], value[1:]), opset_imports=[helper.make_opsetid("", 17)]
    )
    onnx.save(model, source)

    assert "shout" in graphopt(environment, "passes")
    passes = "shout,peephole{families=elsewhere},dce"
    out = graphopt(environment, "optimize", str(source), "-o", str(target), "--passes", passes)
    assert "SHOUTED" in out
    assert "three-negations" in out
    assert [node.op_type for node in onnx.load(target).graph.node] == ["Neg"]


def test_decompositions_are_listed_and_run(environment: dict[str, str], tmp_path: Path) -> None:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Mish", ["x"], ["y"])], "g", value[:1], value[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "in.onnx")
    assert "decompose-mish" in graphopt(environment, "passes", "decompose")
    files = [str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx")]
    graphopt(environment, "optimize", *files, "--passes", "decompose{ops=Mish}")
    nodes = onnx.load(tmp_path / "out.onnx").graph.node
    assert [node.op_type for node in nodes] == ["Softplus", "Tanh", "Mul"]


def test_decompositions_of_their_own_group_run_by_default(
    environment: dict[str, str], tmp_path: Path
) -> None:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    node = helper.make_node("Swish", ["x"], ["y"], domain="elsewhere")
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("elsewhere", 1)]
    model = helper.make_model(helper.make_graph([node], "g", value[:1], value[1:]), opset_imports=imports)
    onnx.save(model, tmp_path / "in.onnx")
    assert "decompose-swish" in graphopt(environment, "passes", "decompose")
    files = [str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx")]
    graphopt(environment, "optimize", *files, "-O3", "--no-verify")
    nodes = onnx.load(tmp_path / "out.onnx").graph.node
    assert sorted(node.op_type for node in nodes) in (["Mul", "Sigmoid"], ["QuickGelu"])


def test_a_rule_for_another_pass_is_no_decomposition(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "decompositions.py").write_text(DECOMPOSITIONS.replace(', pass_="decompose"', ""))
    command = [sys.executable, "-c", "from graphopt.cli.main import run; run()"]
    done = subprocess.run(
        [*command, "passes", "decompose"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert (
        "'decompose-swish' of the entry points graphopt.decompositions is for the pass peephole"
        in done.stderr
    )
