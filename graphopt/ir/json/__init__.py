# mypy: implicit-reexport
"""The JSON IR: a lossless, readable and editable representation of models, described in ``docs/json-ir.md``.

Its objects correspond to the messages of onnx.proto (``proto_messages.py``). Large tensors are external data
in a file beside the document.
"""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

import onnx

from graphopt.errors import InvalidModel
from graphopt.ir.json import proto_messages
from graphopt.ir.json.errors import Fault, shown
from graphopt.ir.json.field_tables import DUPLICATE
from graphopt.ir.json.pretty_printer import render

#: The version of the format.
VERSION = 1
#: Maximum nesting depth of bodies that protobuf can parse.
_DEEPEST = 33

#: An unpaired surrogate, which is not a character.
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def to_json(proto: onnx.ModelProto, inline_limit: int) -> str:
    """Convert ``proto`` to a document; tensors of at least ``inline_limit`` bytes are base64 or external.

    Raises:
        InvalidModel: the contents of a tensor do not fit its type.
    """
    return render({"graphopt": VERSION, **proto_messages.MODEL.write(proto, inline_limit)})


def from_json(text: str) -> onnx.ModelProto:
    """Parse a document. Tensors in other files are external.

    Raises:
        InvalidModel: the text is not JSON, not the JSON IR, or invalid; the message contains the path of the
            error.
    """
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)
        if "\\ud" in text.lower():
            _check_texts(document)
        _check_version(document)
        proto = onnx.ModelProto()
        proto_messages.MODEL.read(document, proto)
        _check_depth(proto)
        return proto
    except json.JSONDecodeError as error:
        raise InvalidModel(f"line {error.lineno}, column {error.colno}: {_lowered(error.msg)}") from None
    except Fault as fault:
        raise InvalidModel(str(fault)) from None
    except RecursionError:
        raise InvalidModel("objects and lists are nested too deep") from None
    except ValueError as error:  # an integer of thousands of digits
        raise InvalidModel(f"is not JSON: {_lowered(str(error).splitlines()[0][:200])}") from None


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of documents."""
    text = resources.files(__name__).joinpath("model.schema.json").read_text(encoding="utf-8")
    result: dict[str, Any] = json.loads(text)
    return result


def _check_version(document: Any) -> None:
    if type(document) is not dict:
        raise Fault(f"expects an object, found {shown(document)}")
    if "graphopt" not in document:
        raise Fault("lacks 'graphopt', the version of the JSON IR; onnx's own JSON has the suffix .onnxjson")
    if document["graphopt"] is True or document["graphopt"] != VERSION:
        raise Fault(f"expects {VERSION}, found {shown(document['graphopt'])}").under("graphopt")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        result[DUPLICATE] = next(key for key in keys if keys.count(key) > 1)
    return result


def _refuse(constant: str) -> Any:
    text = constant.lower().replace("infinity", "inf")
    raise Fault(f"{constant} is no JSON; write {text!r} as a string")


def _check_texts(document: Any) -> None:
    """Reject strings that can't be encoded as UTF-8."""
    pending: list[tuple[tuple[str | int, ...], Any]] = [((), document)]
    while pending:
        path, item = pending.pop()
        if isinstance(item, dict):
            for key, value in item.items():
                pending += [((*path, key), value), (path, key)]
        elif isinstance(item, list):
            pending += [((*path, index), entry) for index, entry in enumerate(item)]
        elif isinstance(item, str) and _SURROGATE.search(item):
            raise Fault("half of a surrogate pair is no character").under(*path)


def _check_depth(proto: onnx.ModelProto) -> None:
    level: list[Any] = [proto.graph, *proto.functions]
    for _ in range(_DEEPEST + 1):
        attributes = [attribute for holder in level for node in holder.node for attribute in node.attribute]
        level = [graph for a in attributes for graph in ([a.g] if a.HasField("g") else a.graphs)]
    if level:
        raise Fault(f"bodies are nested more than {_DEEPEST} deep")


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:]
