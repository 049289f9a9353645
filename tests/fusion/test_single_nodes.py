"""Single nodes become kernels if a kernel is faster by the table of costs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from graphopt import ir
from graphopt.context import Options, context_for
from graphopt.cost import Axis, Costs, Grid, shipped
from graphopt.fusion.kernel_policy import Kernels
from graphopt.ops.graphopt_operators import NATIVE_DOMAIN
from graphopt.passes.pipelines import make_pipeline
from graphopt.transforms.fusion.fuse_groups import FuseGroups
from tests.model_testing import parse

PRELU = "g (float[1,64,{size}] x, float[64,1] s) => (float[1,64,{size}] y) { y = PRelu(x, s) }"


def table(op: str, *ratios: float, case: str = "", dtype: str = "float", band: float = 0.98) -> Costs:
    """Figures of one operator with 1,000 and, if given, 100,000 elements."""
    sizes = (1_000, 100_000)[: len(ratios)]
    axis = Axis("elements", sizes, 1_000)
    grid = Grid(f"{op} kernel", case, dtype, (axis,), ratios, (band,) * len(sizes))
    return Costs("made up", "cpu", grids=(grid,))


def groups(text: str, costs: Costs | None, pipeline: str = "fuse-groups") -> tuple[Sequence[str], str]:
    """The operators of the groups, and the reasons for the other nodes."""
    model = parse(text)
    with context_for(model, Options(costs=costs)) as cx:
        make_pipeline(pipeline).run(model, cx)
        reasons = "; ".join(cx.ungrouped.values())
    found = [function for key, function in model.functions.items() if key[0] == NATIVE_DOMAIN]
    return [node.op_type for function in found for node in function], reasons


def prelu(size: object = 1000) -> str:
    return PRELU.replace("{size}", str(size))


@pytest.mark.parametrize(
    ("costs", "is_kernel"),
    [
        (table("PRelu", 0.5), True),
        (table("PRelu", 0.95), True),
        (table("PRelu", 0.96), False),
        (table("PRelu", 0.9, band=0.85), False),
        (table("PRelu", 1.5), False),
        (table("Elu", 0.5), False),
        (table("PRelu", 0.5, dtype="int32"), False),
        (table("PRelu", 0.5, case="inner"), False),
        (table("PRelu", 1.5, 0.5), True),
        (table("PRelu", 0.5, 1.5), False),
        (Costs("nothing", "cpu"), False),
    ],
)
def test_a_single_node_is_a_kernel_if_it_is_faster_by_the_table(costs: Costs, is_kernel: bool) -> None:
    found, reasons = groups(prelu(100_000 // 64), costs)
    assert found == (["PRelu"] if is_kernel else [])
    assert is_kernel or reasons == "its group has fewer than 2 nodes"


def test_unknown_sizes_count_as_the_default_of_the_axis() -> None:
    assert groups(prelu("N"), table("PRelu", 0.5, 1.5))[0] == ["PRelu"]
    assert groups(prelu("N"), table("PRelu", 1.5, 0.5))[0] == []


def test_figures_of_a_type_do_not_apply_to_another() -> None:
    text = prelu().replace("float", "float16")
    assert groups(text, table("PRelu", 0.5))[0] == []
    assert groups(text, table("PRelu", 0.5, dtype="float16"))[0] == ["PRelu"]


def test_where_has_the_type_of_its_data() -> None:
    text = "g (bool[1000] c, float[1000] x, float[1000] z) => (float[1000] y) { y = Where(c, x, z) }"
    assert groups(text, table("Where", 0.5))[0] == ["Where"]
    assert groups(text, table("Where", 0.5, dtype="bool"))[0] == []


@pytest.mark.parametrize(("axis", "case"), [(1, "inner"), (2, "last"), (-1, "last"), (0, "inner")])
def test_a_softmax_over_inner_axes_has_its_own_figures(axis: int, case: str) -> None:
    text = f"g (float[4,64,100] x) => (float[4,64,100] y) {{ y = Softmax <axis = {axis}> (x) }}"
    for other in ("inner", "last"):
        assert groups(text, table("Softmax", 0.5, case=other))[0] == (["Softmax"] if other == case else [])


def test_tiny_tensors_and_larger_minimum_sizes_exclude_single_nodes() -> None:
    tiny = "g (float[1,4,2] x, float[4,1] s) => (float[1,4,2] y) { y = PRelu(x, s) }"
    assert groups(tiny, table("PRelu", 0.5)) == ([], "its group has too few elements")
    found, reasons = groups(prelu(), table("PRelu", 0.5), "fuse-groups{min=3}")
    assert (found, reasons) == ([], "its group has fewer than 3 nodes")


def test_an_operator_without_blocked_kernel_is_fused_next_to_a_convolution() -> None:
    """onnxruntime changes the layout there in any case."""
    text = """g (float[1,3,32,32] x, float[16,3,3,3] w, float[16,1,1] s) => (float[1,16,30,30] y) {
        c = Conv(x, w)
        y = PRelu(c, s)
    }"""
    assert groups(text, table("PRelu", 0.5))[0] == ["PRelu"]


def test_the_decision_is_recorded_once() -> None:
    model = parse(prelu())
    with context_for(model, Options(costs=table("PRelu", 0.5))) as cx:
        make_pipeline("fuse-groups").run(model, cx)
        (decision,) = cx.decisions.elements()
    assert decision.op == "PRelu kernel" and "0.50× the time" in decision.reason
    assert [node.op_type.split("_")[0] for node in model.graph] == ["prelu"]
    assert ir.count_nodes(model.graph) == 1


def test_shipped_figures_select_a_slope_per_channel() -> None:
    assert groups(prelu(), shipped("cpu"))[0] == ["PRelu"]


@pytest.mark.parametrize(
    ("kernels", "is_kernel"), [("faster", False), ("loops", False), ("candidates", True), ("all", True)]
)
def test_the_option_kernels_selects_slower_single_nodes(kernels: str, is_kernel: bool) -> None:
    found, _ = groups(prelu(), table("PRelu", 1.5), f"fuse-groups{{kernels={kernels}}}")
    assert found == (["PRelu"] if is_kernel else [])


def test_eager_passes_keep_a_choice() -> None:
    chosen = (
        FuseGroups().eager(),
        FuseGroups(kernels=Kernels.LOOPS).eager(),
        FuseGroups(kernels=Kernels.ALL).eager(),
    )
    assert [each.kernels for each in chosen] == [Kernels.CANDIDATES, Kernels.LOOPS, Kernels.ALL]
