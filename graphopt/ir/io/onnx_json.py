"""onnx's own JSON: protobuf's rendering of onnx.proto.

Protobuf rounds the largest float32 up on writing, and then rejects it on reading; masks often contain this
number. Therefore it is written exactly, and accepted in both forms.
"""

from __future__ import annotations

import json
from typing import Any

import onnx
from google.protobuf import json_format  # type: ignore[import-untyped]

from graphopt.errors import InvalidModel

_ROUNDED = 3.4028235e38
_LARGEST = 3.4028234663852886e38
_DOUBLES = frozenset({"double_data", "doubleData"})


def to_onnx_json(proto: onnx.ModelProto) -> str:
    """The JSON of ``proto``."""
    document = json_format.MessageToDict(proto, preserving_proto_field_name=True)
    _correct(document)
    return json.dumps(document, indent=2)


def from_onnx_json(text: str) -> onnx.ModelProto:
    """Parse ``text``.

    Raises:
        InvalidModel: the text is not JSON, or does not fit onnx.proto.
    """
    proto = onnx.ModelProto()
    try:
        document = json.loads(text)
        _correct(document)
        json_format.ParseDict(document, proto)
    except RecursionError:
        raise InvalidModel("objects and lists are nested too deep") from None
    except Exception as error:  # ParseError for mismatches; wrong types raise arbitrary exceptions
        raise InvalidModel(" ".join(str(error).split())[:200]) from error
    return proto


def _correct(document: Any) -> None:
    """Replace the rounded form of the largest float32, except in fields of doubles."""
    pending = [document]
    while pending:
        holder = pending.pop()
        places = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, item in list(places) if isinstance(holder, (dict, list)) else ():
            if isinstance(item, float):
                if abs(item) == _ROUNDED:
                    holder[key] = _LARGEST if item > 0 else -_LARGEST
            elif isinstance(item, (dict, list)) and key not in _DOUBLES:
                pending.append(item)
