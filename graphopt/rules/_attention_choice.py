"""Which fused operator attention becomes: numbers in one place, and nothing but numbers decides.

Speed over the operators one by one, one CPU thread, head size 64, 12 heads, by sequence length:

===========================  ====  ====  ====  ====  ====  ====
..                            16    64   128   256   512  1024
===========================  ====  ====  ====  ====  ====  ====
MultiHeadAttention           1.2   0.9   1.1   1.1   1.2   1.3
Attention of rows            2.0   1.4   1.3   1.1   1.1   1.0
the same, causal             1.4   1.2   1.2   1.1   1.1   1.1
GroupQueryAttention, causal  1.0   0.9   0.9   1.0   1.1   1.3
===========================  ====  ====  ====  ====  ====  ====
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MULTI_HEAD, STANDARD, GROUPED = "MultiHeadAttention", "Attention", "GroupQueryAttention"

#: Keys up to which the standard's Attention is faster than MultiHeadAttention: without a mask, and with one.
STANDARD_UP_TO = {False: 256, True: 768}
#: Keys from which GroupQueryAttention, which computes nothing beyond the diagonal, is the fastest: where
#: heads share keys, and where each has its own.
GROUPED_FROM = {True: 384, False: 768}
#: Keys that are assumed where their number is unknown.
UNKNOWN_LENGTH = 128


@dataclass(frozen=True)
class Workload:
    """What attention computes.

    Attributes:
        keys: how many, ``None`` if that differs from run to run.
        masked: something is added to the scores, or hides some.
        shared: several heads share keys and values.
    """

    keys: int | None
    masked: bool
    shared: bool


def choose(possible: Sequence[str], work: Workload) -> str | None:
    """The fastest of the operators that are possible; ``None`` if none is."""
    keys = UNKNOWN_LENGTH if work.keys is None else work.keys
    order = [MULTI_HEAD, STANDARD, GROUPED]
    if keys <= STANDARD_UP_TO[work.masked] or work.shared:
        order = [STANDARD, MULTI_HEAD, GROUPED]
    if keys >= GROUPED_FROM[work.shared]:
        order = [GROUPED, *order[:2]]
    return next((op_type for op_type in order if op_type in possible), None)
