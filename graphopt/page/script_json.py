"""JSON that is safe inside a ``<script>`` element."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

#: Characters that could end the element or a line of a script, as escapes of JSON strings.
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def script_json(data: Any) -> str:
    """``data`` as JSON without ``<``, ``>``, ``&`` and line separators, which occur only in strings.

    NaN and infinities, which JSON lacks, become ``null``.
    """
    try:
        text = _dumped(data)
    except ValueError:
        text = _dumped(_finite(data))
    return text.translate(_ESCAPES)


def _dumped(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _finite(data: Any) -> Any:
    """``data`` with ``None`` in place of numbers that are not finite."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: _finite(item) for key, item in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(item) for item in data]
    return data
