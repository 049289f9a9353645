"""The samples are placed as predicted, before and after -O3."""

from __future__ import annotations

from collections import Counter

from graphopt import ir
from graphopt.context import Options
from graphopt.ort.devices import Device
from graphopt.placement import predict
from tests.model_testing import run_pipeline
from tests.placement.conftest import PlaceModels
from zoo import SAMPLES


def test_samples_are_placed_as_predicted(place: PlaceModels) -> None:
    models: dict[str, ir.Model] = {}
    for name, sample in SAMPLES.items():
        models[name] = ir.from_proto(sample.build())
        models[f"{name} -O3"] = optimized = ir.from_proto(sample.build())
        run_pipeline(optimized, "O3", Options(device=Device("cuda")))
    for name, found in place(models).items():
        assert "error" not in found, (name, found)
        assert found["differences"] == [], name
        expected = Counter(copy.op_type for copy in predict(models[name]).copies)
        assert Counter(op_type for op_type, _ in found["copies"]) == expected, name
