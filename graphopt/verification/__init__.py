"""Differential testing of two models: run both on generated inputs and compare their outputs.

**Comparisons.** Sessions without onnxruntime's optimizations are compared with one another. Default sessions
are also compared, because users run these, and onnxruntime's own optimizer can break a correct graph. Several
bindings of the dynamic dims and several input distributions are tried; inputs on which the original fails are
skipped. If every rewrite is proven exact, only ordinary inputs, and zeros and special values at the smallest
sizes, are compared, unless some bit differs.

**Requirements.** Element types, shapes, strings, booleans and integers agree. Floats agree within
:class:`~graphopt.verification.tolerances.Tolerance`, which depends on the numerics class of the
rewrites and on the coarsest float type in the computation. Non-finite numbers:

========================  ====================  =====================  =====================
inputs                    EXACT                 REASSOCIATES           APPROXIMATES
========================  ====================  =====================  =====================
normal, zero, negative,   the same NaN or       the same NaN or        no finite number may
denormal (tiny)           infinity              infinity, or a huge    be lost
                                                number for infinity
large                     the same              no finite number may   no finite number may
                                                be lost                be lost
next to the largest       the same              not compared           not compared
(huge)
NaN and infinities        the same              not finite in the      nothing
                                                same places
========================  ====================  =====================  =====================

A different order of evaluation may turn an infinity into NaN (inf - inf) or, by overflowing later, into a
number. It never turns a number into an infinity, or a NaN into a finite number. A later operator, such as a
reciprocal or a comparison, may turn an infinity or a NaN into a finite number. So for inputs with infinities,
a difference counts only if it remains after the infinities are replaced by large numbers. These requirements
apply without optimizations. Fused kernels differ in their treatment of non-finite numbers, so default
sessions need only preserve finite numbers, and run on NaN and infinities. Without optimizations, EXACT also
distinguishes 0.0 from -0.0, unless a maximum chose between them; with ``bits``, every bit counts.

**Excused differences.** An output of a bounded operator such as Sigmoid may differ by the absolute rounding
error of that operator, also after operators that only move elements (:data:`graphopt.ops.traits.MOVES`). If
the original's default session deviates from its session without optimizations, the candidate's default
session may also deviate. If a difference is larger than rounding, the original is run again on differently
rounded inputs, and with intermediate results changed by two units in the last place. If that changes the
output by as much, in its largest element and in all elements together (an argmax that flips, a few
quantization steps), the output is ill-conditioned and the difference is allowed. This excuse does not apply
to EXACT sessions without optimizations, except in half precision, for which onnxruntime inserts and removes
casts. The original's result in the widest float type is also allowed, such as for an argmax over overflowing
values or the log of a vanishing softmax; for integers and booleans, this applies to each element separately.
If large numbers overflow even in that type, any result is allowed. A NaN of denormal inputs that is a number
in that type may become any number. Half-precision numbers may be rounded at each step or at none. A maximum
over NaN depends on the kernel, and the sign of an infinity at a pole depends on the sign of a zero. Rounding
is no excuse for an output whose computation rounds no floats. For inputs with NaN but no infinities, outputs
of other types must agree exactly.

Outputs that are random in the original must remain random; only their types and shapes are compared. The same
holds for outputs that depend on memory that onnxruntime leaves unwritten
(:mod:`graphopt.verification.empty_tensor_faults`).
"""
