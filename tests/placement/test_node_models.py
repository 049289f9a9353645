"""Long sweep: the node tests of the installed onnx package are placed as predicted."""

from __future__ import annotations

from collections import Counter

import pytest
from onnx.backend.test.loader import load_model_tests

from graphopt import ir
from graphopt.placement import predict
from tests.placement.conftest import PlaceModels

#: onnxruntime expands it; onnx offers no expansion of an operator with a body.
_NOT_EXPANDED = "SequenceMap"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_node_models_are_placed_as_predicted(place: PlaceModels) -> None:
    cases = [case for case in load_model_tests(kind="node") if case.model is not None]
    models = {case.name: ir.from_proto(case.model) for case in cases}
    wrong, equal = {}, 0
    for name, found in place(models).items():
        if "error" in found or any(node.op_type == _NOT_EXPANDED for node in models[name].graph):
            continue  # onnxruntime can't load the model
        copies = Counter(copy.op_type for copy in predict(models[name]).copies)
        differences = found["differences"], Counter(op_type for op_type, _ in found["copies"]) - copies
        if differences != ([], Counter()):
            wrong[name] = differences
        equal += name not in wrong
    assert wrong == {}
    assert equal > 1000
