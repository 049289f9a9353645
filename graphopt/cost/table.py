"""Relative times of fused operators, and the decision that they lead to.

A figure is a *ratio*: the time of a fused operator over that of the nodes it replaces, which onnxruntime
optimizes as it can. Ratios are known at some sizes; between them they are interpolated over the logarithms
of the sizes, beyond them the nearest holds. All functions are pure.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from graphopt.errors import UsageError

#: Raised when the form of tables changes.
FORMAT = 2
#: Element type of the figures that stand for types without any.
_COMMON = "float"
#: What gains less is not worth another operator, whatever the noise.
LEAST_GAIN = 0.98
#: Passes after which the noise of one place is known: as many as the harness needs processes for a claim.
ENOUGH_PASSES = 5
#: Operators with figures that no rule asks for, and what is done: most compute less than what they replace.
UNASKED = {
    "LayerNormalization": "used anyway",
    "RMSNormalization": "used anyway",
    "SimplifiedLayerNormalization": "used anyway",
    "Gelu": "used anyway",
    "FastGelu": "used anyway",
    "QuickGelu": "used anyway",
    "GroupNormalization": "never used",
}


@dataclass(frozen=True)
class Axis:
    """Sizes of one kind at which something was measured.

    Attributes:
        name: what they are sizes of, such as ``length``.
        sizes: in rising order.
        default: stands for a size that is not known.
    """

    name: str
    sizes: tuple[int, ...]
    default: int

    def place(self, size: Any) -> Iterator[tuple[int, float]]:
        """The measured sizes around ``size``, by index, and the weight of each."""
        known = size if isinstance(size, int) and size > 0 else self.default
        low, high = self.sizes[0], self.sizes[-1]
        known = min(max(known, low), high)
        above = bisect_right(self.sizes, known)
        if above == len(self.sizes):
            yield above - 1, 1.0
            return
        first, second = self.sizes[above - 1 : above + 1]
        share = math.log(known / first) / math.log(second / first)
        yield above - 1, 1 - share
        if share:
            yield above, share


def choices(axes: Sequence[Axis]) -> Iterator[dict[str, int]]:
    """Each choice of a size on every axis, those of the last axis next to one another."""
    for sizes in product(*(axis.sizes for axis in axes)):
        yield {axis.name: size for axis, size in zip(axes, sizes, strict=True)}


@dataclass(frozen=True)
class Estimate:
    """What figures say of one operator at one place.

    Attributes:
        ratio: time of the operator over that of what it replaces.
        band: ratios from here up to 1 are noise.
    """

    ratio: float
    band: float

    @property
    def pays(self) -> bool:
        """Whether the operator is faster, by more than noise."""
        return self.ratio < self.band


@dataclass(frozen=True)
class Grid:
    """The figures of one operator.

    Attributes:
        op: the operator, or the pass that makes it.
        case: what else matters, such as ``causal``; the empty one stands for cases without figures.
        dtype: element type, as onnxruntime writes it.
        axes: the sizes that matter.
        ratios: one for each choice of sizes, those of the last axis next to one another.
        bands: for each of these the lower end of the band of what was replaced against itself.
    """

    op: str
    case: str
    dtype: str
    axes: tuple[Axis, ...]
    ratios: tuple[float, ...]
    bands: tuple[float, ...]

    def at(self, sizes: Mapping[str, Any]) -> Estimate:
        """The estimate for ``sizes``; those that are not known ints count as the default of their axis."""
        ratio = band = 0.0
        for corner in product(*(tuple(axis.place(sizes.get(axis.name))) for axis in self.axes)):
            index, weight = 0, 1.0
            for axis, (position, share) in zip(self.axes, corner, strict=True):
                index, weight = index * len(axis.sizes) + position, weight * share
            ratio += weight * math.log(self.ratios[index])
            band += weight * math.log(self.bands[index])
        return Estimate(math.exp(ratio), math.exp(band))

    def told(self, sizes: Mapping[str, Any]) -> str:
        """The place of an estimate in words, such as ``length 128``."""
        said = []
        for axis in self.axes:
            known = sizes.get(axis.name)
            exact = isinstance(known, int) and known > 0
            said.append(
                f"{axis.name} {known:,}" if exact else f"{axis.name} unknown, {axis.default:,} assumed"
            )
        return f" at {'; '.join(said)}" if said else ""

    def points(self) -> Iterator[tuple[dict[str, int], Estimate]]:
        """Each choice of sizes, and what was measured there."""
        figures = map(Estimate, self.ratios, self.bands)
        yield from zip(choices(self.axes), figures, strict=True)


@dataclass(frozen=True)
class Decision:
    """What to use in one place; true if that is one of the fused operators.

    Attributes:
        op: the operator; ``None`` for the nodes that are there.
        ratio: its time over theirs, or that of the best of those that do not pay; ``None`` without figures.
        reason: why, in words.
        hint: what the user can do about it, if anything.
    """

    op: str | None
    ratio: float | None
    reason: str
    hint: str | None = None

    def __bool__(self) -> bool:
        return self.op is not None


@dataclass(frozen=True)
class Costs:
    """The figures for one device.

    Attributes:
        name: what reports call them.
        device: ``cpu`` or ``cuda``.
        where: what they were measured with: processor, runtime, threads.
        grids: the figures.
        passes: in how many they were calibrated; ``None`` for what is shipped.
    """

    name: str
    device: str
    where: str = ""
    grids: tuple[Grid, ...] = ()
    passes: int | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.where})" if self.where else self.name

    @property
    def rough(self) -> bool:
        """Whether more passes would tell more of the noise."""
        return self.passes is not None and self.passes < ENOUGH_PASSES

    def grid(self, op: str, case: str = "", dtype: str | None = None) -> Grid | None:
        """The figures for ``op``: of the case and type, or else those that stand for them."""
        for wanted in product((case, ""), (dtype or _COMMON, _COMMON)):
            for grid in self.grids:
                if (grid.op, (grid.case, grid.dtype)) == (op, wanted):
                    return grid
        return None

    def weigh(self, *ops: str, case: str = "", dtype: str | None = None, **sizes: Any) -> Decision:
        """Which of the fused operators ``ops`` to use, or none of them.

        The fastest that beats the nodes it would replace by more than noise; of equally fast ones
        the first. Where there are no figures for any of them, the first is taken at its word.

        >>> shipped("cpu").weigh("SkipLayerNormalization", rows=512).op is None
        True

        Args:
            ops: names of operators, or of passes.
            case: what else matters, such as ``causal``.
            dtype: element type, as onnxruntime writes it.
            sizes: by name of the axis; whatever is no positive int is unknown.

        Raises:
            ValueError: there are figures for one of ``ops``, but for no such case or axis.
        """
        grids = [grid for op in ops if (grid := self.grid(op, case, dtype)) is not None]
        self._admit(ops, case, sizes)
        known = [(grid.at(sizes), grid) for grid in grids]
        if not known:
            return Decision(ops[0], None, f"no figures for {' or '.join(ops)} on {_called(self.device)}")
        paying = [item for item in known if item[0].pays]
        best, grid = min(paying or known, key=lambda item: item[0].ratio)
        share = f"{best.ratio:.2f}× the time of the nodes that it replaces"
        said = f"{grid.op} takes {share}{grid.told(sizes)}"
        if paying:
            return Decision(grid.op, best.ratio, f"{said} ({self.name})")
        if round(best.ratio, 2) < 1:
            noise = f"only less than {best.band:.2f} is more than noise"
            reason = f"it may not be faster: {said}, and {noise} ({self.name})"
        else:
            reason = f"it would not be faster: {said} ({self.name})"
        return Decision(None, best.ratio, reason, self._hint(best))

    def _admit(self, ops: Sequence[str], case: str, sizes: Mapping[str, Any]) -> None:
        """Fail where neither this table nor the shipped one knows ``case``, or an axis for ``ops``."""
        every = [grid for table in (self, shipped("cpu")) for grid in table.grids]
        axes = {axis.name for grid in every if grid.op in ops for axis in grid.axes}
        if case not in {"", *(grid.case for grid in every)}:
            raise ValueError(f"no figures have the case {case!r}")
        for name in sizes:
            if axes and name not in axes:
                raise ValueError(f"no figures of {' or '.join(ops)} have the axis {name!r}")

    def _hint(self, best: Estimate) -> str | None:
        """What may decide otherwise where ``best`` does not pay: to measure here, or for longer."""
        if self.passes is None:
            return "graphopt calibrate measures that on this machine"
        if self.rough and best.ratio < LEAST_GAIN:
            return (
                "graphopt calibrate without --budget makes as many passes as it takes to tell gain from noise"
            )
        return None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "format": FORMAT,
            "name": self.name,
            "device": self.device,
            "where": self.where,
            "passes": self.passes,
            "grids": [
                {
                    "op": grid.op,
                    "case": grid.case,
                    "dtype": grid.dtype,
                    "axes": {
                        axis.name: {"sizes": list(axis.sizes), "default": axis.default} for axis in grid.axes
                    },
                    "ratios": list(grid.ratios),
                    "bands": list(grid.bands),
                }
                for grid in self.grids
            ],
        }

    def text(self) -> str:
        """What files hold: JSON, with one line for each grid."""
        head, grids = self.to_dict(), self.to_dict()["grids"]
        lines = [f"{json.dumps(key)}: {json.dumps(value)}," for key, value in head.items() if key != "grids"]
        return "\n".join(["{", *lines, '"grids": [', ",\n".join(map(json.dumps, grids)), "]", "}", ""])

    @classmethod
    def from_dict(cls, data: Any) -> Costs:
        """Read what :meth:`to_dict` made.

        Raises:
            ValueError: it is of another form, or its figures make no sense.
        """
        if not isinstance(data, dict):
            raise ValueError("it is no JSON object")
        try:
            if data["format"] != FORMAT:
                raise ValueError(f"format {data['format']!r}, not {FORMAT}")
            grids = tuple(_grid(item) for item in data["grids"])
            passes = None if data["passes"] is None else int(data["passes"])
            return cls(str(data["name"]), str(data["device"]), str(data["where"]), grids, passes)
        except KeyError as error:
            raise ValueError(f"it lacks {error}") from error
        except (TypeError, AttributeError) as error:
            raise ValueError("its parts are of other forms than in a table") from error


def _grid(data: Mapping[str, Any]) -> Grid:
    axes = tuple(
        Axis(str(name), tuple(int(size) for size in axis["sizes"]), int(axis["default"]))
        for name, axis in data["axes"].items()
    )
    ratios, bands = (tuple(float(figure) for figure in data[key]) for key in ("ratios", "bands"))
    if {len(ratios), len(bands)} != {math.prod(len(axis.sizes) for axis in axes)}:
        raise ValueError(f"{data['op']} has not one ratio and band for each choice of sizes")
    if not all(0 < figure < math.inf for figure in (*ratios, *bands)):
        raise ValueError(f"{data['op']} has ratios that are no positive numbers")
    for axis in axes:
        if not axis.sizes or axis.sizes[0] < 1 or list(axis.sizes) != sorted(set(axis.sizes)):
            raise ValueError(f"{data['op']}: the sizes of {axis.name} do not rise")
    return Grid(str(data["op"]), str(data["case"]), str(data["dtype"]), axes, ratios, bands)


def read(path: Path) -> Costs:
    """The table in a file.

    Raises:
        UsageError: it can't be read, or holds none.
    """
    try:
        return Costs.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror or error}") from error
    except ValueError as error:
        hint = "graphopt calibrate writes such files"
        raise UsageError(f"{path} is no table of costs: {error}", hint=hint) from error


@lru_cache(maxsize=4)
def shipped(device: str) -> Costs:
    """The figures that come with graphopt for a kind of device; without any, an empty table."""
    path = Path(__file__).with_name(f"{device}.json")
    return read(path) if path.is_file() else Costs(f"no figures for {_called(device)}", device)


def _called(kind: str) -> str:
    """What people call a kind of device."""
    return kind.upper()
