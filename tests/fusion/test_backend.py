"""Back ends: their registry, the interface as a second back end implements it, and new instructions."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.context import context_for
from graphopt.fusion.backend import Backend, backend_for, backend_or_host, discover
from graphopt.fusion.group_functions import kernels_of
from graphopt.fusion.loops import interpreter
from graphopt.fusion.loops.instructions import OPS, Op
from graphopt.fusion.loops.ir import Kernel
from graphopt.ops import graphopt_operators
from graphopt.ort import session
from graphopt.ort.devices import CPU, Device
from graphopt.passes.pipelines import make_pipeline
from graphopt.util.disk_store import Store
from tests.fusion.backends.c.harness import Unit, compiler, levels
from tests.fusion.backends.numpy_backend import load
from tests.model_testing import parse

#: Models that become one group.
MODELS = {
    "pointwise": "g (float[N,64] x, float[64] b) => (float[N,64] y) { s = Sigmoid(x) m = Mul(s, b) y = Add(m, x) }",
    "softmax": "g (float[N,64] x, float[64] b) => (float[N,64] y) { a = Add(x, b) y = Softmax(a) }",
    "transposed": "g (float[N,8,5] x) => (float[N,5,8] y) { a = Relu(x) t = Transpose<perm = [0, 2, 1]>(a) y = Exp(t) }",
    "two results": "g (float[N,64] x) => (float[N,64] y, float[N,1] m) { a = Tanh(x) m = ReduceMean<axes = [1]>(a) y = Sub(a, m) }",
    "choice": "g (float[N,64] x, float[N,64] z) => (float[N,64] y) { c = Less(x, z) a = Neg(x) y = Where(c, a, z) }",
}


@pytest.fixture
def toy() -> Backend:
    return discover("tests.fusion.backends")["array"]


def grouped(text: str) -> ir.Model:
    model = parse(text)
    with context_for(model) as cx:
        make_pipeline("fuse-groups").run(model, cx)
    return model


def only_kernel(model: ir.Model) -> tuple[ir.Node, Kernel]:
    (kernel,) = kernels_of(model)
    (call,) = (node for node in model.graph if node.domain == graphopt_operators.NATIVE_DOMAIN)
    return call, kernel


@pytest.mark.parametrize("text", MODELS.values(), ids=MODELS)
def test_second_backend_agrees_with_onnxruntime(text: str, toy: Backend, tmp_path: Path) -> None:
    model = grouped(text)
    call, kernel = only_kernel(model)
    assert toy.features.unsupported_part(kernel) is None
    library = toy.build([kernel], Store(tmp_path))
    random = np.random.default_rng(3)
    feeds = {
        str(value.name): random.normal(
            size=[3 if dim == "N" else dim for dim in map(_dim, value.shape)]
        ).astype(np.float32)
        for value in model.graph.inputs
        if value.shape is not None
    }
    expected = session.run(session.create(ir.to_proto(model).SerializeToString(), optimizations="off"), feeds)
    results = load(library)(kernel)(*(feeds[str(value.name)] for value in call.inputs if value is not None))
    found = dict(zip(call.outputs, results, strict=True))
    for value, array in zip(model.graph.outputs, expected, strict=True):
        np.testing.assert_allclose(found[value], array, rtol=1e-5, atol=1e-6)


def _dim(dim: object) -> int | str:
    return dim if isinstance(dim, int) else "N"


def test_registry_finds_backends_by_device(toy: Backend) -> None:
    assert list(discover("tests.fusion.backends")) == ["array"]
    c, cuda = backend_for(CPU), backend_for(Device("cuda"))
    assert c is not None and cuda is not None
    assert (c.name, cuda.name, toy.name) == ("C", "CUDA", "numpy")


def test_only_the_registry_imports_backends() -> None:
    root = Path(graphopt.__file__).parent
    imports = re.compile(r"^\s*(?:from|import) graphopt\.fusion\.backends\.", re.M)
    offenders = [
        str(path.relative_to(root))
        for path in sorted(root.rglob("*.py"))
        if imports.search(path.read_text()) and not path.is_relative_to(root / "fusion" / "backends")
    ]
    assert offenders == []


def test_groups_with_unsupported_kernels_stay_with_onnxruntime(
    toy: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "g (float16[N,64] x) => (float16[N,64] y) { a = Sigmoid(x) b = Mul(a, x) y = Exp(b) }"
    assert len(kernels_of(grouped(text))) == 1
    monkeypatch.setattr("graphopt.fusion.lower_partition.backend_for", lambda device: toy)
    model = parse(text)
    with context_for(model) as cx:
        make_pipeline("fuse-groups").run(model, cx)
        assert "the device has no kernels for f16" in cx.ungrouped.values()
    assert kernels_of(model) == []


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_an_instruction_is_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "abs", Op("abs", lambda x: x * x * x, "({0} * {0} * {0})"))
    _, kernel = only_kernel(grouped("g (float[N,64] x) => (float[N,64] y) { a = Abs(x) y = Add(a, x) }"))
    x = np.random.default_rng(5).normal(size=(3, 64)).astype(np.float32)
    (expected,) = interpreter.run(kernel, [x])
    np.testing.assert_allclose(expected, x * x * x + x, rtol=1e-6)
    (found,) = Unit([kernel], tmp_path, levels()[0]).run(0, [x])
    np.testing.assert_array_equal(found, expected)


def test_devices_without_a_backend_use_the_one_of_the_cpu(
    toy: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = backend_for(CPU)
    monkeypatch.setattr("graphopt.fusion.backend.discover", lambda package: {"cpu": host})
    assert backend_for(Device("cuda")) is None
    assert backend_or_host(Device("cuda")) is host
    monkeypatch.setattr("graphopt.fusion.backend.discover", lambda package: {"cuda": toy})
    assert backend_or_host(Device("cuda")) is toy


def test_kernels_are_listed_for_the_device(toy: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.fusion.backend.discover", lambda package: {"cuda": toy})
    model = grouped("g (float[N,64] x) => (float[N,64] y) { a = Abs(x) y = Exp(a) }")
    found = graphopt.Compiler(device="cuda").list_kernels(model)
    assert found.source().startswith(toy.render([]).splitlines()[0])
