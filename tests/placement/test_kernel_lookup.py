"""The lookup of kernels: reasons and remedies."""

from __future__ import annotations

import pytest

from graphopt.ort.devices import Device
from graphopt.ort.recorded_kernels import Kernel
from graphopt.ort.target import Target
from graphopt.placement.kernel_lookup import Call, Missing, find_kernel
from graphopt.placement.prediction import Cause

CUDA = Target(Device("cuda"))


def lookup(
    op_type: str, version: int, *inputs: str | None, outputs: tuple[str, ...] = ()
) -> Kernel | Missing:
    types = tuple(None if name is None else f"tensor({name})" for name in inputs)
    results = tuple(f"tensor({name})" for name in outputs or [inputs[0] or ""])
    return find_kernel(CUDA, Call(op_type, "", version, types, results))


@pytest.mark.parametrize(
    ("op_type", "version", "inputs", "cause", "remedy"),
    [
        ("Det", 17, ("float",), Cause.NO_OPERATOR, None),
        ("Clip", 11, ("int64", "int64"), Cause.NO_TYPE, "--target-opset 12; its Clip has a kernel"),
        ("Clip", 13, ("int32", "int32"), Cause.NO_TYPE, "use int64 for input"),
        ("Equal", 9, ("float", "float"), Cause.NO_TYPE, "--target-opset 11; its Equal has a kernel"),
        ("OneHot", 13, ("int64", "int32", "float"), Cause.NO_TYPE, "use int64 for depth"),
    ],
)
def test_missing_kernels_have_causes_and_remedies(
    op_type: str, version: int, inputs: tuple[str, ...], cause: Cause, remedy: str | None
) -> None:
    found = lookup(op_type, version, *inputs)
    assert isinstance(found, Missing)
    assert (found.cause, found.remedy) == (cause, remedy)


def test_omitted_arguments_and_unknown_types_are_accepted() -> None:
    assert isinstance(lookup("Clip", 13, "float", None, "float"), Kernel)
    call = Call("Clip", "", 13, ("",), ("",))
    assert isinstance(find_kernel(CUDA, call), Kernel)


def test_kernels_without_a_last_version_are_only_for_the_definition_that_they_name() -> None:
    assert isinstance(lookup("Add", 13, "int64", "int64"), Kernel)
    assert isinstance(lookup("Add", 17, "int64", "int64"), Kernel)
    call = Call("Range", "", 27, ("tensor(float)",) * 3, ("tensor(float)",))
    assert isinstance(find_kernel(CUDA, call), Kernel)
