"""Errors: suggestions for unknown names, causes, and hints on files that can't be written."""

from __future__ import annotations

import errno
from pathlib import Path

from graphopt.errors import causes, nearest_names, unknown, unwritable


def test_names_that_contain_the_unknown_name_are_first() -> None:
    names = ["/encoder/layer.0/Dense/MatMul", "densa", "/encoder/dense"]
    for name in ("dense", "DENSE"):
        assert nearest_names(name, names)[:2] == ["/encoder/dense", "/encoder/layer.0/Dense/MatMul"]
    assert nearest_names("dense", names)[2:] == ["densa"]
    assert nearest_names("e", names) == []


def test_unknown_name_is_one_short_line() -> None:
    names = [f"pattern-{number}" for number in range(200)]
    message = str(unknown("pattern", "patern-7", names, "graphopt passes lists all"))
    assert message.startswith("no pattern is called 'patern-7'; nearest: pattern-7, ")
    assert message.endswith("(graphopt passes lists all)") and len(message) < 120


def test_dissimilar_names_are_not_suggested() -> None:
    assert nearest_names("nosuch", ["mish", "sequence", "transpose"]) == []
    assert nearest_names("O9", ["O3", "noopt"]) == ["O3"]
    assert str(unknown("pattern", "nosuch", ["mish"], "graphopt passes lists all")) == (
        "no pattern is called 'nosuch'; graphopt passes lists all"
    )


def test_known_names_are_listed_up_to_a_limit() -> None:
    names = [f"input_{number}" for number in range(300)]
    listed = "inputs: input_0, input_1, input_2, input_3, input_4, input_5, input_6, input_7 and 292 more"
    assert str(unknown("input", "mask", names)) == f"no input is called 'mask'; {listed}"
    near = "nearest: input_0, input_1, input_2 and 297 more"
    assert str(unknown("input", "input_", names)) == f"no input is called 'input_'; {near}  ({listed})"
    assert str(unknown("input", "x", [])) == "no input is called 'x'; inputs: none"
    assert str(unknown("policy", "x", ["a"], plural="policies")) == "no policy is called 'x'; policies: a"


def test_causes_that_form_a_circle_are_given_once() -> None:
    first, second = ValueError("first"), TypeError("second")
    first.__cause__, second.__cause__ = second, first
    assert list(causes(first)) == [first, second]


def test_causes_include_the_exception_that_was_being_handled() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")  # noqa: B904
    except ValueError as error:
        assert [type(cause) for cause in causes(error)] == [ValueError, KeyError]


def test_only_a_missing_folder_is_to_be_created(tmp_path: Path) -> None:
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory")
    assert unwritable(tmp_path / "model.onnx", missing).hint is None
    assert unwritable(tmp_path / "new" / "model.onnx", missing).hint == f"mkdir -p {tmp_path}/new"
    denied = PermissionError(errno.EACCES, "Permission denied")
    assert unwritable(tmp_path / "new" / "model.onnx", denied).hint is None
