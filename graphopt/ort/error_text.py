"""The errors of onnxruntime, in one short line."""

from __future__ import annotations

import re

#: Parts removed from onnxruntime's messages: status codes, source locations, C++ signatures.
_NOISE = (
    (r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ", ""),
    (r"Load model from .+? failed: ?", ""),
    (r"This is an invalid model\. ", ""),
    (r"Non-zero status code returned while running (\S+) node\. Name:'(.*?)' Status Message: ", r"\1 '\2': "),
    (r"\S+\.(?:cc|h|cu|cuh|cpp|hpp):\d+ (?:(?:\S+ ){0,4}?\S*onnxruntime::\S*\(.*?\)(?: const)? )?", ""),
    (r"(^|': )[^'.]{1,150}? was false\. (?=\S)", r"\1"),
    (
        r"ONNX Runtime only .*?Opset (\d+) .*?domain (\S+) is till opset (\d+)",
        r"opset \1 of \2 is unknown (last: \3)",
    ),
)
#: Number of characters of a message that are read.
_LONGEST = 20_000


def explain(error: BaseException) -> str:
    """The relevant part of an onnxruntime error, in one line."""
    text = " ".join(str(error)[:_LONGEST].split())  # a name in the message may have any length
    for pattern, replacement in _NOISE:
        text = re.sub(pattern, replacement, text)
    text = text.strip().rstrip(".") or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
