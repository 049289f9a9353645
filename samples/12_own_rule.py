"""Write a rewrite rule, with its numerics and refusals, and run it.

python samples/12_own_rule.py
"""

from __future__ import annotations

import onnx.parser

import graphopt
from graphopt import ir
from graphopt.rewrite import Approximates, Builder, Match, Outcome, rule

#: Three products of exponentials: one to rewrite, one of a value with itself, one in half precision.
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
products (float[N] a, float[N] b, float16[N] h, float16[N] i) => (float[N] y, float[N] z, float16[N] w) {
    ea = Exp (a)
    eb = Exp (b)
    y = Mul (ea, eb)
    ez = Exp (y)
    z = Mul (ez, ez)
    eh = Exp (h)
    ei = Exp (i)
    w = Mul (eh, ei)
}
"""


# Approximates, because e^100 · e^-100 is NaN in float32 (infinity times 0), and e^0 is 1. `exclusive`
# requires that no other node reads an inner value, because that value would still be computed.
@rule(lambda op, x, y: op.Mul(op.Exp(x), op.Exp(y)), numerics=Approximates, exclusive=True)
def exp_of_sum(op: Builder, m: Match, x: ir.Value, y: ir.Value) -> Outcome:
    """e^x · e^y → e^(x + y)."""
    if x is y:
        return m.no("both factors are the same value, whose exponential is computed once", x)
    if m.dtype(x) not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return m.no("only for float32 and float64", x, hint="convert the model to float32")
    return op.Exp(op.Add(x, y))


def main() -> None:
    """Run the rule with and without the permission to approximate."""
    model = onnx.parser.parse_model(MODEL)

    # By default, results may differ only by rounding; the report states that the rule did not run.
    strict = graphopt.optimize(model, rules=[exp_of_sum])
    assert strict.report.rules()["exp-of-sum"] == 0
    print(*strict.report.remarks, sep="\n")

    # With fast_math it runs along with graphopt's own rules, and the result is verified.
    fast = graphopt.optimize(model, rules=[exp_of_sum], fast_math=True)
    print(fast.report)
    assert fast.report.rules()["exp-of-sum"] == 1
    assert fast.verdict is not None and fast.verdict.ok

    # The reasons for the refusals at the other two sites.
    reasons = [refusal for refusal in fast.report.refusals if refusal.rule == "exp-of-sum"]
    for refusal in reasons:
        print(f"{refusal.rule} at {refusal.example}: {refusal.reason}")
    assert len(reasons) == 2


if __name__ == "__main__":
    main()
