"""Models with a template kernel for each case, and comparisons of their results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime import InferenceSession

from benchmarks.native_models import natives
from graphopt.errors import NoCompiler
from graphopt.fusion.backends.c.c_compiler import find_compiler
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice

#: Groups of all operators with templates, whether they are faster or not.
PIPELINE = "fuse-groups{kernels=all}"

#: A model, the bytes of the model with kernels, and the libraries of these.
Built = tuple[onnx.ModelProto, bytes, tuple[str, ...]]


def build(model: onnx.ModelProto, groups: int, folder: Path) -> Built:
    """The model with ``groups`` kernels, in libraries in ``folder``. Skips the test without a C compiler."""
    try:
        find_compiler(None)
    except NoCompiler:
        pytest.skip("no C compiler")
    (native,) = natives([model], PIPELINE, folder)
    assert len(native.groups) == groups
    return model, native.model, native.choice.libraries


def op_types(optimized: bytes) -> set[str]:
    """Operators of the main graph."""
    return {node.op_type for node in onnx.ModelProto.FromString(optimized).graph.node}


def original_and_optimized(built: Built) -> tuple[InferenceSession, InferenceSession]:
    """Sessions without and with kernels, of one thread."""
    model, optimized, libraries = built
    return (
        session.create(model.SerializeToString(), threads=1),
        session.create(optimized, threads=1, choice=SessionChoice(libraries=libraries)),
    )


def assert_special_values_agree(found: np.ndarray, expected: np.ndarray, case: object) -> None:
    """NaN and infinities are at the same positions."""
    special = ~np.isfinite(expected)
    assert np.array_equal(special, ~np.isfinite(found)), case
    assert np.array_equal(found[special], expected[special], equal_nan=True), case
