"""The functions of the installed onnxruntime that kernels for CUDA call, by their slots in its table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime

from graphopt.fusion.backends.c import build_library
from graphopt.fusion.backends.c.c_compiler import find_compiler
from tests.fusion.backends.c.runtime import samples

pytestmark = samples.compiled
MODEL = """<ir_version: 8, opset_import: ["": 17, "probe": 1]>
g (int64[1] x) => (int64[4] y) { y = probe.probe(x) }"""


def test_slots_are_those_of_the_installed_onnxruntime(tmp_path: Path) -> None:
    headers = Path(build_library.__file__).parent / "runtime"
    source = Path(__file__).with_name("slots.c")
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", f"-I{headers}", str(source), "-o", "probe.so"]
    find_compiler().run(flags, tmp_path, 60)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(tmp_path / "probe.so"))
    model = onnx.parser.parse_model(MODEL).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.zeros(1, np.int64)})
    # The host is device 0 and has no stream; 0 bytes of scratch memory have no address.
    np.testing.assert_array_equal(found, [0, 1, 1, 1])
