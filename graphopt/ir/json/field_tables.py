"""Tables that map keys of an object to fields of a message.

Writing and reading walk the same :class:`Table`. Every field that is set is written, even if it is empty, so
that a round trip preserves the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from graphopt.errors import InvalidModel
from graphopt.ir.json.errors import Fault, expect, expect_int, nearest, quoted
from graphopt.util.lazy_dataclass import dataclass

#: The key under which the parser records a duplicate key of an object; no field has this name.
DUPLICATE = "\0twice"


class FieldConversion(Protocol):
    """The conversion of a field."""

    @property
    def repeated(self) -> bool:
        """Whether the field is repeated."""

    def write(self, value: Any, limit: int) -> Any:
        """The JSON of the field's ``value``; tensors below ``limit`` bytes are written as numbers."""

    def read(self, message: Any, name: str, item: Any) -> None:
        """Set field ``name`` of ``message`` from the JSON ``item``. Raises :class:`Fault`."""


@dataclass(frozen=True)
class Scalar:
    """A string or an integer, unchanged."""

    check: Callable[[Any], Any]
    repeated: bool = False

    def write(self, value: Any, limit: int) -> Any:
        return list(map(_text, value)) if self.repeated else _text(value)

    def read(self, message: Any, name: str, item: Any) -> None:
        if self.repeated:
            getattr(message, name).extend(each(item, self.check))
        else:
            setattr(message, name, self.check(item))


def _text(value: Any) -> Any:
    if isinstance(value, bytes):  # protobuf's error for invalid text
        raise InvalidModel(f"the model can't be written: {value[:60]!a} is not UTF-8")
    return value


def each(item: Any, read: Callable[[Any], Any]) -> list[Any]:
    """Read all entries of a list."""
    entries = expect(item, list, "a list")
    result: list[Any] = []
    try:
        for entry in entries:
            result.append(read(entry))
    except Fault as fault:
        raise fault.under(len(result)) from None
    return result


TEXT = Scalar(lambda item: expect(item, str, "a string"))
TEXTS = Scalar(lambda item: expect(item, str, "a string"), repeated=True)
INTEGER = Scalar(expect_int)
INTEGERS = Scalar(expect_int, repeated=True)


class Entries:
    """Pairs of key and value, as an object."""

    repeated = True

    def __init__(self, key: str, value: str, form: Scalar) -> None:
        self._key, self._value, self._form = key, value, form

    def write(self, value: Any, limit: int) -> dict[str, Any]:
        entries = {_text(getattr(entry, self._key)): _text(getattr(entry, self._value)) for entry in value}
        if len(entries) != len(value):
            keys = [getattr(entry, self._key) for entry in value]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InvalidModel(f"{twice!r} occurs twice, which the JSON IR can't represent")
        return entries

    def read(self, message: Any, name: str, item: Any) -> None:
        for key, value in expect(item, dict, "an object").items():
            if key == DUPLICATE:
                raise Fault(f"has the key {quoted(value)} twice")
            try:
                getattr(message, name).add(**{self._key: key, self._value: self._form.check(value)})
            except Fault as fault:
                raise fault.under(key) from None


METADATA = Entries("key", "value", TEXT)


@dataclass(frozen=True)
class Custom:
    """A message with its own notation, converted by ``write`` and ``read``."""

    to_json: Callable[[Any, int], Any]
    from_json: Callable[[Any, Any], None]
    repeated: bool = False

    def write(self, value: Any, limit: int) -> Any:
        if self.repeated:
            return [self.to_json(entry, limit) for entry in value]
        return self.to_json(value, limit)

    def read(self, message: Any, name: str, item: Any) -> None:
        holder = getattr(message, name)
        if self.repeated:
            each(item, lambda entry: self.from_json(entry, holder.add()))
        else:
            holder.SetInParent()
            self.from_json(item, holder)


@dataclass(frozen=True)
class Key:
    """A key of an object, its field, and the conversion."""

    key: str
    field: str
    form: FieldConversion
    required: bool = False


class Table:
    """The keys of the object for a message, in the order of writing."""

    def __init__(self, keys: Sequence[Key], others: Sequence[str] = ()) -> None:
        self.keys = list(keys)
        #: Keys that are read elsewhere.
        self.others = tuple(others)
        self._known = {key.key: key for key in keys}
        self._required = [key.key for key in keys if key.required]
        self._plan = [(key.key, key.field, key.form.repeated, key.form.write) for key in keys]

    @property
    def names(self) -> list[str]:
        """All keys."""
        return [*self._known, *self.others]

    def write(self, message: Any, limit: int) -> dict[str, Any]:
        """The object for ``message``."""
        result = {}
        for key, field, repeated, write in self._plan:
            if repeated:
                value = getattr(message, field)
                if value:
                    result[key] = write(value, limit)
            elif message.HasField(field):
                result[key] = write(getattr(message, field), limit)
        return result

    def read(self, item: Any, message: Any) -> None:
        """Fill ``message`` from the object ``item``.

        Raises:
            Fault: ``item`` is not an object, has unknown keys, lacks required keys, or contains an invalid
                value.
        """
        expect(item, dict, "an object")
        for key, value in item.items():
            entry = self._known.get(key)
            if entry is None:
                if key in self.others:
                    continue
                if key == DUPLICATE:
                    raise Fault(f"has the key {quoted(value)} twice")
                raise Fault(f"has an unknown key, {quoted(key)}{nearest(key, self.names)}")
            try:
                entry.form.read(message, entry.field, value)
            except Fault as fault:
                raise fault.under(key) from None
        for key in self._required:
            if key not in item:
                raise Fault(f"lacks {key!r}")
