"""The table of kernels is the registry of the installed wheel."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest

from graphopt.ort import recorded_kernels
from graphopt.ort.recorded_kernels import Kernel, recorded
from tests.placement import cuda_stand_in


def test_the_table_is_that_of_the_installed_wheel(libraries: Path) -> None:
    if recorded().version != onnxruntime.__version__:
        pytest.skip(
            f"the table is of onnxruntime {recorded().version}, {onnxruntime.__version__} is installed"
        )
    written = cuda_stand_in.run(libraries, "tests.placement.record_kernels", "--print")
    path = Path(recorded_kernels.__file__).with_name("cuda_kernels.txt")
    assert written == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "line",
    [
        "ReduceSum 13- host=1 T=double,float",
        "com.microsoft::RemovePadding 1- host-out=3 T=float",
        "SequenceAt 11-20 host=1 S=seq(tensor(bool)),seq(tensor(float)) T=bool,float",
    ],
)
def test_lines_are_read_as_they_are_written(line: str) -> None:
    key, kernel = recorded_kernels.parse(line)
    assert recorded_kernels.text("1", [(key, kernel)]).splitlines()[-1] == line


def test_listed_kernels_have_the_memory_of_recorded_ones() -> None:
    table = recorded_kernels.RecordedKernels(
        "1", {("", "Pad"): (Kernel(11, 12, (), frozenset({1})), Kernel(13, 17, (), frozenset({1, 2})))}
    )
    listed = Kernel(18, 18, ())
    assert table.with_memory(("", "Pad"), listed).host_inputs == {1, 2}
    assert table.with_memory(("", "Pad"), Kernel(2, 10, ())).host_inputs == frozenset()
    assert table.with_memory(("", "Tile"), listed) is listed
