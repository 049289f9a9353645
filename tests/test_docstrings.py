"""Examples in docstrings run unchanged, in a folder with a small classifier ``model.onnx``."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import graphopt
from tests.model_testing import parse

ROOT = Path(graphopt.__file__).parent
CLASSIFIER = """
classifier (float[batch, 4] x) => (float[batch, 3] logits)
<float[4, 3] weight = {1., 0., 0., 0., 1., 0., 0., 0., 1., 0., 0., 0.}, float[3] bias = {0., 0., 0.}> {
    kept = Identity(x)
    product = MatMul(kept, weight)
    logits = Add(product, bias)
}
"""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _modules() -> list[str]:
    """The modules with an example that is not skipped."""
    runs = re.compile(r">>> (?!.*doctest: \+SKIP)")
    names = []
    for path in sorted(ROOT.rglob("*.py")):
        if runs.search(path.read_text(encoding="utf-8")):
            name = ".".join(("graphopt", *path.relative_to(ROOT).with_suffix("").parts))
            names.append(name.removesuffix(".__init__"))
    return names


@pytest.mark.parametrize("name", _modules())
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(graphopt.to_proto(parse(CLASSIFIER)), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    given = {"graphopt": graphopt, "np": np, "onnx": onnx, "x": np.ones((2, 4), np.float32)}
    given |= {"labels": np.array([0, 2]), "model": "model.onnx"}
    tests = doctest.DocTestFinder().find(module, globs=given | vars(module))
    assert any(test.examples for test in tests)
    for test in tests:
        runner = doctest.DocTestRunner(optionflags=FLAGS)
        printed: list[str] = []
        runner.run(test, out=printed.append)
        assert not runner.failures, "".join(printed)
