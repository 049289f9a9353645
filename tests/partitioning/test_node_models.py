"""Long sweep: every node test of the installed onnx package, with a group wherever possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.backend.test.case.node import collect_testcases

import graphopt
from graphopt import ir
from tests.ir.models import run


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_single_node_groups_preserve_results() -> None:
    failed, same = [], 0
    for case in collect_testcases(None):
        try:
            model = ir.from_proto(case.model)
            feeds = dict(zip([value.name for value in model.graph.inputs], case.data_sets[0][0], strict=True))
            expected = run(ir.to_bytes(model), **feeds)
        except Exception:  # onnxruntime rejects it, or does not run it
            continue
        found = graphopt.partition(model, minimum=1)
        if not found.groups:
            continue
        outlined = found.outlined()
        ir.validate(outlined)
        if all(map(_same, expected, run(ir.to_bytes(outlined), **feeds))):
            same += 1
        else:
            failed.append(case.name)
    assert not failed
    assert same > 800


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return all(map(_same, one, other))
    return np.asarray(one).dtype == object or np.asarray(one).tobytes() == np.asarray(other).tobytes()
