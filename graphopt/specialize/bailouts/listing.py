"""Which places a model has, with or without a profile, and which of them is meant."""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphopt import ir
from graphopt.driver import context_for, copy
from graphopt.errors import UsageError, unknown
from graphopt.profile import Profile, check_profile
from graphopt.profile.notes import note
from graphopt.specialize.bailouts.places import Place, places_behind, places_of_guards
from graphopt.specialize.unforeseen_values import unforeseen
from graphopt.transforms.profile.insert_guards import InsertGuards
from graphopt.util.coerce import parse_natural


@dataclass(frozen=True)
class Places:
    """The places of a model.

    Attributes:
        model: general, without guards: what the places are of.
        places: in preorder, numbered from 0.
    """

    model: ir.Model
    places: tuple[Place, ...]

    def at(self, text: str) -> Place:
        """The place behind the value of this name, or of this number, such as ``3`` or ``#3``.

        A name wins over a number, so that values called by numbers can be named.

        Raises:
            UsageError: there is none.
        """
        if any(value.name == text for graph in ir.graphs_of(self.model) for value in ir.values_of(graph)):
            return self._behind(text)
        try:
            number = parse_natural(text.removeprefix("#"))
        except ValueError:
            return self._behind(text)
        if number >= len(self.places):
            count = len(self.places)
            hint = f"they are 0 to {count - 1}, as --list tells" if count else "name a value instead"
            raise UsageError(f"there is no place {number}", hint=hint)
        return self.places[number]

    def _behind(self, name: str) -> Place:
        known = next((place for place in self.places if place.value.name == name), None)
        if known is not None:
            return known
        values = [value for graph in ir.graphs_of(self.model) for value in ir.values_of(graph)]
        named = [value for value in values if value.name == name]
        if not named:
            names = [value.name or "" for value in values if ir.constant_of(value) is None]
            raise unknown("value", name, names, "--list shows places; any other value can be named, too")
        found = places_behind(self.model, named)
        if not found or ir.constant_of(found[0].value) is not None:
            raise UsageError(f"{name!r} is a constant, behind which nothing can be cut")
        return replace(found[0], number=None)


def places_of(model: ir.Model, profile: Profile | None = None) -> Places:
    """The places behind values that guards of ``profile`` are about; without one, behind unforeseen values.

    Raises:
        UsageError: the profile is of another model.
    """
    if profile is not None:
        general, places = places_of_guards(guarded_by(model, profile))
        return Places(general, tuple(places))
    with context_for(model) as cx:
        values = {
            value for value, _ in unforeseen(model, cx.facts, bodies=True) if ir.constant_of(value) is None
        }
    return Places(model, tuple(places_behind(model, values)))


def guarded_by(model: ir.Model, profile: Profile) -> ir.Model:
    """A copy of ``model`` with a guard behind each value that ``profile`` tells something of.

    Raises:
        UsageError: the profile is of another model.
    """
    check_profile(profile, model)
    found = copy(model)
    note(found, profile.values)
    with context_for(found) as cx:
        InsertGuards(pin=False).run(found, cx)
    return found
