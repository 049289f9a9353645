"""One library with published versions of onnxruntime, from PyPI and npm, in Python and C."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from graphopt.fusion.group_functions import kernels_of
from graphopt.ort import session
from tests.fusion.backends.c.runtime import samples, template_model
from tests.fusion.backends.c.runtime.samples import MARKED, NAME, RIGHT, affine, fresh, library, model
from tests.fuzz.kernels.batches import cpu_levels
from tests.fuzz.kernels.batches import library as build_kernels

pytestmark = [samples.compiled, pytest.mark.slow]
X = np.linspace(-2, 2, 10_001, dtype=np.float32)
FEEDS = {"x": X, "c": np.array(True)}
#: One of each minor version since the first one that is supported.
VERSIONS = [
    "1.17.3", "1.18.1", "1.19.2", "1.20.1", "1.21.1", "1.22.1", "1.23.2", "1.24.4", "1.25.1", "1.26.0", "1.27.0",
    "1.28.0", "1.29.0", "1.30.0", onnxruntime.__version__,
]  # fmt: skip
#: These were built for numpy 1.
_OLD = ("1.17.3", "1.18.1")


def _fetch(folder: Path, *command: str) -> None:
    try:
        found = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"{command[0]} fetches nothing here: {error}")
    if found.returncode != 0:
        pytest.skip(f"can't fetch {command[-1]}: {found.stderr.strip().splitlines()[-1:]}")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("versions")


def _python(cache, version):
    """A folder with onnxruntime of that version for Python; ``None`` for the installed one."""
    if version == onnxruntime.__version__:
        return None
    folder = cache / f"python-{version}"
    if not folder.exists():
        more = ["numpy < 2"] if version in _OLD else []
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:"]
        _fetch(cache, *pip, "--target", str(folder), *more, f"onnxruntime=={version}")
    return folder


def _shared(cache, version):
    """onnxruntime of that version for C, from the package for Python, or else from that for node."""
    if version == onnxruntime.__version__:
        return samples.shared_runtime()
    for path in sorted((cache / f"python-{version}").glob("onnxruntime/capi/libonnxruntime.so.*")):
        return path
    folder = cache / f"node-{version}"
    if not folder.exists():
        if shutil.which("npm") is None:
            pytest.skip("there is no npm to fetch an onnxruntime for C with")
        _fetch(cache, "npm", "pack", "--silent", f"onnxruntime-node@{version}")
        with tarfile.open(cache / f"onnxruntime-node-{version}.tgz") as archive:
            archive.extractall(folder, filter="data")
    return next(iter(sorted(folder.glob(f"**/linux/x64/libonnxruntime.so.{version}"))))


@pytest.fixture(scope="module")
def libraries(cache):
    return {
        kind: library(cache / kind, {NAME: text}) for kind, text in (("right", RIGHT), ("marked", MARKED))
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_versions_from_python(cache, libraries, tmp_path, version):
    folder = _python(cache, version)
    environ = os.environ | ({} if folder is None else {"PYTHONPATH": str(folder)})
    file = tmp_path / "model.onnx"
    file.write_bytes(model().SerializeToString())
    expected = affine(X)
    for optimized in (False, True):
        for path in (None, libraries["right"]):
            told, found = fresh(file, FEEDS, path, optimized=optimized, environ=environ)
            assert told == version
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array)
        _, marked = fresh(file, FEEDS, libraries["marked"], optimized=optimized, environ=environ)
        assert {float(np.round(marked[name][0] - expected[name][0])) % 1000 for name in expected} == {0}
        assert all(marked[name][0] != expected[name][0] for name in expected)  # the kernel ran


@pytest.mark.parametrize("version", VERSIONS)
def test_versions_from_c(cache, libraries, tmp_path, version):
    _python(cache, version)
    runtime = _shared(cache, version)
    host, file = samples.make_host(tmp_path), tmp_path / "model.onnx"
    file.write_bytes(model().SerializeToString())
    expected = affine(X)
    dtypes = dict.fromkeys(expected, np.dtype(np.float32))
    for optimized in (False, True):
        for path in (None, libraries["right"]):
            found = samples.in_host(host, runtime, file, FEEDS, dtypes, path, optimized=optimized)
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array)
        marked = samples.in_host(host, runtime, file, FEEDS, dtypes, libraries["marked"], optimized=optimized)
        assert all(marked[name][0] != expected[name][0] for name in expected)


@pytest.fixture(scope="module")
def templates(cache):
    """The path of a library with template kernels, and of a model whose functions return negated results."""
    grouped, file = template_model.grouped(), cache / "templates.onnx"
    file.write_bytes(template_model.with_wrong_functions(grouped).SerializeToString())
    return str(build_kernels(kernels_of(grouped), cache / "templates", cpu_levels())), file


@pytest.fixture(scope="module")
def products():
    """The results of the original model in the installed version, by batch."""
    runner = session.create(template_model.model().SerializeToString(), threads=1)
    names = [output.name for output in runner.get_outputs()]
    return {
        batch: dict(zip(names, session.run(runner, template_model.feeds(batch)), strict=True))
        for batch in template_model.BATCHES
    }


def _check_products(found, expected, sign=1):
    for name, array in expected.items():
        actual = found[name].reshape(array.shape).astype(np.float64) * sign
        # Sums of up to 144 products, in another order; a rounded number may be the next one
        np.testing.assert_allclose(
            actual, array, rtol=0, atol=1 if array.dtype == np.int8 else 2e-5, err_msg=name
        )


@pytest.mark.parametrize("version", VERSIONS)
def test_templates_from_python(cache, templates, products, version):
    folder, (path, file) = _python(cache, version), templates
    environ = os.environ | ({} if folder is None else {"PYTHONPATH": str(folder)})
    for batch, expected in products.items():
        feeds = template_model.feeds(batch)
        for optimized in (False, True):
            told, found = fresh(file, feeds, path, optimized=optimized, environ=environ)
            assert told == version
            _check_products(found, expected)
        _check_products(fresh(file, feeds, None, environ=environ)[1], expected, sign=-1)


@pytest.mark.parametrize("version", VERSIONS)
def test_templates_from_c(cache, templates, products, tmp_path, version):
    _python(cache, version)
    runtime, host, (path, file) = _shared(cache, version), samples.make_host(tmp_path), templates
    for batch, expected in products.items():
        dtypes = {name: array.dtype for name, array in expected.items()}
        found = samples.in_host(host, runtime, file, template_model.feeds(batch), dtypes, path)
        _check_products(found, expected)


def test_too_old_version_is_reported(cache, libraries, tmp_path):
    runtime = _shared(cache, "1.16.3")
    host, file = samples.make_host(tmp_path), tmp_path / "model.onnx"
    file.write_bytes(model().SerializeToString())
    found = subprocess.run(
        [str(host), str(runtime), str(file), libraries["right"], "99"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 1
    assert found.stderr.strip() == "graphopt's kernels need onnxruntime 1.17 or newer; this is 1.16.3"
