"""guard-groups and lower-fallbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.context import Observer, Options, Refusal
from graphopt.ops import graphopt_operators
from graphopt.profile import ValueProfile
from graphopt.profile.annotations import annotate
from graphopt.specialization.guard_counts import count_guards
from tests.model_testing import ops, run_pipeline
from tests.transforms.guarded_models import (
    chosen_rows,
    growing_rows,
    rows_with,
    selected_and_growing_rows,
    selected_rows,
    twice_selected_rows,
    weights_in_branches,
)

#: The passes whose result onnxruntime runs.
GUARDED = "guard-groups,lower-fallbacks,dce"


class _Refusals(Observer):
    """Records refusals."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def refused(self, refusal: Refusal) -> None:
        if refusal.rule in ("guard-groups", "lower-fallbacks"):
            self.found[refusal.node] = refusal.reason


def _float(*dims: int | str) -> ValueProfile:
    return ValueProfile("tensor(float)", dims)


def _int(*dims: int | str) -> ValueProfile:
    return ValueProfile("tensor(int64)", dims)


def _guarded(model: ir.Model, pipeline: str = GUARDED, /, **seen: ValueProfile) -> ir.Model:
    annotate(model, seen)
    run_pipeline(model, pipeline)
    ir.validate(model)
    return model


def _rows(seen: dict[str, ValueProfile]) -> int | str:
    """The number of rows of the only annotated value: its last size for NonZero, else its first."""
    (profile,) = seen.values()
    assert profile.shape is not None
    return profile.shape[1] if profile.type == "tensor(int64)" else profile.shape[0]


def _selected(positive: int) -> dict[str, Any]:
    return {"x": rows_with(positive)}


def _chosen(flag: bool) -> dict[str, Any]:
    return {"x": rows_with(2)[:4, :2], "flag": np.array(flag)}


def _growing(rows: int, trips: int) -> dict[str, Any]:
    return {"x": rows_with(2)[:rows, :2], "trips": np.array(trips)}


def _equal(original: ir.Model, guarded: ir.Model, feeds: Mapping[str, Any]) -> bool:
    """Whether both return the same bits, with onnxruntime's optimizations off."""
    expected, actual = (graphopt.run(model, feeds, optimizations="off") for model in (original, guarded))
    return expected.keys() == actual.keys() and all(
        actual[name].shape == array.shape and actual[name].tobytes() == array.tobytes()
        for name, array in expected.items()
    )


CASES = {
    "NonZero": (selected_rows, {"found": _int(1, 3)}, [_selected(positive) for positive in (3, 2, 0, 6)]),
    "If": (chosen_rows, {"rows": _float(2, 2)}, [_chosen(True), _chosen(False)]),
    "Loop": (growing_rows, {"state": _float(4, 2)}, [_growing(3, 2), _growing(1, 4), _growing(4, 0)]),
}


def _model(name: str, opset: int) -> ir.Model:
    make: Callable[..., ir.Model] = CASES[name][0]
    if opset >= 13:
        return make(opset=opset)
    return graphopt.optimize(make(), pipeline=f"convert-opset{{target={opset}}}", verify=False).model


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
@pytest.mark.parametrize("name", CASES)
def test_hits_and_misses_return_the_bits_of_the_original(name: str, opset: int) -> None:
    _, seen, runs = CASES[name]
    original, guarded = _model(name, opset), _guarded(_model(name, opset), **seen)
    assert graphopt_operators.type_checks_of(guarded) == []
    assert any(graphopt_operators.guarded_branch(node) for graph in ir.graphs_of(guarded) for node in graph)
    assert all(_equal(original, guarded, feeds) for feeds in runs)


def test_a_group_reads_results_of_another_group() -> None:
    original = twice_selected_rows()
    guarded = _guarded(twice_selected_rows(), found=_int(1, 3), found2=_int(1, 1))
    first, second = (
        branch for node in guarded.graph if (branch := graphopt_operators.guarded_branch(node)) is not None
    )
    results = [output for node in guarded.graph if node.op_type == "If" for output in node.outputs]
    assert not set(ir.captures(first)) & set(results) and set(ir.captures(second)) & set(results)
    for positive, selected in ((3, 1), (3, 3), (2, 1), (2, 2), (6, 6)):
        x = rows_with(positive)
        x[:, 1] = np.arange(6) < selected
        assert _equal(original, guarded, {"x": x}), (positive, selected)


def test_a_group_has_only_the_nodes_that_specialization_changes() -> None:
    guarded = _guarded(selected_rows(), "guard-groups", found=_int(1, 3))
    assert ops(guarded)[:5] == ["Gather", "Greater", "NonZero", "Squeeze", "Gather"]
    assert ops(guarded)[-3:] == ["TypeCheck", "If", "Relu"]


def test_a_check_names_only_facts_that_the_model_does_not_imply() -> None:
    check = graphopt_operators.type_checks_of(_guarded(selected_rows(), "guard-groups", found=_int(1, 3)))[0]
    assert [value and value.name for value in check.inputs] == ["chosen"]
    assert check.attributes["seen"].as_string() == '[{"type": "", "shape": [3, "?"]}]'


def test_branches_share_weights() -> None:
    plain, guarded = selected_rows(width=32), _guarded(selected_rows(width=32), found=_int(1, 3))
    extra = ir.initializer_bytes(guarded) - ir.initializer_bytes(plain)
    assert extra < 256, extra
    tensors = [slot.tensor for slot in ir.slots(guarded) if slot.tensor.nbytes == 32 * 32 * 4]
    assert len(tensors) == 1


def test_branches_share_weights_of_bodies() -> None:
    plain = weights_in_branches()
    guarded = _guarded(weights_in_branches(), "guard-groups{cost=0},lower-fallbacks,dce", found=_int(1, 3))
    assert [node.op_type for node in guarded.graph][-1] == "If"
    assert ir.initializer_bytes(guarded) - ir.initializer_bytes(plain) < 256
    assert [slot.tensor.nbytes for slot in ir.slots(guarded) if slot.tensor.nbytes >= 256] == [576]
    for positive in (3, 5, 1):
        assert _equal(plain, guarded, {"x": rows_with(positive, width=12)})


def test_a_specialized_version_has_guarded_groups_in_its_bodies() -> None:
    """A hit of the outer guard may be followed by misses of the inner one, and an outer miss checks no more."""
    original, guarded = selected_and_growing_rows(), selected_and_growing_rows()
    pipeline = "guard-groups{cost=0},lower-fallbacks,dce"
    _guarded(guarded, pipeline, found=_int(1, 3), state=_float(4, 2))
    counted = count_guards(guarded)
    assert counted is not None
    counter = counted.counter
    for positive, trips in ((3, 2), (3, 4), (4, 2), (1, 3), (0, 1), (3, 0)):
        feeds = {"x": rows_with(positive)[:, :2], "trips": np.array(trips)}
        assert _equal(original, guarded, feeds)
        counter.add(graphopt.run(counted.model, feeds)[counter.output])
    outer, inner = counter.counts
    assert (outer.group, outer.hits, outer.misses) == ("grown", 3, 3)
    assert (inner.group, inner.hits, inner.misses) == ("psum_special", 2, 4)


def test_groups_with_kernels_are_parts_of_guarded_groups() -> None:
    original, refusals = selected_rows(), _Refusals()
    guarded = selected_rows()
    annotate(guarded, {"found": _int(1, 3)})
    options = Options(kernels=True)
    run_pipeline(
        guarded, "fuse-groups,guard-groups{cost=2},lower-fallbacks,dce", options, observers=(refusals,)
    )
    assert any(graphopt_operators.guarded_branch(node) for node in guarded.graph), refusals.found
    called = {
        node.op_type for graph in ir.graphs_of(guarded) for node in graph if node.domain == "graphopt.native"
    }
    assert called == {key[1] for key in guarded.functions if key[0] == "graphopt.native"}
    for positive in (3, 5):
        assert _equal(original, guarded, _selected(positive))


def test_functions_that_are_autodiff_groups_have_guarded_groups() -> None:
    original, guarded = selected_rows(), selected_rows()
    annotate(guarded, {"found": _int(1, 3)})
    run_pipeline(guarded, "create-autodiff-subgraphs,guard-groups,lower-fallbacks,dce")
    assert [key[0] for key in guarded.functions] == ["graphopt.autodiff"]
    function = next(iter(guarded.functions.values()))
    assert any(graphopt_operators.guarded_branch(node) for node in function)
    for positive in (3, 5, 0):
        assert _equal(original, guarded, _selected(positive))


def test_weights_are_written_once(tmp_path: Any) -> None:
    guarded = _guarded(selected_rows(width=64), found=_int(1, 3))
    assert graphopt.save(guarded, tmp_path / "m.onnx")[0].stat().st_size < 1.5 * 64 * 64 * 4


def test_a_group_that_saves_too_little_is_not_guarded() -> None:
    model, refusals = selected_rows(), _Refusals()
    annotate(model, {"found": _int(1, 3)})
    before = ir.print_model(model)
    run_pipeline(model, "guard-groups{cost=30}", observers=(refusals,))
    assert ir.print_model(model) == before
    assert refusals.found["Range(prange)"] == (
        "specializing its group saves about 12 of 16 executed nodes, and a guard costs 30"
    )
    assert refusals.found["NonZero(found)"] == "its result is what a guard checks"


@pytest.mark.parametrize("name", CASES)
def test_pinned_shapes_are_known_to_onnxruntime(name: str) -> None:
    make, seen, runs = CASES[name]
    original, guarded = make(), _guarded(make(), "guard-groups{pin},lower-fallbacks,dce", **seen)
    nodes = [node for graph in ir.graphs_of(guarded) for node in graph]
    (branch,) = [branch for node in nodes if (branch := graphopt_operators.guarded_branch(node)) is not None]
    sizes = [ir.constant_of(node.inputs[1]) for node in branch if node.op_type == "Reshape"]
    assert [int(tensor.numpy()[0]) for tensor in sizes if tensor is not None] == [_rows(seen)]
    for feeds in runs:
        assert _equal(original, guarded, feeds)
        expected, actual = graphopt.run(original, feeds), graphopt.run(guarded, feeds)
        assert all(np.array_equal(actual[output], array) for output, array in expected.items())


def test_models_without_annotations_are_unchanged() -> None:
    model = selected_rows()
    before = ir.to_bytes(model)
    run_pipeline(model, GUARDED.removesuffix(",dce"))
    assert ir.to_bytes(model) == before


def test_guarding_twice_changes_nothing() -> None:
    once = _guarded(selected_rows(), "guard-groups", found=_int(1, 3))
    before = ir.print_model(once)
    run_pipeline(once, "guard-groups")
    assert ir.print_model(once) == before


def test_remove_profile_nodes_restores_the_general_version() -> None:
    model = _guarded(selected_rows(), "guard-groups,remove-profile-nodes", found=_int(1, 3))
    assert sorted(ops(model)) == sorted(ops(selected_rows()))
    assert _equal(selected_rows(), model, _selected(3))


def test_a_stopped_pass_leaves_the_model_valid() -> None:
    model = growing_rows()
    annotate(model, {"state": _float(4, 2)})
    run_pipeline(model, "guard-groups", gate=lambda action: False)
    assert ops(model) == ["Loop"]


def test_malformed_checks_are_refused() -> None:
    model, refusals = _guarded(selected_rows(), "guard-groups", found=_int(1, 3)), _Refusals()
    check = graphopt_operators.type_checks_of(model)[0]
    with graphopt.api.context_for(model) as cx:
        cx.edit.set_attribute(check, "seen", '[{"type": 3}]')
    run_pipeline(model, "lower-fallbacks", observers=(refusals,))
    assert graphopt_operators.type_checks_of(model) == [check]
    assert set(refusals.found.values()) == {"its assumptions are malformed"}
