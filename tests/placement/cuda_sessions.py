"""Sessions of the CUDA provider in a process with the stand-in for CUDA's libraries, and their placements.

Run as a module with the path of a request: a JSON list of models, each ``{"model": path, "prediction": pickled file or
null, "optimized": bool}``; prints one JSON object per model.
"""

from __future__ import annotations

import json
import pickle
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import onnx

from graphopt.placement.compare_placement import RECORDING, compare_placement


def create(model: str | bytes, *, optimized: bool = False, written: Path | None = None) -> Any:
    """A session on CUDA and the CPU that records its placement; ``written`` is the path of its graph."""
    import onnxruntime

    level = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    options.add_session_config_entry(*RECORDING)
    if written is not None:
        options.optimized_model_filepath = str(written)
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", "weights.bin"
        )
    return onnxruntime.InferenceSession(
        model, options, providers=["CUDAExecutionProvider", "CPUExecutionProvider"], enable_fallback=0
    )


def copies(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """The Memcpy nodes of ``graph`` and its bodies: operator, and the tensor that is copied."""
    for node in graph.node:
        if node.op_type == "MemcpyFromHost":
            yield node.op_type, node.input[0]
        elif node.op_type == "MemcpyToHost":
            yield node.op_type, node.output[0]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from copies(attribute.g)


def copied_tensors(model: onnx.ModelProto, name: str) -> Collection[str]:
    """The tensors that a session copies, whose node ``name`` runs on CUDA."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "placed.onnx"
        try:
            session = create(model.SerializeToString(), written=path)
        except Exception:
            if not path.exists():  # kernels are created after the graph is written
                raise
        else:
            parts = session.get_provider_graph_assignment_info()
            assert any(
                part.ep_name.startswith("CUDA") and node.name == name
                for part in parts
                for node in part.get_nodes()
            )
        return {tensor for _, tensor in copies(onnx.load(path, load_external_data=False).graph)}


def placement(request: dict[str, Any]) -> dict[str, Any]:
    """The placement of one model, or the error of its session."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "placed.onnx"
        optimized = request.get("optimized", False)
        found: dict[str, Any] = {"model": request["model"]}
        try:
            session = create(request["model"], optimized=optimized, written=path)
        except Exception as error:  # onnxruntime's errors have no common base class
            return found | {"error": str(error)}
        found["nodes"] = [
            [node.name, node.op_type, node.domain, part.ep_name.startswith("CUDA")]
            for part in session.get_provider_graph_assignment_info()
            for node in part.get_nodes()
        ]
        found["copies"] = sorted(copies(onnx.load(path, load_external_data=False).graph))
        if request.get("prediction"):
            prediction = pickle.loads(Path(request["prediction"]).read_bytes())
            found["differences"] = [
                str(one) for one in compare_placement(session, prediction, optimized=optimized)
            ]
        return found


if __name__ == "__main__":
    for item in json.loads(Path(sys.argv[1]).read_text()):
        print(json.dumps(placement(item)), flush=True)
