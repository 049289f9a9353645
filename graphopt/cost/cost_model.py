"""The cost model of fused operators: their relative times, and decisions based on these.

A figure is a *ratio*: the time of a fused operator over that of the nodes it replaces, as optimized by
onnxruntime. Ratios are measured at some sizes, interpolated between them over the logarithms of the sizes,
and constant beyond them. All functions are pure.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from graphopt.errors import UsageError
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted

#: Version of the file format of tables.
FORMAT = 2
#: Element type whose figures apply to types without figures.
_COMMON = "float"
#: Largest predicted ratio at which a fused operator is chosen, regardless of noise.
LEAST_GAIN = 0.98
#: Number of passes after which the noise of a point is known; the harness needs the same number of processes
#: for a claim.
ENOUGH_PASSES = 5
#: Operators whose figures no rule uses, and whether rules use the operators. Most of these operators compute
#: less than the replaced nodes; onnxruntime itself creates BiasSoftmax on CUDA.
UNUSED_FIGURES = {
    "LayerNormalization": "used anyway",
    "RMSNormalization": "used anyway",
    "SimplifiedLayerNormalization": "used anyway",
    "Gelu": "used anyway",
    "FastGelu": "used anyway",
    "QuickGelu": "used anyway",
    "GroupNormalization": "never used",
    "GroupNorm": "never used",
    "BiasSoftmax": "by onnxruntime",
}


@dataclass(frozen=True)
class Axis:
    """The sizes of one kind at which measurements were made.

    Attributes:
        name: name of the kind, such as ``length``.
        default: the size assumed if it is unknown.
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
    """All combinations of sizes on the axes, the last axis varying fastest."""
    for sizes in product(*(axis.sizes for axis in axes)):
        yield {axis.name: size for axis, size in zip(axes, sizes, strict=True)}


@dataclass(frozen=True)
class Estimate:
    """The estimate for one operator at some sizes.

    Attributes:
        ratio: time of the operator over that of the nodes it replaces.
        band: ratios from this value up to 1 are noise.
    """

    ratio: float
    band: float

    @property
    def pays(self) -> bool:
        """Whether the operator is faster by more than noise."""
        return self.ratio < self.band


@dataclass(frozen=True)
class Grid:
    """The figures of one operator.

    Attributes:
        op: the operator, or the pass that creates it.
        case: further distinction, such as ``causal``; the empty case applies to cases without figures.
        dtype: element type in onnxruntime's notation.
        ratios: one for each combination of sizes, the last axis varying fastest.
        bands: for each combination, the lowest ratio that is still noise.
    """

    op: str
    case: str
    dtype: str
    axes: tuple[Axis, ...]
    ratios: tuple[float, ...]
    bands: tuple[float, ...]

    def at(self, sizes: Mapping[str, Any]) -> Estimate:
        """The estimate for ``sizes``; unknown sizes count as the default of their axis."""
        ratio = band = 0.0
        for corner in product(*(tuple(axis.place(sizes.get(axis.name))) for axis in self.axes)):
            index, weight = 0, 1.0
            for axis, (position, share) in zip(self.axes, corner, strict=True):
                index, weight = index * len(axis.sizes) + position, weight * share
            ratio += weight * math.log(self.ratios[index])
            band += weight * math.log(self.bands[index])
        return Estimate(math.exp(ratio), math.exp(band))

    def describe(self, sizes: Mapping[str, Any]) -> str:
        """The sizes of an estimate as text, such as ``at length 128`` or ``at 512 rows``.

        The name of an axis that counts objects is a plural.
        """
        words = []
        for axis in self.axes:
            known, counts = sizes.get(axis.name), axis.name.endswith("s")
            if isinstance(known, int) and known > 0:
                words.append(counted(known, axis.name[:-1]) if counts else f"{axis.name} {known:,}")
            else:
                unknown = f"an unknown number of {axis.name}" if counts else f"{axis.name} unknown"
                words.append(f"{unknown}, {axis.default:,} assumed")
        return f" at {'; '.join(words)}" if words else ""

    def points(self) -> Iterator[tuple[dict[str, int], Estimate]]:
        """All combinations of sizes with their estimates."""
        return zip(choices(self.axes), map(Estimate, self.ratios, self.bands), strict=True)


@dataclass(frozen=True)
class Decision:
    """The decision for one rewrite site; true if it is for a fused operator.

    Attributes:
        op: the operator; ``None`` to keep the nodes.
        ratio: time of the operator over that of the nodes; the best ratio if no operator is faster; ``None``
            without figures.
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
        name: name in reports.
        device: ``cpu`` or ``cuda``.
        where: circumstances of the measurement: processor, runtime, threads.
        passes: number of calibration passes; ``None`` for the shipped table.
        assumed: whether the figures are assumptions instead of measurements.
    """

    name: str
    device: str
    where: str = ""
    grids: tuple[Grid, ...] = ()
    passes: int | None = None
    assumed: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.where})" if self.where else self.name

    @property
    def rough(self) -> bool:
        """Whether more passes would improve the estimate of the noise."""
        return self.passes is not None and self.passes < ENOUGH_PASSES

    def grid(self, op: str, case: str = "", dtype: str | None = None) -> Grid | None:
        """The figures for ``op`` with this case and type, otherwise with the default case or type."""
        for wanted in product((case, ""), (dtype or _COMMON, _COMMON)):
            for grid in self.grids:
                if (grid.op, (grid.case, grid.dtype)) == (op, wanted):
                    return grid
        return None

    def weigh(self, *ops: str, case: str = "", dtype: str | None = None, **sizes: Any) -> Decision:
        """Choose one of the fused operators ``ops``, or none.

        The choice is the fastest operator that is faster than the replaced nodes by more than noise; of
        equally fast operators, the first. If none of them has figures, the choice is the first operator.

        >>> shipped("cpu").weigh("SkipLayerNormalization", rows=512).op is None
        True

        Args:
            ops: names of operators, or of passes.
            case: further distinction, such as ``causal``.
            dtype: element type in onnxruntime's notation.
            sizes: sizes by name of the axis; anything but a positive int is unknown.

        Raises:
            ValueError: one of ``ops`` has figures, but none for the case, or an axis of ``sizes`` does not
                exist.
        """
        grids = [grid for op in ops if (grid := self.grid(op, case, dtype)) is not None]
        self._admit(ops, case, sizes)
        known = [(grid.at(sizes), grid) for grid in grids]
        if not known:
            return Decision(ops[0], None, f"no figures for {' or '.join(ops)} on {self.device.upper()}")
        paying = [item for item in known if item[0].pays]
        best, grid = min(paying or known, key=lambda item: item[0].ratio)
        share = f"{best.ratio:.2f}× the time of the nodes that it replaces"
        takes = "is assumed to take" if self.assumed else "takes"
        time = f"{grid.op} {takes} {share}{grid.describe(sizes)}"
        if paying:
            return Decision(grid.op, best.ratio, f"{time} ({self.name})")
        if round(best.ratio, 2) < 1:
            noise = f"only less than {best.band:.2f} is more than noise"
            reason = f"it may not be faster: {time}, and {noise} ({self.name})"
        else:
            reason = f"it would not be faster: {time} ({self.name})"
        return Decision(None, best.ratio, reason, self._hint(best))

    def _admit(self, ops: Sequence[str], case: str, sizes: Mapping[str, Any]) -> None:
        """Raise ValueError if neither this table nor the shipped one has ``case``, or an axis for ``ops``."""
        every = [grid for table in (self, shipped("cpu")) for grid in table.grids]
        axes = {axis.name for grid in every if grid.op in ops for axis in grid.axes}
        if case not in {"", *(grid.case for grid in every)}:
            raise ValueError(f"no figures have the case {case!r}")
        for name in sizes:
            if axes and name not in axes:
                raise ValueError(f"no figures of {' or '.join(ops)} have the axis {name!r}")

    def _hint(self, best: Estimate) -> str | None:
        """The hint if ``best`` is not faster: measure on this machine, or for longer."""
        if self.passes is None:
            device = "" if self.device == "cpu" else f" --device {self.device}"
            return f"graphopt calibrate{device} measures that on this machine"
        if self.rough and best.ratio < LEAST_GAIN:
            return "graphopt calibrate without --budget makes enough passes to distinguish gains from noise"
        return None

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "name": self.name,
            "device": self.device,
            "where": self.where,
            "passes": self.passes,
            **({"assumed": True} if self.assumed else {}),
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
        """The text of files: JSON, with one line for each grid."""
        head, grids = self.to_dict(), self.to_dict()["grids"]
        lines = [f"{json.dumps(key)}: {json.dumps(value)}," for key, value in head.items() if key != "grids"]
        return "\n".join(["{", *lines, '"grids": [', ",\n".join(map(json.dumps, grids)), "]", "}", ""])

    @classmethod
    def from_dict(cls, data: Any) -> Costs:
        """Parse the result of :meth:`to_dict`.

        Raises:
            ValueError: the format differs, or a figure is invalid.
        """
        if not isinstance(data, dict):
            raise ValueError("it is no JSON object")
        try:
            if data["format"] != FORMAT:
                raise ValueError(f"format {data['format']!r}, not {FORMAT}")
            grids = tuple(_grid(item) for item in data["grids"])
            passes = None if data["passes"] is None else int(data["passes"])
            name, device, where = (str(data[key]) for key in ("name", "device", "where"))
            return cls(name, device, where, grids, passes, bool(data.get("assumed", False)))
        except KeyError as error:
            raise ValueError(f"it lacks {error}") from error
        except (TypeError, AttributeError) as error:
            raise ValueError("it has another layout than a cost table") from error


def _grid(data: Mapping[str, Any]) -> Grid:
    axes = tuple(
        Axis(str(name), tuple(int(size) for size in axis["sizes"]), int(axis["default"]))
        for name, axis in data["axes"].items()
    )
    ratios, bands = (tuple(float(figure) for figure in data[key]) for key in ("ratios", "bands"))
    if {len(ratios), len(bands)} != {math.prod(len(axis.sizes) for axis in axes)}:
        raise ValueError(f"{data['op']} does not have one ratio and band for each combination of sizes")
    if not all(0 < figure < math.inf for figure in (*ratios, *bands)):
        raise ValueError(f"{data['op']} has ratios that are not positive numbers")
    for axis in axes:
        if not axis.sizes or axis.sizes[0] < 1 or list(axis.sizes) != sorted(set(axis.sizes)):
            raise ValueError(f"{data['op']}: the sizes of {axis.name} are not ascending")
    return Grid(str(data["op"]), str(data["case"]), str(data["dtype"]), axes, ratios, bands)


def read(path: Path) -> Costs:
    """The table in a file.

    Raises:
        UsageError: the file can't be read, or contains no table.
    """
    try:
        return Costs.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror or error}") from error
    except ValueError as error:
        hint = "graphopt calibrate writes such files"
        raise UsageError(f"{path} is not a cost table: {error}", hint=hint) from error


@lru_cache(maxsize=4)
def shipped(device: str) -> Costs:
    """The figures shipped with graphopt for a kind of device; an empty table if there are none."""
    path = Path(__file__).with_name(f"{device}.json")
    return read(path) if path.is_file() else Costs(f"no figures for {device.upper()}", device)
