"""What was seen of values: noted on them, which saving strips, or asserted by guards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from graphopt import ir
from graphopt.errors import InvalidModel
from graphopt.ops import dialects
from graphopt.profile.value_profile import Seen

#: What runs have shown of a value, as :meth:`Seen.to_dict` tells it.
_SEEN = f"{dialects.PROFILE_NOTES}seen"


def note(model: ir.Model, values: Mapping[str, Seen]) -> None:
    """Note on the values of ``model`` that bear these names what was seen of them."""
    for graph in ir.graphs_of(model):
        for value in ir.values_of(graph):
            seen = values.get(value.name or "")
            if seen is not None:
                value.metadata_props[_SEEN] = json.dumps(seen.to_dict())


def noted(value: ir.Value) -> Seen | None:
    """What was seen of ``value``; ``None`` if nothing is noted."""
    text = value.metadata_props.get(_SEEN)
    return None if text is None else Seen.from_dict(json.loads(text))


def is_note(key: str) -> bool:
    """Whether the metadata entry ``key`` is a note of this kind."""
    return key == _SEEN


def asserted(node: ir.Node) -> Seen | None:
    """What the guard ``node`` asserts of what it reads; ``None`` if it does not say so."""
    attribute = node.attributes.get(dialects.SEEN)
    if attribute is None or attribute.is_ref() or attribute.type is not ir.AttributeType.STRING:
        return None
    try:
        return Seen.from_dict(json.loads(attribute.as_string()))
    except (ValueError, InvalidModel):
        return None


def assertion(seen: Seen) -> dict[str, str]:
    """The attributes of a guard that asserts ``seen``; it always has something to look at."""
    return {dialects.SEEN: json.dumps(replace(seen, always=True).to_dict())}
