"""Networks with pre- and postprocessing agree with and without native kernels, at each CPU level."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.kernel_models import PATTERNS, Example, networks, processing
from benchmarks.native_models import natives
from graphopt.errors import NoCompiler
from graphopt.fusion.backends.c.c_compiler import find_compiler
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from tests.fuzz.kernels.batches import cpu_levels

SMALL: dict[str, Callable[[], Example]] = {
    "image": partial(processing.image_input, 37, 53),
    "detector": partial(processing.detector_output, 7, (8, 4)),
    "sound": partial(processing.log_mel, 101, 13),
    "losses": partial(processing.losses, 11, 67),
    "depthwise": partial(networks.depthwise, 32, (8, 16), 2),
    "llama": partial(networks.llama, 32, 1, 4, 48, 50, 9),
    "bert": partial(networks.bert, 32, 1, 4, 48, 50, 9),
    "cnn": partial(networks.cnn, 16, (8, 16)),
    **{name: partial(build, 64 << 10) for name, build in PATTERNS.items()},
}
#: Models without groups.
WITHOUT = {"cnn"}
#: Tolerance, relative to the largest element of an output.
TOLERANCE = 1e-5


def _agree(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, two in zip(found, expected, strict=True):
        assert one.shape == two.shape and one.dtype == two.dtype
        a, b = one.astype(np.float64), two.astype(np.float64)
        assert np.abs(a - b).max() <= TOLERANCE * max(1.0, np.abs(b).max())


@pytest.mark.parametrize(
    "names", [("image", "sound", "llama", "cnn"), pytest.param(tuple(SMALL), marks=pytest.mark.slow)]
)
def test_kernels_do_not_change_results(names: tuple[str, ...], tmp_path: Path) -> None:
    try:
        find_compiler(None)
    except NoCompiler:
        pytest.skip("no C compiler")
    examples = {name: SMALL[name]() for name in names}
    made = natives([example.model for example in examples.values()], "native", tmp_path)
    without = {name for name, native in zip(examples, made, strict=True) if not native.groups}
    assert without == WITHOUT & set(names)
    for example, native in zip(examples.values(), made, strict=True):
        original = session.create(example.model.SerializeToString(), threads=1)
        expected = session.run(original, example.feeds)
        choices = [SessionChoice(libraries=native.choice.libraries, cpu_level=n) for n in cpu_levels()]
        for choice in (SessionChoice(), *choices):
            for optimizations in ("off", "default"):
                running = session.create(native.model, optimizations=optimizations, threads=2, choice=choice)
                _agree(session.run(running, example.feeds), expected)
