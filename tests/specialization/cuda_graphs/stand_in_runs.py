"""Sessions of onnxruntime's CUDA provider on the stand-in for CUDA's libraries; prints facts as JSON.

Kernels do nothing there, so that only copies, captures and options are meaningful.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import onnxruntime

import graphopt
from graphopt import ir
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.ort import devices, gpu_properties, session
from graphopt.ort.cuda_probe import CudaStatus
from graphopt.ort.devices import Device
from graphopt.specialization.cuda_graphs.graph_trial import trial_refusal
from graphopt.util.cuda_options import CUDA_OPTIONS
from tests.model_testing import parse

CUDA = Device("cuda")
PLAIN = "g (float[N,4] x) => (float[N,4] y) { a = Identity(x)\n y = Relu(a) }"


def options() -> dict[str, Any]:
    """The options of the provider with their defaults, and those that a session receives."""
    source = ir.to_bytes(parse(PLAIN))
    plain = onnxruntime.InferenceSession(source, providers=["CUDAExecutionProvider"])
    given = {
        name: next(iter(option.words.values()), "1048576" if option.is_size else "1")
        for name, option in CUDA_OPTIONS.items()
    }
    made = session.create(source, device=CUDA.having(given))
    name = CUDA.capabilities.provider
    return {
        "defaults": plain.get_provider_options()[name],
        "given": given,
        "received": made.get_provider_options()[name],
    }


def graphs(models: dict[str, str]) -> dict[str, Any]:
    """The refusal of CUDA graphs for each of ``models``, and the counters of an executor that captures."""
    parsed = {name: parse(text) for name, text in models.items()}
    refusals = {name: trial_refusal(ir.to_bytes(model), model, CUDA) for name, model in parsed.items()}
    wanted = ExecutorOptions(cuda_graph=True, depth=0)
    executor = graphopt.compile(parse(PLAIN), wanted, device="cuda", verify=False)
    for rows in (2, 2, 3):
        executor({"x": np.ones((rows, 4), np.float32)})
    buffer = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones((2, 4), np.float32), "cuda", 0)
    executor.run_bound({"x": buffer})
    state = executor.debug_state()
    return {
        "refusals": refusals,
        "counters": state.counters,
        "hints": [hint.to_dict() for hint in state.hints],
    }


if __name__ == "__main__":
    devices.probe_cuda = lambda index=0: CudaStatus(True, "")  # the stand-in has no driver
    gpu_properties.properties_from = lambda driver, index: None
    request = json.loads(sys.argv[1])
    print(json.dumps({name: globals()[name](*arguments) for name, arguments in request.items()}))
