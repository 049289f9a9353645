"""Outputs of bodies that onnxruntime returns correctly only as copies.

onnxruntime 1.31 binds the outputs of a body to buffers of the node with the body. It leaves such a buffer
unwritten, or overwrites it, in these cases:

- A branch of an If, or the body of a Scan, returns one value as two outputs. A SequenceMap with such a body
  does not load.
- The body of a Scan returns one of its inputs.
- The body of a Loop returns its iteration number, which is incremented in place: every row, and the final
  value, is the number of iterations.

An Identity in the body is sufficient, at every level of onnxruntime's optimizations.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def outputs_to_copy(op_type: str, inputs: Sequence[T], outputs: Sequence[T]) -> list[int]:
    """The indices of the outputs of a body that must be copies.

    Args:
        op_type: the operator of ai.onnx that has the body.
        inputs: the inputs of the body.
        outputs: the outputs of the body; of several equal ones, the first needs no copy.
    """
    if op_type == "Loop":
        number = inputs[:1]
        return [index for index, output in enumerate(outputs) if output in number]
    if op_type not in ("If", "Scan", "SequenceMap"):
        return []
    returned = set(inputs) if op_type == "Scan" else set()
    found = []
    for index, output in enumerate(outputs):
        if output in returned:
            found.append(index)
        returned.add(output)
    return found
