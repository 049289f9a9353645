"""Random graphs by seed: elementwise operators, reductions, normalizations and moves, of all types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

import numpy as np
import onnx

from tests.fuzz.kernels import pointwise, reductions, views
from tests.fuzz.kernels.arithmetic import DTYPES, FLOATS, INTS, Arithmetic, Array
from tests.fuzz.kernels.graph_builder import Dim, Grower, Value

#: Values of the symbols; kernels are tested with all of them.
SIZES: tuple[dict[str, int], ...] = (
    {"N": 7, "M": 13},
    {"N": 1, "M": 31},
    {"N": 3, "M": 0},
    {"N": 37, "M": 1},
)
LARGE = {"N": 61, "M": 257}
_TRAILS = (5, 8, 17, 64, 100)
_ERRORS = 6
#: Tolerance of outputs, relative to the spread of runs with errors.
_MARGIN = 4.0
#: A zero of unspecified sign, represented by a number below all others.
_SIGN = 1e-320


@dataclass
class RandomGraph:
    """A graph and its reference computation.

    Attributes:
        special: its inputs hold NaN, infinities, negative zeros and the smallest numbers.
        tried: sizes to try; by default a few of :data:`SIZES`, by the seed.
    """

    seed: int
    grower: Grower
    outputs: list[Value]
    special: bool
    tried: tuple[dict[str, int], ...] = ()

    @property
    def model(self) -> onnx.ModelProto:
        return self.grower.model(self.outputs)

    @property
    def bears_zero(self) -> bool:
        """Whether onnxruntime supports sizes of 0.

        It crashes on instances without elements, and does not drop the axes of a reduction of nothing.
        """
        reduced = [node for node in self.grower.nodes if node.op_type.startswith("Reduce")]
        drops = any(item.name == "keepdims" and not item.i for node in reduced for item in node.attribute)
        return not drops and all(node.op_type != "InstanceNormalization" for node in self.grower.nodes)

    def sizes(self) -> Iterator[dict[str, int]]:
        """Several assignments of sizes, in some graphs including a large one."""
        if self.tried:
            yield from (sizes for sizes in self.tried if self.bears_zero or min(sizes.values()))
            return
        random = Random(self.seed)
        yield SIZES[0]
        yield random.choice([sizes for sizes in SIZES[1:] if self.bears_zero or min(sizes.values())])
        if random.random() < 0.15:
            yield LARGE

    def feeds(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """Inputs of these sizes."""
        random = np.random.default_rng(self.seed)
        return {value.name: self._draw(value, sizes, random) for value in self.grower.inputs}

    def _draw(self, value: Value, sizes: Mapping[str, int], random: np.random.Generator) -> Array:
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in value.dims]
        dtype = DTYPES[value.dtype]
        if value.dtype == "bool":
            return np.asarray(random.random(shape) < 0.5)
        if value.dtype in INTS:
            limits = np.iinfo(dtype)
            if self.special:
                return random.choice(np.array([limits.min, limits.max, 0, 1, 7], dtype), shape)
            return random.integers(max(limits.min, -100), 100, shape).astype(dtype)
        numbers = np.asarray(random.standard_normal(shape) * random.choice([0.5, 2.0, 10.0])).astype(dtype)
        if self.special:
            info = SPECIAL[value.dtype]
            hit = random.random(shape) < 0.3
            numbers = np.where(hit, random.choice(info, shape), numbers)
        return np.asarray(numbers)

    def expected(self, feeds: Mapping[str, Array]) -> tuple[list[Array], list[Array]]:
        """The exact value of each output, and its tolerance."""
        exact = self.grower.run(feeds, Arithmetic(), self.outputs)
        spread = [np.zeros(np.shape(found)) for found in exact]
        for turn in range(_ERRORS):
            noisy = self.grower.run(feeds, Arithmetic(turn), self.outputs)
            for place, (a, b) in enumerate(zip(exact, noisy, strict=True)):
                spread[place] = np.maximum(spread[place], _apart(a, b))
        return exact, [_MARGIN * apart for apart in spread]


def _apart(a: Array, b: Array) -> Array:
    """The distance; infinite if only one is a number."""
    if a.dtype.kind == "b":
        return np.where(a != b, np.inf, 0.0)
    if a.dtype.kind != "f":
        return np.asarray(np.abs(a.astype(np.float64) - b.astype(np.float64)))
    with np.errstate(invalid="ignore"):
        same = ((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))
        flipped = (a == b) & (np.signbit(a) != np.signbit(b))
        apart = np.where(np.isfinite(a) & np.isfinite(b), np.abs(a - b), np.inf)
        return np.asarray(np.where(same, 0.0, np.where(flipped, _SIGN, apart)))


def _special(dtype: str) -> Array:
    kind = DTYPES[dtype]
    least = {"f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133}[dtype]
    most = {"f32": 3.4028234663852886e38, "f16": 65504.0, "bf16": 3.3895e38}[dtype]
    numbers = [np.nan, np.inf, -np.inf, -0.0, 0.0, least, -3 * least, most, -most, 1.0, -1.0, 88.0, -104.0]
    return np.array(numbers).astype(kind)


SPECIAL = {dtype: _special(dtype) for dtype in FLOATS}


def generate(seed: int) -> RandomGraph:
    """The graph of ``seed``."""
    random = Random(seed)
    g = Grower(random, opset=random.choice([17, 18, 20]))
    special = random.random() < 0.25
    base = _base(random)
    dtypes = random.choices(
        ["f32", "f16", "i32", "i64", "u8", "i8", "bool", "bf16"], [12, 3, 2, 2, 2, 1, 1, 1], k=4
    )
    for dtype in dtypes[: random.randint(1, 4)]:
        g.input(dtype, *_related(random, base))
    growth = [
        (pointwise.unary, 8), (pointwise.binary, 10), (pointwise.whole, 1), (pointwise.compare, 2),
        (pointwise.test_real, 0.5), (pointwise.logic, 1), (pointwise.where, 3), (pointwise.clip, 1.5),
        (lambda g: pointwise.cast(g, not special), 2.5), (reductions.reduce, 3), (reductions.norm, 2),
        *((move, 0.6) for move in views.MOVES),
    ]  # fmt: skip
    wanted = random.randint(2, 14)
    for _ in range(20 * wanted):
        if len(g.nodes) >= wanted:
            break
        random.choices([grow for grow, _ in growth], [weight for _, weight in growth])[0](g)
    made = [value for value in g.values if value not in g.inputs and value.dtype != "bf16"]
    if not made:
        x = g.inputs[0]
        made = [pointwise.cast_to(g, x, "f32" if x.dtype != "f32" else "f16", False) or x]
    ends = [value for value in made if value.name not in g.read]
    within = [value for value in made if value.name in g.read]
    outputs = [*ends, *random.sample(within, min(len(within), random.choice([0, 0, 1, 2])))] or made[-1:]
    return RandomGraph(seed, g, outputs, special)


def _base(random: Random) -> tuple[Dim, ...]:
    trail: Dim = random.choice([*_TRAILS, *_TRAILS, "M"])
    return random.choice(
        [(trail,), ("N", trail), ("N", trail), ("N", 4, trail), (2, "N", trail), ("N", 3, 2, trail)]
    )


def _related(random: Random, base: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The shape itself, or one that is broadcast to it."""
    kind = random.random()
    if kind < 0.6:
        return base
    if kind < 0.8:
        return tuple(1 if random.random() < 0.5 else dim for dim in base)
    return base[random.randrange(len(base)) :]
