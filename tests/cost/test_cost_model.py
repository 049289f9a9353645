"""Decisions of cost tables: interpolation, noise, unknown sizes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from graphopt.cost import Axis, Costs, Grid, shipped
from graphopt.cost.cost_model import read
from graphopt.errors import UsageError

LENGTH = Axis("length", (32, 128, 512), 128)


def table(*grids: Grid) -> Costs:
    return Costs("made-up figures", "cpu", "nowhere", grids)


def grid(op: str, *ratios: float, case: str = "", dtype: str = "float", band: float = 0.98) -> Grid:
    return Grid(op, case, dtype, (LENGTH,), ratios, (band,) * len(ratios))


def test_ratios_are_interpolated_over_the_logarithm_of_the_size() -> None:
    costs = table(grid("A", 0.4, 0.8, 0.8))
    assert costs.weigh("A", length=32).ratio == pytest.approx(0.4)
    assert costs.weigh("A", length=64).ratio == pytest.approx((0.4 * 0.8) ** 0.5)
    assert costs.weigh("A", length=128).ratio == pytest.approx(0.8)


@pytest.mark.parametrize(("length", "ratio"), [(1, 0.4), (4096, 0.9), (None, 0.8), (0, 0.8), ("n", 0.8)])
def test_sizes_beyond_the_figures_use_the_nearest_and_unknown_ones_the_default(
    length: object, ratio: float
) -> None:
    assert table(grid("A", 0.4, 0.8, 0.9)).weigh("A", length=length).ratio == pytest.approx(ratio)


def test_several_axes_are_interpolated_together() -> None:
    axes = (Axis("rows", (1, 4), 1), Axis("width", (16, 64), 64))
    costs = table(Grid("A", "", "float", axes, (0.1, 0.2, 0.4, 0.8), (0.98,) * 4))
    assert costs.weigh("A", rows=4, width=16).ratio == pytest.approx(0.4)
    assert costs.weigh("A", rows=2, width=32).ratio == pytest.approx((0.1 * 0.2 * 0.4 * 0.8) ** 0.25)
    assert costs.weigh("A").ratio == pytest.approx(0.2)


def test_the_fastest_operator_is_chosen_and_the_first_of_equals() -> None:
    costs = table(grid("A", 0.9, 0.7, 0.7), grid("B", 0.8, 0.8, 0.7))
    assert costs.weigh("A", "B", length=32).op == "B"
    assert costs.weigh("A", "B", length=128).op == "A"
    assert costs.weigh("A", "B", length=512).op == "A"
    assert costs.weigh("B", "A", length=512).op == "B"


def test_ratios_within_the_band_keep_the_nodes() -> None:
    costs = table(grid("A", 0.95, 0.95, 0.95, band=0.9))
    decision = costs.weigh("A", length=32)
    assert not decision and decision.op is None
    assert decision.reason == (
        "it may not be faster: A takes 0.95× the time of the nodes that it replaces at length 32, "
        "and only less than 0.90 is more than noise (made-up figures)"
    )
    dear = table(grid("A", 1.5, 1.5, 1.5)).weigh("A", length=32)
    assert dear.reason == (
        "it would not be faster: A takes 1.50× the time of the nodes that it replaces at length 32 (made-up figures)"
    )
    assert table(grid("A", 0.95, 0.95, 0.95, band=0.96)).weigh("A", length=32).op == "A"


def test_counts_have_units() -> None:
    axes = (Axis("operations", (32, 1024), 128), Axis("width", (16, 64), 64))
    figures = Grid("A", "", "float", axes, (0.1, 0.2, 0.4, 0.8), (0.98,) * 4)
    assert figures.describe({"operations": 524_288, "width": 16}) == " at 524,288 operations; width 16"
    assert figures.describe({"operations": 1}) == " at 1 operation; width unknown, 64 assumed"
    assert figures.describe({"width": 2}) == " at an unknown number of operations, 128 assumed; width 2"


def test_a_noisy_operator_does_not_hide_one_that_pays() -> None:
    costs = table(grid("A", 0.7, 0.7, 0.7, band=0.6), grid("B", 0.8, 0.8, 0.8))
    assert costs.weigh("A", "B").op == "B"


def test_a_case_or_type_without_figures_uses_the_default_ones() -> None:
    name = "MultiHeadAttention"
    costs = table(grid(name, 0.5, 0.5, 0.5), grid(name, 1.5, 1.5, 1.5, case="causal"))
    assert costs.weigh(name, case="mask").ratio == pytest.approx(0.5)
    assert costs.weigh(name, case="causal", dtype="float16").ratio == pytest.approx(1.5)


@pytest.mark.parametrize("costs", [shipped("cpu"), Costs("none", "cuda")], ids=["shipped", "none"])
def test_unknown_cases_and_axes_are_errors(costs: Costs) -> None:
    for op in {grid.op for grid in shipped("cpu").grids}:
        with pytest.raises(ValueError, match="have the case 'causl'"):
            costs.weigh(op, case="causl")
        with pytest.raises(ValueError, match="have the axis 'lenght'"):
            costs.weigh(op, lenght=98304)


def test_assumptions_are_not_reported_as_measurements() -> None:
    costs = shipped("cuda")
    assert costs.assumed and Costs.from_dict(json.loads(costs.text())) == costs
    fused = costs.weigh("MultiHeadAttention", "Attention", length=64, dtype="float16")
    assert fused.op == "MultiHeadAttention"
    assert fused.reason.startswith("MultiHeadAttention is assumed to take 0.80×")
    left = costs.weigh("Attention", length=64)
    assert left.op is None and left.reason.startswith("it would not be faster: Attention is assumed to take")
    assert left.hint == "graphopt calibrate --device cuda measures that on this machine"


def test_without_figures_the_first_operator_is_chosen() -> None:
    decision = Costs("none", "cuda").weigh("A", "B", length=1)
    assert (decision.op, decision.ratio) == ("A", None)
    assert decision.reason == "no figures for A or B on CUDA"


@pytest.mark.parametrize(
    ("passes", "ratio", "hint"),
    [
        (None, 1.5, "graphopt calibrate measures"),
        (1, 0.9, "without --budget"),
        (1, 1.5, None),  # dearer: no noise hides a gain
        (5, 0.9, None),
    ],
)
def test_calibration_is_suggested_only_if_it_may_change_the_decision(
    passes: int | None, ratio: float, hint: str | None
) -> None:
    costs = replace(table(grid("A", ratio, ratio, ratio, band=0.8)), passes=passes)
    told = costs.weigh("A").hint
    assert told is None if hint is None else hint in (told or "")
    assert table(grid("B", 1.2, 1.2, 1.2)).weigh("A", "B").op is None


@pytest.mark.parametrize("text", ["[]", "3", '{"format": 2, "grids": {}}', '{"format": 2, "grids": [3]}'])
def test_errors_for_invalid_tables_are_plain(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UsageError, match="is not a cost table: it") as caught:
        read(tmp_path / "manifest.json")
    assert not any(word in caught.value.message for word in ("indices", "subscript", "attribute", "str"))


def test_a_table_survives_json() -> None:
    costs = shipped("cpu")
    assert costs.grids
    assert Costs.from_dict(json.loads(costs.text())) == costs
    assert costs.text().count("\n") == len(costs.grids) + 9


def test_known_pessimizations_do_not_pay_on_the_cpu() -> None:
    costs = shipped("cpu")
    for op in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "GroupNormalization"):
        assert not costs.weigh(op), op


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 99}, "format 99"),
        ({"grids": [{}]}, "lacks 'axes'"),
        ({"grids": 3}, "another layout"),
    ],
)
def test_a_file_without_a_table_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(table(grid("A", 1.0, 1.0, 1.0)).to_dict() | change))
    with pytest.raises(UsageError, match=said):
        read(path)


@pytest.mark.parametrize(
    "wrong",
    [
        grid("A", 1.0, 1.0),
        grid("A", 1.0, 0.0, 1.0),
        grid("A", 1.0, float("nan"), 1.0),
        grid("A", 1.0, 1.0, 1.0, band=-1),
        replace(grid("A", 1.0, 1.0, 1.0), axes=(Axis("length", (3, 2, 1), 1),)),
    ],
)
def test_invalid_figures_are_refused(wrong: Grid) -> None:
    with pytest.raises(ValueError, match="A"):
        Costs.from_dict(table(wrong).to_dict())
