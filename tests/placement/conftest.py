"""The stand-in for CUDA's libraries, built once, and placements of models by sessions that use it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from graphopt import ir
from graphopt.placement import predict
from tests.placement import cuda_stand_in

#: The placement of a model in a session, and the differences to the prediction.
Found = dict[str, Any]
PlaceModels = Callable[[Mapping[str, ir.Model]], dict[str, Found]]


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the libraries."""
    obstacle = cuda_stand_in.obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    folder = tmp_path_factory.mktemp("cuda")
    cuda_stand_in.build(folder)
    return folder


@pytest.fixture
def place(libraries: Path, tmp_path: Path) -> PlaceModels:
    """A function from models by name to their placements in sessions."""

    def call(models: Mapping[str, ir.Model]) -> dict[str, Found]:
        requests = []
        for index, model in enumerate(models.values()):
            path, prediction = tmp_path / f"{index}.onnx", tmp_path / f"{index}.pickle"
            prediction.write_bytes(pickle.dumps(predict(model)))
            ir.save(model, path)
            requests.append({"model": str(path), "prediction": str(prediction)})
        request = tmp_path / "request.json"
        request.write_text(json.dumps(requests))
        lines = cuda_stand_in.run(libraries, "tests.placement.cuda_sessions", str(request)).splitlines()
        return dict(zip(models, map(json.loads, lines), strict=True))

    return call
