"""Value profiles in a model: as annotations, which saving strips, and as assertions of guards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from graphopt import ir
from graphopt.errors import InvalidModel
from graphopt.ops import graphopt_operators
from graphopt.profile.value_profile import ValueProfile

#: Metadata key of an annotation; its value is :meth:`ValueProfile.to_dict` as JSON.
_KEY = f"{graphopt_operators.PROFILE_NOTES}seen"


def annotate(model: ir.Model, values: Mapping[str, ValueProfile]) -> None:
    """Annotate the values of ``model`` with their profiles, given by name."""
    for graph in ir.graphs_of(model):
        for value in ir.values_of(graph):
            profile = values.get(value.name or "")
            if profile is not None:
                value.metadata_props[_KEY] = json.dumps(profile.to_dict())


def annotate_gradients(model: ir.Model, requires_grad: Mapping[str, bool]) -> None:
    """Annotate inputs and initializers with whether they require a gradient, given by name."""
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        wanted = requires_grad.get(value.name or "")
        if wanted is not None:
            value.metadata_props[graphopt_operators.REQUIRES_GRAD] = str(wanted).lower()


def value_requiring_gradient(model: ir.Model) -> str | None:
    """The name of the first value, also in bodies, that is annotated as requiring a gradient; or ``None``."""
    for graph in ir.with_bodies(model.graph):
        for value in ir.values_of(graph):
            if graphopt_operators.requires_grad_annotation(value):
                return value.name
    return None


def annotation_of(value: ir.Value) -> ValueProfile | None:
    """The profile with which ``value`` is annotated, or ``None``."""
    text = value.metadata_props.get(_KEY)
    return None if text is None else ValueProfile.from_dict(json.loads(text))


def is_annotation(key: str) -> bool:
    """Whether ``key`` is the metadata key of an annotation."""
    return key == _KEY


def assertion_of(node: ir.Node) -> ValueProfile | None:
    """The assertion of the guard ``node`` about its input; ``None`` if it is missing or malformed."""
    attribute = node.attributes.get(graphopt_operators.SEEN)
    if attribute is None or attribute.is_ref() or attribute.type is not ir.AttributeType.STRING:
        return None
    try:
        return ValueProfile.from_dict(json.loads(attribute.as_string()))
    except (ValueError, InvalidModel):
        return None


def guard_attributes(profile: ValueProfile) -> dict[str, str]:
    """The attributes of a guard that asserts ``profile``, of a value that is always present."""
    return {graphopt_operators.SEEN: json.dumps(replace(profile, always=True).to_dict())}
