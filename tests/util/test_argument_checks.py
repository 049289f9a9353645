"""Arguments of public functions: one clear line for wrong types and names, before any work."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.util.argument_checks import _evaluated, checked
from tests.model_testing import ops, parse

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] x) => (float[N, 4] y) { a = Identity(x)  b = Identity(a)  y = Relu(b) }"""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: found
    for name in graphopt.__all__
    if isinstance(found := getattr(graphopt, name), types.FunctionType)
}
ARGUMENTS = [
    (name, parameter.name)
    for name, function in FUNCTIONS.items()
    for parameter in inspect.signature(function).parameters.values()
    if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    and "ModelLike" not in parameter.annotation  # tests/ir/test_interoperability.py
]


class _Wrong:
    pass


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_every_argument_of_every_function_is_checked(name: str, argument: str) -> None:
    with pytest.raises(TypeError, match=rf"^{argument} of {name}\(\) must be .*, not _Wrong$"):
        FUNCTIONS[name](**{argument: _Wrong()})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_unknown_keywords_are_answered_with_the_nearest(name: str) -> None:
    parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
    if name != "compile" and any(one.kind is one.VAR_KEYWORD for one in parameters):
        return  # settings of an optimizer, which it checks
    named = [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    with pytest.raises(TypeError, match=rf"^no argument of {name}\(\) is called 'zzz'; help\({name}\) "):
        FUNCTIONS[name](zzz=1)
    for argument in named:
        if argument in {"rule": ("by", "fuses", "last"), "save": ("external_data",)}.get(name, ()):
            continue  # former names, which are not suggested
        with pytest.raises(TypeError, match=rf"is called '{argument}x'; nearest: .*\b{argument}\b"):
            FUNCTIONS[name](**{f"{argument}x": None})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_opset": "17"}, "target_opset of optimize() must be int or None, not '17'"),
        ({"target_opset": True}, "target_opset of optimize() must be int or None, not True"),
        ({"exact": "yes"}, "exact of optimize() must be bool or None, not 'yes'"),
        ({"skip": ["gemm", 7]}, "skip of optimize() must be list[str] or None, not ['gemm', 7]"),
        ({"dims": {"N": "1"}}, "dims of optimize() must be dict[str, int] or None, not {'N': '1'}"),
        ({"device": 7}, "device of optimize() must be str or Device or None, not 7"),
        ({"share_buffers": "x"}, "share_buffers of optimize() must be list[tuple[str, str]], not 'x'"),
        (
            {"verfy": False},
            "no argument of optimize() is called 'verfy'; nearest: verify, verify_each  (help(optimize) lists all)",
        ),
    ],
)
def test_messages(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        graphopt.optimize("model.onnx", **arguments)
    assert str(caught.value) == message


def test_text_with_one_meaning_is_accepted() -> None:
    model = parse(MODEL)
    result = graphopt.optimize(model, dims="N=3", verify=False).to_proto()
    assert result.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3
    ranged = graphopt.optimize(model, dim_ranges="N=1:8", verify=False)
    assert any("1 ≤ N ≤ 8" in remark for remark in ranged.report.remarks)
    kept = graphopt.optimize(model, skip="drop-identity", pipeline="peephole", verify=False)
    assert ops(kept.model).count("Identity") == 2
    with pytest.raises(graphopt.UsageError, match="no pass or rule is called 'gem'; nearest: gemm"):
        graphopt.optimize(model, skip="gem")
    with pytest.raises(graphopt.UsageError, match="can't read the dim 'N'"):
        graphopt.optimize(model, dims="N")
    with pytest.raises(graphopt.UsageError, match="no dynamic dim is called 'batch'; dynamic dims: N"):
        graphopt.optimize(model, dims="batch=1")


def test_a_choice_is_named_by_the_nearest() -> None:
    with pytest.raises(graphopt.UsageError, match=r"optimizations of run\(\) is called 'of'; nearest: off "):
        graphopt.run(parse(MODEL), {}, optimizations="of")  # type: ignore[arg-type]


def test_missing_folder_has_a_hint_with_mkdir(tmp_path: Path) -> None:
    target = tmp_path / "missing" / "folder" / "m.onnx"
    result = graphopt.optimize(parse(MODEL), verify=False)
    with pytest.raises(graphopt.UsageError, match=r"can't write .*m\.onnx: No such file") as caught:
        result.save(target)
    assert caught.value.hint == f"mkdir -p {target.parent}"
    with pytest.raises(TypeError, match=r"no argument of save\(\) is called 'weight'; nearest: weights"):
        result.save(target, weight=True)  # type: ignore[call-arg]


def test_kinds() -> None:
    @checked
    def sample(
        *numbers: int,
        flag: bool | None = None,
        ratio: float = 1.0,
        names: Sequence[str] = (),
        pairs: Iterable[tuple[str, int]] = (),
        sizes: Mapping[str, int] | None = None,
        mode: Literal["fast", "slow"] = "fast",
        action: Callable[[], None] | None = None,
        proto: onnx.ModelProto | None = None,
    ) -> dict[str, Any]:
        return {key: value for key, value in locals().items() if value is not None}

    found = sample(1, np.int64(2), flag=np.bool_(True), ratio=2, names="abc", pairs=("a", 1), sizes="n=1,m=2")  # type: ignore[arg-type]
    assert found["numbers"] == (1, 2) and found["names"] == ("abc",)
    assert found["pairs"] == (("a", 1),) and found["sizes"] == {"n": 1, "m": 2}
    assert list(sample(pairs=(pair for pair in [("a", 1)]))["pairs"]) == [("a", 1)]
    wrong: list[dict[str, Any]] = [
        {"flag": 1},
        {"ratio": "1"},
        {"ratio": True},
        {"names": (name for name in "ab")},
        {"names": [1]},
        {"pairs": [("a", "b")]},
        {"pairs": [("a",)]},
        {"sizes": [1]},
        {"sizes": {1: 1}},
        {"mode": 1},
        {"action": 1},
        {"proto": 1},
        {"proto": np.ones(100)},
    ]
    for arguments in wrong:
        with pytest.raises(TypeError, match=rf"^{next(iter(arguments))} of sample\(\) must be ") as caught:
            sample(**arguments)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 120
    with pytest.raises(TypeError, match=r"^numbers of sample\(\) must be int, not 'a'$"):
        sample(1, "a")  # type: ignore[arg-type]


def test_signatures_and_documentation_stay() -> None:
    signature = inspect.signature(graphopt.optimize)
    assert str(signature.return_annotation) == "Result" and "target_opset" in signature.parameters
    assert (graphopt.optimize.__doc__ or "").startswith("Make a model smaller")
    assert graphopt.optimize.__module__ == "graphopt.compiler.optimization"
    with pytest.raises(TypeError, match=r"optimize\(\) missing 1 required positional argument: 'model'"):
        graphopt.optimize()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"optimize\(\) takes 1 positional argument but 2 were given"):
        graphopt.optimize("a", "b")  # type: ignore[misc]


def test_arguments_are_accepted_where_no_source_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs frozen into one file have no sources, and imports for type checkers can't be resolved."""

    def no_source(module: object) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr("inspect.getsource", no_source)
    assert _evaluated("Device | None", optimize_like) is Any
    assert _evaluated("int | None", optimize_like) == int | None


def optimize_like() -> None:
    """A function of this module, which imports no Device."""


def test_numbers_of_numpy_become_numbers_of_python() -> None:
    @checked
    def half(seconds: float | None = None) -> object:
        return seconds

    assert isinstance(half(np.float32(0.5)), float)


def test_iterators_may_be_read_more_than_once() -> None:
    model = parse("g (float[N] x, float[N] t, float[N] w) => (float[N] y) { y = Mul(x, w) }")
    joint = graphopt.differentiate(model, "mse:y,t", (name for name in ["w"]))
    assert list(joint.gradients) == ["w"]
    with pytest.raises(TypeError, match="not"):
        graphopt.optimize(model, skip=(number for number in [3]))  # type: ignore[misc]
