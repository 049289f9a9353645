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

from tests.fusion.backends.c.runtime import samples
from tests.fusion.backends.c.runtime.samples import MARKED, NAME, RIGHT, affine, fresh, library, model

pytestmark = [samples.compiled, pytest.mark.slow]
X = np.linspace(-2, 2, 10_001, dtype=np.float32)
FEEDS = {"x": X, "c": np.array(True)}
VERSIONS = ["1.17.3", "1.19.2", "1.23.2", "1.26.0", onnxruntime.__version__]


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
        # the oldest was built for an older numpy
        more = ["numpy < 2"] if version == "1.17.3" else []
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
