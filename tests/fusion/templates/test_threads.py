"""Results of all templates have the same bits with any number of threads, at each CPU level."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphopt import ir
from graphopt.fusion.group_functions import kernels_of
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from tests.fusion.backends.c.harness import Unit
from tests.fusion.backends.c.runtime import template_model
from tests.fusion.backends.c.runtime.samples import compiled
from tests.fuzz.kernels.batches import cpu_levels, library
from tests.fuzz.products.examination import SMALL_CHUNKS
from tests.fuzz.products.isolated_kernels import calls

pytestmark = compiled

#: Enough rows for several chunks of each template.
_BATCH = 70


@pytest.fixture(name="grouped", scope="module")
def _grouped() -> ir.Model:
    return template_model.grouped()


@pytest.mark.parametrize("level", cpu_levels())
def test_bits_do_not_depend_on_threads(grouped: ir.Model, level: int, tmp_path: Path) -> None:
    path = str(library(list(kernels_of(grouped)), tmp_path, (level,), more=("-O0", *SMALL_CHUNKS)))
    choice = SessionChoice(libraries=(path,), cpu_level=level)
    feeds = template_model.feeds(_BATCH)
    original = session.create(template_model.model().SerializeToString(), threads=1)
    expected = session.run(original, feeds)
    results = []
    for threads in (1, 2, 8):
        runner = session.create(ir.to_bytes(grouped), threads=threads, choice=choice)
        results += [session.run(runner, feeds) for _ in range(3)]
    names = [output.name for output in original.get_outputs()]
    for place, name in enumerate(names):
        wanted = np.asarray(expected[place])
        for found in results:
            assert np.asarray(found[place]).tobytes() == np.asarray(results[0][place]).tobytes(), name
        tolerance = 1 if wanted.dtype == np.int8 else 2e-5
        np.testing.assert_allclose(
            results[0][place].astype(float), wanted, rtol=0, atol=tolerance, err_msg=name
        )


def test_the_model_has_several_chunks_of_each_template(grouped: ir.Model, tmp_path: Path) -> None:
    kernels = list(kernels_of(grouped))
    (found,) = calls(ir.to_bytes(grouped), kernels, [template_model.feeds(_BATCH)])
    unit = Unit(kernels, tmp_path, cpu_levels()[-1], ("-O0", "-Wno-error", *SMALL_CHUNKS))
    chunks: dict[str, int] = {}
    for call in found:
        unit.run(kernels.index(call.kernel), call.operands, constant=True)
        chunks[call.kernel.template] = max(chunks.get(call.kernel.template, 0), unit.chunks)
    assert min(chunks.values()) > 1, chunks
