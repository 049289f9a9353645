"""Long sweep: every node test of the installed onnx package is optimized and verified."""

from __future__ import annotations

from functools import cache

import onnx
import pytest
from onnx.backend.test.loader import load_model_tests

import graphopt
from graphopt import ir
from graphopt.errors import UnsupportedModel

CHUNKS = 24


@cache
def _models() -> list[tuple[str, onnx.ModelProto]]:
    return [(case.name, case.model) for case in load_model_tests(kind="node") if case.model is not None]


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.filterwarnings("ignore")
def test_optimization_preserves_node_models(chunk: int) -> None:
    wrong, verified = [], 0
    for name, proto in _models()[chunk::CHUNKS]:
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        try:
            verdict = graphopt.optimize(ir.from_proto(copy), verify=True).verdict
        except UnsupportedModel:
            continue
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
            continue
        verified += bool(verdict is not None and verdict.rows)
    assert wrong == []
    assert verified > 20
