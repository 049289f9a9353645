"""Libraries of kernels in sessions of onnxruntime: execution and failures."""

import ctypes
import gc
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from graphopt.errors import RuntimeFailure
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from tests.fusion.backends.c.runtime import samples
from tests.fusion.backends.c.runtime.samples import MARKED, NAME, RIGHT, affine, fresh, library, model

pytestmark = samples.compiled
X = np.arange(-3, 4, dtype=np.float32)
FEEDS = {"x": X, "c": np.array(True)}


def outputs(made, feeds=FEEDS):
    return dict(zip([port.name for port in made.get_outputs()], session.run(made, feeds), strict=True))


def same(actual, expected):
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)


def level_of(path):
    return ctypes.CDLL(path).graphopt_cpu_level()


@pytest.mark.parametrize("optimizations", ["off", "default"])
def test_kernels_run_in_graphs_bodies_and_functions(tmp_path, optimizations):
    data = model().SerializeToString()
    plain = session.create(data, optimizations=optimizations)
    same(outputs(plain), affine(X))
    path = library(tmp_path, {NAME: MARKED})
    native = session.create(data, optimizations=optimizations, choice=SessionChoice(libraries=(path,)))
    same(outputs(native), affine(X, 1000 * level_of(path) + 1000))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 0, 2), (2, 3, 5)])
def test_any_rank_and_no_elements(tmp_path, shape):
    rank = len(shape)
    path = library(tmp_path, {NAME: RIGHT}, rank=rank)
    dims = ", ".join("N" + str(axis) for axis in range(rank)) if rank else ""
    text = model(dims)
    if not rank:
        for port in [*text.graph.input, *text.graph.output, *text.graph.value_info]:
            port.type.tensor_type.shape.SetInParent()
    made = session.create(text.SerializeToString(), choice=SessionChoice(libraries=(path,)))
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    same(outputs(made, {"x": x, "c": np.array(True)}), affine(x))


def test_wrong_rank_is_reported(tmp_path):
    path = library(tmp_path, {NAME: RIGHT}, rank=3)
    made = session.create(model().SerializeToString(), choice=SessionChoice(libraries=(path,)))
    with pytest.raises(RuntimeFailure, match=r"input 0 has another rank than it was made for: 1"):
        session.run(made, FEEDS)


def test_first_message_of_a_kernel_is_reported(tmp_path):
    extra = 'if (work.n > 3) { go_fail(call, "too many"); go_fail(call, "elements"); return 1; }'
    path = library(tmp_path, {NAME: RIGHT}, extra=extra)
    made = session.create(model().SerializeToString(), choice=SessionChoice(libraries=(path,)))
    with pytest.raises(RuntimeFailure, match=r"too many$"):
        session.run(made, FEEDS)
    same(outputs(made, FEEDS | {"x": X[:2]}), affine(X[:2]))


def test_only_dead_inputs_are_overwritten(tmp_path):
    found = "work.y[0] = (const void *)work.x == (void *)work.y; if (work.n > 2) return 0;"
    path = library(tmp_path, {NAME: RIGHT}, extra=found)
    made = session.create(model("8").SerializeToString(), choice=SessionChoice(libraries=(path,)))
    x = np.ones(8, np.float32)
    found = outputs(made, {"x": x, "c": np.array(True)})
    assert found["main"][0] == -1  # only the kernel reads Neg(x)
    assert found["branch"][0] == 0  # x is an input of the model
    np.testing.assert_array_equal(x, np.ones(8, np.float32))


def test_kernels_of_several_units(tmp_path):
    path = library(tmp_path, {"one": "x", "two": "x"}, {"three": "x", NAME: RIGHT}, {"four": "x"})
    made = session.create(model().SerializeToString(), choice=SessionChoice(libraries=(path,)))
    same(outputs(made), affine(X))
    told = ctypes.CDLL(path).graphopt_kernel
    told.restype = ctypes.c_char_p
    names = [told(place) for place in range(-1, 7)]
    assert names == [None, b"one", b"two", b"three", NAME.encode(), b"four", None, None]


def test_sessions_share_a_library(tmp_path):
    choice = SessionChoice(libraries=(library(tmp_path, {NAME: RIGHT}),))
    data = model().SerializeToString()
    x = np.arange(1000, dtype=np.float32)
    first = session.create(data, choice=choice)
    second = session.create(data, choice=choice, threads=2)
    del first
    gc.collect()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: outputs(second, {"x": x, "c": np.array(True)}), range(20)):
            same(found, affine(x))
        made = list(pool.map(lambda _: session.create(data, choice=choice), range(8)))
    for each in made:
        same(outputs(each), affine(X))


def test_two_libraries_of_one_domain_are_refused(tmp_path):
    paths = library(tmp_path / "a", {NAME: RIGHT}), library(tmp_path / "b", {"other": "x"})
    with pytest.raises(RuntimeFailure, match="Domain already set"):
        session.create(model().SerializeToString(), choice=SessionChoice(libraries=paths))


def test_a_lower_level_can_be_chosen(tmp_path):
    path = library(tmp_path, {NAME: MARKED})
    data, most = model().SerializeToString(), level_of(path)
    for level in sorted({2, 3, 4, most}):
        choice = SessionChoice(libraries=(path,), cpu_level=level)
        taken = min(level, most) if most else 0
        same(outputs(session.create(data, choice=choice)), affine(X, 1000 * taken + 1000))
    made = session.create(data, choice=SessionChoice(libraries=(path,)))
    same(outputs(made), affine(X, 1000 * most + 1000))


def test_level_is_read_from_the_environment(tmp_path):
    path, file = library(tmp_path, {NAME: MARKED}), tmp_path / "model.onnx"
    file.write_bytes(model().SerializeToString())
    most = level_of(path)
    for text, level in {"": most, "2": min(2, most), "3": min(3, most), "9": most, "4x": most}.items():
        environ = {**os.environ, "GRAPHOPT_CPU_LEVEL": text}
        same(fresh(file, FEEDS, path, environ=environ)[1], affine(X, 1000 * level + 1000))
    same(fresh(file, FEEDS, None)[1], affine(X))


class _Base(ctypes.Structure):
    _fields_ = (
        ("api", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)),
        ("version", ctypes.CFUNCTYPE(ctypes.c_void_p)),
    )


@pytest.mark.parametrize("version", [b"1.16.3", b"0.5.0", b"nonsense"])
def test_old_onnxruntime_is_refused(tmp_path, version):
    runtime = samples.shared_runtime()
    if runtime is None:
        pytest.skip("this onnxruntime has no C library of its own")
    get = ctypes.CDLL(str(runtime)).OrtGetApiBase
    get.restype = ctypes.POINTER(_Base)
    real = get().contents
    text = ctypes.create_string_buffer(version)
    base = _Base(real.api, _Base._fields_[1][1](lambda: ctypes.addressof(text)))
    register = ctypes.CDLL(library(tmp_path, {NAME: RIGHT})).RegisterCustomOps
    register.restype = ctypes.c_void_p
    status = register(None, ctypes.byref(base))
    slots = ctypes.cast(real.api(1), ctypes.POINTER(ctypes.c_void_p))
    message = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(slots[2])(status)
    assert message == b"graphopt's kernels need onnxruntime 1.17 or newer; this is " + version
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(slots[93])(status)
