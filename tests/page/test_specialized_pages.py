"""Pages of bundles, profiles and executors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import graphopt
from graphopt.cli.main import main
from tests.model_testing import parse

MODEL = """
g (float[N, 4] x) => (float[N, 4] y) {
  [a] h = Exp(x)
  [b] y = Tanh(h)
}
"""


def _text(page: bytes) -> str:
    """The page before its data."""
    return page.decode().partition('<script type="application/json"')[0]


def test_the_page_of_a_bundle_shows_its_variants(tmp_path: Path) -> None:
    model, profile, bundle = tmp_path / "m.onnx", tmp_path / "p.json", tmp_path / "m.gopt"
    graphopt.save(parse(MODEL), model)
    assert main(["profile", str(model), "--input-shape", "x:3x4", "-o", str(profile)]) == 0
    assert main(["compile", str(model), "--profile", str(profile), "-o", str(bundle)]) == 0
    page = tmp_path / "m.html"
    command = ["report", str(model), str(bundle), "-o", str(page), "--show-profile", str(profile)]
    assert main(command) == 0
    text = _text(page.read_bytes())
    assert "Profile of 1 run" in text
    assert "files of the bundle:" in text


def test_the_page_of_an_executor_shows_its_plans() -> None:
    executor = graphopt.compile(parse(MODEL))
    for _ in range(3):
        executor({"x": np.ones((3, 4), np.float32)})
    executor.wait()
    text = _text(graphopt.report(parse(MODEL), executor=executor, verify=False))
    assert "Plans of the executor" in text
