"""Run a model in OpenVINO on request; benchmarks.model_races starts it with an interpreter that has OpenVINO.

    PYTHON benchmarks/openvino_worker.py MODEL.onnx FEEDS.npz THREADS

It imports no module of graphopt. Each line of the standard input is a command, and the answer is one line of
JSON: ``run N`` times N runs and returns their seconds; ``save FILE.npz`` writes the outputs by index.
Computations are in f32, and latency is the goal, as in onnxruntime's default sessions.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np


def main(model: str, feeds_path: str, threads: str) -> None:
    """Answer commands until the end of the standard input."""
    import openvino

    with np.load(feeds_path) as data:
        feeds = {name: data[name] for name in data.files}
    config = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": int(threads),
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }
    try:
        compiled = openvino.Core().compile_model(model, "CPU", config)
        known = {name for port in compiled.inputs for name in port.names}
        request = compiled.create_infer_request()
        given = {name: value for name, value in feeds.items() if name in known}
        request.infer(given)
    except Exception as error:  # OpenVINO lacks an operator, or the shapes do not fit
        answer({"error": str(error).strip().splitlines()[-1][:200]})
        return
    answer({"version": openvino.__version__})
    for line in sys.stdin:
        command, argument = line.split(maxsplit=1)
        if command == "run":
            answer({"seconds": [timed(request, given) for _ in range(int(argument))]})
        else:
            results = {str(index): port.data for index, port in enumerate(request.output_tensors)}
            np.savez(argument.strip(), **results)
            answer({})


def timed(request: Any, feeds: dict[str, np.ndarray]) -> float:
    """The seconds of one run."""
    begin = time.perf_counter()
    request.infer(feeds, share_inputs=True, share_outputs=True)
    return time.perf_counter() - begin


def answer(data: dict[str, Any]) -> None:
    """Print one line of JSON."""
    print(json.dumps(data), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
