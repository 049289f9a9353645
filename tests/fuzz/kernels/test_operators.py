"""Each operator of kernels, over types, shapes and special values, compared with onnxruntime and doubles."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphopt.fusion.operator_table import all_operators
from graphopt.process.child import Child
from tests.fuzz.kernels.batches import Findings, cpu_levels, examine_operators
from tests.fuzz.kernels.operator_graphs import operator_graphs


def test_every_operator_is_correct(child: Child, tmp_path: Path) -> None:
    found: Findings = child.call(examine_operators, tmp_path, cpu_levels()[-1], 2)
    assert found.faults == []


@pytest.mark.slow
@pytest.mark.parametrize("level", cpu_levels())
def test_every_operator_is_correct_for_all_types_and_levels(child: Child, tmp_path: Path, level: int) -> None:
    assert child.call(examine_operators, tmp_path, level).faults == []


def test_every_operator_is_covered() -> None:
    tried = set()
    for _, graph in operator_graphs():
        tried |= {f"{node.domain}::{node.op_type}".removeprefix("::") for node in graph.grower.nodes}
    known = {op for items in all_operators().values() for item in items for op in item.ops}
    assert known - tried == set()
