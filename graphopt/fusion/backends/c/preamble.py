"""The preamble of a source file: headers, once for each number of lanes in use."""

from __future__ import annotations

from enum import Enum
from functools import cache
from importlib import resources

from graphopt.fusion.c_code.bounds_checks import check_functions


class Lanes(Enum):
    """Number of lanes, by the widest type of a kernel; the value is the suffix of names in C."""

    BYTES = "b"
    WORDS = "w"
    LONGS = "h"

    @property
    def width(self) -> int:
        """Size of the widest type, in bytes."""
        return {"b": 1, "w": 4, "h": 8}[self.value]


def preamble(used: list[Lanes]) -> str:
    """The text before the kernels."""
    parts = ['#include "runtime.h"\n', header("level.h"), check_functions()]
    parts += map(header, ("chunks.h", "scalars.h"))
    for lanes in used:
        whole = lanes is Lanes.BYTES
        parts.append(f"#define GO_SET _{lanes.value}\n")
        parts.append(f"#define GO_LANES (GO_BYTES / {lanes.width})\n")
        parts.append(f"#define GO_WHOLE {int(whole)} /* Kernels of bytes compute no real numbers. */\n")
        parts.append(f"enum {{ LANES_{lanes.value} = GO_LANES }};\n")
        names = ["lanes.h", "pixels.h", "widths.h", "conversions.h", "integers.h", "sums.h"]
        if not whole:
            names[-1:-1] = ["halves.h", "machine.h", "math.h", "trigonometry.h", "power.h"]
        parts += [header(name) for name in names]
        macros = ["V", "C", "GO_TO", "GO_YES", "GO_WHOLE", "GO_LANES", "GO_SET"]
        parts.append("".join(f"#undef {name}\n" for name in macros))
    return "\n".join(parts)


@cache
def header(name: str) -> str:
    """The text of a file in ``include``."""
    return (resources.files(__package__) / "include" / name).read_text(encoding="utf-8")
