"""Groups with and without their library, from Python and C, at all levels, and with sanitizers."""

import os
import sys

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.fusion.backends.c import BACKEND
from graphopt.fusion.backends.c.build_library import Plan, levels
from graphopt.fusion.backends.c.c_compiler import find_compiler
from graphopt.fusion.backends.c.source_file import source
from graphopt.fusion.group_functions import kernels_of
from graphopt.util.disk_store import Store
from graphopt.verification.verifier import verify
from tests.fusion.backends.c.runtime import samples
from tests.fusion.backends.c.runtime.groups import feeds, fused
from tests.fusion.backends.c.runtime.samples import fresh, in_host, make_host
from tests.model_testing import parse

pytestmark = samples.compiled
SHAPES = [(0, 5), (3, 0), (1, 1), (7, 13), (33, 130), (257, 1021)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The original, the model with groups, and their library."""
    original, model = fused()
    kernels = kernels_of(model)
    assert len(kernels) >= 3
    return original, model, str(BACKEND.build(kernels, Store(tmp_path_factory.mktemp("store"))))


def _close(found, expected):
    for name, array in expected.items():
        actual = found[name].reshape(array.shape)
        if array.dtype.kind == "f":
            tolerance = 2e-6 if array.dtype == np.float32 else 2e-3
            np.testing.assert_allclose(
                actual.astype(np.float64), array.astype(np.float64), rtol=tolerance, atol=1e-5, err_msg=name
            )
        else:
            np.testing.assert_array_equal(actual, array, err_msg=name)


def test_kernels_and_functions_agree(made):
    original, model, library = made
    verdict = verify(original, model, libraries=(library,))
    assert verdict.ok, verdict.summary()
    assert {row.libraries for row in verdict.rows} == {False, True}


@pytest.mark.parametrize("optimized", [False, True])
def test_all_levels_and_hosts_agree(made, tmp_path, optimized):
    _, model, library = made
    file = tmp_path / "model.onnx"
    ir.save(model, file)
    inputs = feeds(33, 130)
    _, without = fresh(file, inputs, None, optimized=optimized)
    dtypes = {name: array.dtype for name, array in without.items()}
    host, runtime = make_host(tmp_path), samples.shared_runtime()
    for level in levels():
        environ = {**os.environ, "GRAPHOPT_CPU_LEVEL": str(level)}
        _, native = fresh(file, inputs, library, optimized=optimized, environ=environ)
        _close(native, without)
        if runtime is not None:
            found = in_host(
                host, runtime, file, inputs, dtypes, library, optimized=optimized, environ=environ
            )
            for name, array in native.items():
                np.testing.assert_array_equal(found[name].reshape(array.shape), array)


def test_scan_outputs_of_loops_without_iterations_have_equal_shapes(tmp_path):
    original = parse("""g (int64 n, float[N, 8] x) => (float[A, B, C] y, float[D, E, F] z) {
        y, z = Loop(n, , ) <body = b (int64 i, bool c) => (bool d, s, t)
            { d = Identity(c) p = Mul(x, x) q = Tanh(p) r = Sigmoid(q) s = Mul(r, x)
              t = Transpose<perm = [1, 0]>(s) }>
    }""")
    result, _ = graphopt.optimize(original, pipeline="fuse-groups", verify=False, device="cpu")
    library = str(BACKEND.build(kernels_of(result), Store(tmp_path)))
    for count in (0, 2):
        inputs = {"n": np.array(count), "x": np.ones((3, 8), np.float32)}
        expected, found = graphopt.run(original, inputs), graphopt.run(result, inputs, libraries=(library,))
        assert {name: array.shape for name, array in found.items()} == {
            name: array.shape for name, array in expected.items()
        }


def _sanitized(folder, text, count):
    """The library and the C program, with sanitizers in both."""
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
    compiler = find_compiler()
    if compiler.kind == "zig":
        pytest.skip("zig brings no address sanitizer")
    plan = Plan((text,), count, compiler, levels(), flags)
    plan.make(folder, folder / "kernels.so")
    return str(folder / "kernels.so"), make_host(folder, flags)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizer is linked with the flags of Linux")
def test_sanitizers_report_no_faults(made, tmp_path):
    _, model, _ = made
    runtime = samples.shared_runtime()
    if runtime is None:
        pytest.skip("this onnxruntime has no C library of its own")
    kernels = kernels_of(model)
    library, host = _sanitized(tmp_path, source(kernels), len(kernels))
    file = tmp_path / "model.onnx"
    ir.save(model, file)
    for shape in SHAPES:
        inputs = feeds(*shape)
        _, without = fresh(file, inputs, None)
        dtypes = {name: array.dtype for name, array in without.items()}
        for level in levels():
            environ = {**os.environ, "GRAPHOPT_CPU_LEVEL": str(level), "ASAN_OPTIONS": "detect_leaks=1"}
            _close(in_host(host, runtime, file, inputs, dtypes, library, environ=environ), without)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizer is linked with the flags of Linux")
@pytest.mark.parametrize(
    "fault, told",
    [
        ("((volatile float *)work.y)[work.n] = 1;", "heap-buffer-overflow"),
        ("((volatile const float *)work.x)[-1];", "heap-buffer-overflow"),
        ("static void *volatile kept; kept = malloc(7); kept = NULL;", "memory leaks"),
    ],
)
def test_sanitizers_find_faults(tmp_path, fault, told):
    runtime = samples.shared_runtime()
    if runtime is None:
        pytest.skip("this onnxruntime has no C library of its own")
    text = "#include <stdlib.h>\n" + samples.unit({samples.NAME: samples.RIGHT}, extra=fault)
    library, host = _sanitized(tmp_path, text, 1)
    file = tmp_path / "model.onnx"
    file.write_bytes(samples.model().SerializeToString())
    inputs = {"x": np.arange(7, dtype=np.float32), "c": np.array(True)}
    dtypes = dict.fromkeys(samples.affine(inputs["x"]), np.dtype(np.float32))
    with pytest.raises(AssertionError, match=told):
        in_host(host, runtime, file, inputs, dtypes, library, environ={**os.environ, "ASAN_OPTIONS": ""})
