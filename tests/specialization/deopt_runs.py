"""Split models at exit points, and compare the results of both parts with those of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import onnxruntime

from graphopt import ir
from graphopt.specialization.deopt import Bailout, ExitPoint, bailout_at, exit_points_after
from tests.model_testing import parse

Feeds = Mapping[str, Any]


def session(model: ir.Model) -> Any:
    """A session without optimizations and prepacking; prepacking depends on the surrounding graph."""
    assert (fault := ir.find_fault(model)) is None, fault
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.add_session_config_entry("session.disable_prepacking", "1")
    return onnxruntime.InferenceSession(ir.to_bytes(model), options, providers=["CPUExecutionProvider"])


def run(runs: Any, feeds: Feeds) -> dict[str, Any]:
    """The outputs by name; ignores feeds without an input."""
    names = [item.name for item in runs.get_outputs()]
    given = {item.name: feeds[item.name] for item in runs.get_inputs()}
    return dict(zip(names, runs.run(None, given), strict=True))


def same(one: Any, other: Any) -> bool:
    """Whether both are bitwise equal."""
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    one, other = np.asarray(one), np.asarray(other)
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def all_points(model: ir.Model) -> list[ExitPoint]:
    """The exit points behind all values but constants."""
    values = [value for graph in ir.graphs_of(model) for value in ir.values_of(graph)]
    return exit_points_after(model, {value for value in values if ir.constant_of(value) is None})


class Resumed:
    """A model that was split at an exit point, ready to run."""

    def __init__(self, model: ir.Model, point: ExitPoint) -> None:
        self.bailout: Bailout = bailout_at(model, point)
        self.prefix, self.rest = session(self.bailout.prefix), session(self.bailout.rest)

    def exit(self, feeds: Feeds, occurrence: int = 0) -> dict[str, Any] | None:
        """The results of the prefix; ``None`` if the exit point is not reached so often."""
        name = self.bailout.occurrence
        if name is None and occurrence:
            return None
        found = run(self.prefix, {**feeds, **({} if name is None else {name: np.array(occurrence)})})
        return found if found[self.bailout.reached] else None

    def reached(self, feeds: Feeds) -> int:
        """How often the exit point is reached."""
        count = 0
        while self.exit(feeds, count) is not None:
            count += 1
        return count

    def outputs(self, feeds: Feeds) -> Iterator[dict[str, Any]]:
        """The outputs of the model, resumed at the first, middle and last time that the point is reached."""
        count = self.reached(feeds)
        for occurrence in sorted({0, count // 2, count - 1} if count else {}):
            handed = self.exit(feeds, occurrence)
            assert handed is not None
            yield run(self.rest, {**feeds, **{name: handed[name] for name in self.bailout.handed}})


def check(model: ir.Model, runs: Sequence[Feeds], points: Sequence[ExitPoint] | None = None) -> int:
    """Split ``model`` at ``points``, by default all; returns the number of resumed runs."""
    whole, count = session(model), 0
    expected = [run(whole, feeds) for feeds in runs]
    for point in all_points(model) if points is None else points:
        resumed = Resumed(model, point)
        for feeds, outputs in zip(runs, expected, strict=True):
            for found in resumed.outputs(feeds):
                count += 1
                assert found.keys() == outputs.keys()
                for name, value in outputs.items():
                    assert same(value, found[name]), (point.value.name, feeds, name, value, found[name])
    return count


class _Text:
    """Generates the text of a model of nested Ifs and Loops, whose values are vectors of one length."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.made = 0
        self.rows: str | None = None  # the scan output of the last loop

    def name(self, stem: str) -> str:
        self.made += 1
        return f"{stem}{self.made}"

    def pick(self, values: Sequence[str]) -> str:
        return self.draw(st.sampled_from(values))

    def block(self, values: list[str], numbers: list[str], depth: int) -> tuple[list[str], list[str]]:
        """A few nodes, and the vectors that are available after them."""
        lines, values = [], list(values)
        for _ in range(self.draw(st.integers(1, 3))):
            kind = self.draw(st.sampled_from(["op", "op", "if", "loop", "loop"] if depth else ["op"]))
            grow = {"op": self.op, "if": self.branches, "loop": self.loop}[kind]
            more, made = grow(values, numbers, depth)
            lines += more
            values += made
        return lines, values

    def op(self, values: list[str], numbers: list[str], depth: int) -> tuple[list[str], list[str]]:
        out = self.name("v")
        if numbers and self.draw(st.booleans()):
            number = self.name("f")
            cast = f"{number} = Cast<to=1>({self.pick(numbers)})"
            return [cast, f"{out} = Add({self.pick(values)}, {number})"], [out]
        op_type = self.draw(st.sampled_from(["Add", "Sub", "Max"]))
        return [f"{out} = {op_type}({self.pick(values)}, {self.pick(values)})"], [out]

    def condition(self, values: list[str], numbers: list[str]) -> tuple[list[str], str]:
        """A condition that is sometimes true."""
        found, flat = self.name("c"), self.name("r")
        if numbers and self.draw(st.booleans()):
            return [
                f"{found} = Less({self.pick(numbers)}, {self.draw(st.sampled_from(['one', 'two']))})"
            ], found
        return [
            f"{flat} = ReduceMean<keepdims=0>({self.pick(values)})", f"{found} = Less({flat}, half)"
        ], found  # fmt: skip

    def branches(self, values: list[str], numbers: list[str], depth: int) -> tuple[list[str], list[str]]:
        lines, condition = self.condition(values, numbers)
        out, bodies = self.name("v"), []
        for name in ("then_branch", "else_branch"):
            inside, made = self.block(values, numbers, depth - 1)
            result = self.name("v")
            inside.append(f"{result} = Add({made[-1]}, half)")
            bodies.append(f"{name} = {self.name('g')} () => (float[N] {result}) {{ {' '.join(inside)} }}")
        return [*lines, f"{out} = If({condition})<{', '.join(bodies)}>"], [out]

    def loop(self, values: list[str], numbers: list[str], depth: int) -> tuple[list[str], list[str]]:
        counter, going, state, keep = (self.name(stem) for stem in ("i", "k", "s", "k"))
        count = self.draw(st.sampled_from(["", "zero", "one", "three", "m"]))
        first = self.draw(st.sampled_from(["", "yes", "c"]))
        inside, made = self.block([*values, state], [*numbers, counter], depth - 1)
        end = self.draw(st.sampled_from(["same", "early", "computed"])) if count else "early"
        if end == "same":
            inside.append(f"{keep} = Identity({going})")
        elif end == "early":
            inside.append(f"{keep} = Less({counter}, {self.draw(st.sampled_from(['zero', 'one', 'two']))})")
        else:
            more, condition = self.condition([*made], [counter])
            inside += [*more, f"{keep} = And({condition}, {going})"]
        result, row, out, rows = (self.name(stem) for stem in ("v", "v", "v", "w"))
        inside += [f"{result} = Add({made[-1]}, half)", f"{row} = Max({self.pick(made)}, {state})"]
        gathers = self.draw(st.booleans())
        lines = [
            f"{out}{f', {rows}' if gathers else ''} = Loop({count}, {first}, {self.pick(values)})<body ="
            f" {self.name('g')} (int64 {counter}, bool {going}, float[N] {state}) => (bool {keep},"
            f" float[N] {result}{f', float[N] {row}' if gathers else ''}) {{ {' '.join(inside)} }}>"
        ]
        self.rows = rows if gathers else None
        if not gathers:
            return lines, [out]
        total, both = self.name("r"), self.name("v")  # without iterations, only the sum, 0, is defined
        return [*lines, f"{total} = ReduceSum<keepdims=0>({rows})", f"{both} = Add({out}, {total})"], [
            out,
            both,
        ]


@st.composite
def nested_models(draw: st.DrawFn) -> ir.Model:
    """Models of nested Ifs and Loops, some without count or condition, with early ends and scan outputs."""
    text = _Text(draw)
    lines, values = text.block(["x"], [], 3)
    more, made = text.loop(values, [], 2)
    gathered, given = (", float[C, N] rows", f"rows = Neg({text.rows})") if text.rows else ("", "")
    constants = "int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 three = {3}"
    return parse(
        f"g (float[N] x, int64 m, bool c) => (float[A] y, float[B] z{gathered})"
        f" <{constants}, float half = {{0.5}}, bool yes = {{1}}>"
        f" {{ {' '.join(lines)} {' '.join(more)} y = Identity({made[-1]}) z = Neg({values[-1]}) {given} }}"
    )


#: Feeds for them: several iterations, none, and a condition that is initially false.
RUNS: list[Feeds] = [
    {"x": np.array([1, -2, 0.3], np.float32), "m": np.array(m), "c": np.array(c)}
    for m, c in ((4, True), (0, True), (2, False))
]
