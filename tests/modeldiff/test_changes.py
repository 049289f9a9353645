"""Changes between two states of a model, and their printed form."""

from __future__ import annotations

from collections import Counter

from graphopt.ir.printer import Operand
from graphopt.modeldiff.change_causes import attribute
from graphopt.modeldiff.changes import Change, by_key, difference
from graphopt.modeldiff.print_changes import WIDTH, print_changes
from graphopt.modeldiff.snapshot import Snapshot, scope_of
from tests.model_testing import parse


def found(before: str, after: str, replaced: dict[str, str] | None = None) -> list[Change]:
    """The changes between two models."""
    one, other = Snapshot(parse(before)), Snapshot(parse(after))
    operands = {("", old): Operand(f"%{new}", new) for old, new in (replaced or {}).items()}
    return difference(one, other, by_key(one, other, operands))


def shown(changes: list[Change], *, is_full: bool = False) -> list[str]:
    """Their lines."""
    return [str(line) for line in print_changes(changes, is_full=is_full)]


BEFORE = "g (float[4] x) => (float[4] y) { a = Relu(x) b = Abs(a) y = Neg(b) }"


def test_lines_are_identified_by_the_values_that_they_define() -> None:
    assert found(BEFORE, BEFORE) == []
    after = "g (float[4] x) => (float[4] y) { b = Abs(x) c = Exp(b) y = Neg(c) }"
    assert shown(found(BEFORE, after)) == [
        "-   %a = Relu(%x)",
        "~   %b = Abs(%a → %x)",
        "+   %c = Exp(%b)",
        "~   %y: f32[4] = Neg(%b → %c)",
    ]
    assert shown(found(BEFORE, after, {"a": "x"}))[:2] == ["-   %a = Relu(%x)  → %x", "    %b = Abs(%a → %x)"]


def test_renamed_value_is_one_change() -> None:
    model = parse(BEFORE)
    before = Snapshot(model)
    node = list(model.graph)[1]
    node.outputs[0].name = "c"
    after = Snapshot(model)
    changes = difference(before, after, by_key(before, after))
    assert shown(changes) == ["~   %b → %c = Abs(%a)"]
    assert shown(changes, is_full=True) == ["-   %b = Abs(%a)", "+   %c = Abs(%a)"]


def test_bodies_of_a_renamed_node_and_moved_nodes() -> None:
    model = parse("""
        g (bool c, float[2] x) => (float[2] z) {
          y = If (c) <
            then_branch = t () => (float[2] p) { v = Relu(x) p = Abs(v) },
            else_branch = e () => (float[2] q) { q = Neg(x) }>
          z = Exp(y)
        }""")
    before = Snapshot(model)
    holder = next(iter(model.graph))
    holder.outputs[0].name = "w"
    after = Snapshot(model)
    assert shown(difference(before, after, by_key(before, after))) == [
        "~   %y → %w: f32[2] = If(%c)"
    ] or shown(difference(before, after, by_key(before, after))) == ["~   %y → %w = If(%c)"]
    body = holder.attributes["then_branch"].as_graph()
    relu = next(iter(body))
    body.remove(relu)
    model.graph.insert_before(holder, relu)
    moved = Snapshot(model)
    assert shown(difference(after, moved, by_key(after, moved))) == ["~   moved here: %v"]


def test_the_full_form_has_both_lines_of_a_change() -> None:
    after = "g (float[4] x) => (float[4] y) { a = Relu(x) b = Abs(x) y = Neg(b) }"
    assert shown(found(BEFORE, after), is_full=True) == ["-   %b = Abs(%a)", "+   %b = Abs(%x)"]


def test_removed_lines_precede_added_ones() -> None:
    after = "g (float[4] x) => (float[4] y) { c = Exp(x) d = Sin(c) y = Neg(d) }"
    assert [line[0] for line in shown(found(BEFORE, after))] == ["-", "-", "+", "+", "~"]
    built = BEFORE.replace("b = Abs(a)", "n = Sin(a) b = Cos(n)")
    assert shown(found(BEFORE, built)) == ["-   %b = Abs(%a)", "+   %n = Sin(%a)", "+   %b = Cos(%n)"]
    header = '<ir_version: 8, opset_import: ["" : {}]> '
    assert shown(found(header.format(17) + BEFORE, header.format(18) + BEFORE)) == ["~ opset ai.onnx 17 → 18"]


def test_another_operator_is_another_line() -> None:
    assert shown(found(BEFORE, BEFORE.replace("Abs", "Sin"))) == ["-   %b = Abs(%a)", "+   %b = Sin(%a)"]


def test_changed_attributes_and_added_and_removed_operands() -> None:
    text = "g (float[4] x, float[1] s) => (float[4] y) {{ y = Clip(x, {}) z = Elu<alpha = {}>(x) }}"
    assert shown(found(text.format("s, s", 1.0), text.format("s", 2.0))) == [
        "~   %y: f32[4] = Clip(%x, %s, %s → none)",
        "~   %z = Elu(%x, alpha=1.0 → 2.0)",
    ]


def test_attributes_equal_to_defaults_are_changes_in_the_full_form_only() -> None:
    text = "g (float[4] x, float[4] w) => (float[4] y) {{ y = Elu{}({}) }}"
    changes = found(text.format("<alpha = 1.0>", "x"), text.format("", "w"))
    assert shown(changes) == ["~   %y: f32[4] = Elu(%x → %w, …)"]
    assert "alpha=1.0" in shown(changes, is_full=True)[0]


def test_bodies_are_compared_each_by_itself() -> None:
    text = """
        g (bool c, float[2] x) => (float[2] y) {{
          y = If (c) <
            then_branch = t () => (float[2] p) {{ v = Relu(x) p = Abs(v) }},
            else_branch = e () => (float[2] p) {{ v = {op}(x) p = Abs(v) }}>
        }}"""
    assert shown(found(text.format(op="Neg"), text.format(op="Exp"))) == [
        "  @ y else_branch",
        "-       %v = Neg(%x)",
        "+       %v = Exp(%x)",
    ]


def test_small_constants_have_no_lines() -> None:
    text = "g (float[2] x) => (float[2] y) <float a = {{1.0}}, float b = {{1.0}}> {{ y = Add(x, {}) {} }}"
    before = text.format("a", "")
    assert found(before, text.format("b", "")) == []
    assert found(before, text.format("c", "c = Constant<value_float = 1.0>()")) == []
    assert found(before, text.format("a", "c = Constant<value_float = 3.0>()")) == []


def test_large_constants_are_listed_together() -> None:
    weights = ", ".join(f"float[9] w{i} = {{{', '.join('1' * 9)}}}" for i in range(3))
    before = f"g (float[9] x) => (float[9] y) <{weights}> {{ y = Neg(x) }}"
    (line,) = shown(found(before, "g (float[9] x) => (float[9] y) { y = Neg(x) }"))
    assert line.startswith("-   constant %w0: f32[9] #") and line.count("constant") == 1
    assert all(f"%w{i}: f32[9]" in line for i in range(3))


def test_unread_nodes_are_listed_under_their_cause() -> None:
    before, after = (
        "g (float[2, 3] x) => (float[3, 2] y) { s = Shape(x) i = Identity(s) j = Identity(i) y = Reshape(x, j) }",
        "g (float[2, 3] x) => (float[3, 2] y) <int64[2] k = {3, 2}> { y = Reshape(x, k) }",
    )
    one, other = Snapshot(parse(before)), Snapshot(parse(after))
    changes = difference(one, other, by_key(one, other))
    node = next(line.node for line in one.lines.values() if line.operator == "Reshape")
    assert node is not None
    kept = attribute(changes, one, {node: "the-rule"}, "the-pass")
    assert shown(kept) == [
        "~   %y: f32[3, 2] = Reshape(%x, %j → {[3, 2]})                    by the-rule",
        "-   %s = Shape, %i = Identity, %j = Identity                      unread, by the-rule",
    ]
    full = shown(kept, is_full=True)
    assert [line.split("  ")[1].strip() for line in full if "unread" in line] == [
        "%s = Shape(%x)",
        "%i = Identity(%s)",
        "%j = Identity(%i)",
    ]


def test_removal_of_an_unread_node_is_attributed_to_the_pass() -> None:
    before = "g (float[2] x) => (float[2] y) { a = Exp(x) y = Relu(x) }"
    one, other = Snapshot(parse(before)), Snapshot(parse(before.replace("a = Exp(x)", "")))
    (change,) = attribute(difference(one, other, by_key(one, other)), one, {}, "dce")
    assert (change.mark, change.by, change.unread) == ("-", "dce", True)


def test_long_lines_lose_their_least_important_parts() -> None:
    many = ", ".join(f"value_number_{i:03}" for i in range(60))
    nodes = " ".join(f"value_number_{i:03} = Exp(x)" for i in range(60))
    before = f"g (float[2] x) => (float[2] y) {{ {nodes} y = Sum({many}) }}"
    for after in (
        before.replace("_000, value_number_001)", ""),
        before.replace("number_059) }", "number_058) }"),
    ):
        for line in shown(found(before, after)):
            assert len(line) <= WIDTH
    (line,) = shown(found(before, before.replace("number_059) }", "number_058) }")))
    assert "%value_number_059 → %value_number_058" in line and "…" in line
    removed = shown(found(before, f"g (float[2] x) => (float[2] y) {{ {nodes} y = Neg(x) }}"))
    assert removed[0].startswith("-   %y: f32[2] = Sum(%value_number_000, ") and removed[0].endswith("…)")


def test_a_long_chain_is_compared_in_one_walk() -> None:
    nodes = " ".join(f"v{i + 1} = Relu(v{i})" for i in range(3000))
    text = f"g (float[4] v0) => (float[4] v3000) {{ {nodes} }}"
    changes = found(text, text.replace("v1500 = Relu", "v1500 = Abs"))
    assert shown(changes) == ["-   %v1500 = Relu(%v1499)", "+   %v1500 = Abs(%v1499)"]


def test_keys_of_lines_contain_names_only() -> None:
    """The time to hash a key that contains enclosing keys doubles with each body."""
    model = parse(
        "g (bool c, float[2] x) => (float[2] y) { y = If(c) <then_branch = t () => (float[2] p) { p = If(c) "
        "<then_branch = u () => (float[2] q) { q = Sin(x) }, else_branch = v () => (float[2] r) { r = Cos(x) }> }, "
        "else_branch = e () => (float[2] s) { s = Neg(x) }> }"
    )
    lines = Snapshot(model).lines
    depths = Counter(len(path) for path, *_ in lines)
    assert sorted(depths)[-1] == 2 and all(isinstance(name, str) for path, *_ in lines for name in path)


# Scopes -------------------------------------------------------------------------------------


def test_scopes_come_from_the_first_of_joined_names() -> None:
    text = "g (float[2] x) => (float[2] y) { [m/cq/conv1d;m/cq/conv1d_1;m/cq] y = Relu(x) }"
    model = parse(text.replace("[m/cq/conv1d;m/cq/conv1d_1;m/cq] ", ""))
    (node,) = model.graph
    node.name = "m/cq/conv1d;m/cq/conv1d_1;m/cq"
    assert scope_of(node) == ("m", "cq")


def test_scopes_are_named_at_the_depth_with_few_lines() -> None:
    nodes = " ".join(f"v{i} = Exp(x)" for i in range(48))
    before = parse(f"g (float[2] x) => (float[2] y) {{ {nodes} y = Neg(x) }}")
    for index, node in enumerate(list(before.graph)[:-1]):
        node.name = f"/model/layer.{index // 16}/sub{index % 2}/Exp_{index}"
    after = Snapshot(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"))
    one = Snapshot(before)
    lines = shown(difference(one, after, by_key(one, after)))
    assert [line for line in lines if line.startswith("  @")] == [f"  @ model.layer.{i}" for i in range(3)]
    assert len(lines) == 48 + 3
