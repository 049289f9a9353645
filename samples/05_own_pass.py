"""Write a custom rewrite rule and a custom pass, and run them after the default pipeline.

python samples/05_own_pass.py [FOLDER TO WRITE TO]

The command line can use the pass from a copy of this file called own_pass.py:
PYTHONPATH=. graphopt optimize model.onnx -o out.onnx --post-pass own_pass:FastDivision
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

import graphopt
from graphopt import (
    Builder,
    Context,
    Match,
    Outcome,
    Pass,
    Reassociates,
    apply_rules,
    ir,
    rule,
)


@rule(lambda op, x, c: op.Div(x, c.constant()), numerics=Reassociates)
def multiply_by_reciprocal(op: Builder, m: Match, x: ir.Value, c: ir.Value) -> Outcome:
    """x / c → x · (1 / c) for a constant c."""
    divisor = m.constant(c)
    if divisor is None or divisor.dtype not in (np.float32, np.float64):
        return m.no("only for float32 and float64", c)
    with np.errstate(divide="ignore", over="ignore"):
        reciprocal = np.reciprocal(divisor)
    if not np.isfinite(reciprocal).all():
        return m.no("the reciprocal overflows", c)
    return op.Mul(x, op.constant(reciprocal))


@dataclass(frozen=True)
class FastDivision(Pass):
    """Replace divisions by constants by multiplications."""

    name: ClassVar[str] = "fast-division"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Apply the rule to a fixpoint."""
        apply_rules([multiply_by_reciprocal], model, cx)


def main() -> None:
    """Run the pass on a sample model."""
    import models  # next to this file

    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/samples")
    folder.mkdir(parents=True, exist_ok=True)

    # The result is verified as usual.
    model, report = graphopt.optimize(models.write("transformer", folder), post_passes=[FastDivision()])
    print(report)
    graphopt.save(model, folder / "transformer.fast.onnx")


if __name__ == "__main__":  # importing the file must not run anything
    main()
