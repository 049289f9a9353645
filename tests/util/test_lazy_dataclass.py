"""Classes with a constructor that is compiled on first use behave like those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import typing
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import pytest

from graphopt.util import lazy_dataclass

_OPTIONS: list[dict[str, bool]] = [
    {},
    {"frozen": True},
    {"eq": False},
    {"frozen": True, "eq": False},
    {"frozen": True, "repr": False},
]


def _point(dataclass: Callable[..., Any], **options: bool) -> Any:
    @dataclass(**options)
    class Point:
        """A point."""

        kind: ClassVar[str] = "point"
        x: int
        y: float = 2.0
        seen: list[int] = field(default_factory=list, repr=False, compare=False)
        label: str = field(default="a", kw_only=True)
        total: float = field(init=False)
        fixed: int = field(default=7, init=False)
        made: dict[str, int] = field(default_factory=dict, init=False, hash=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.x + self.y)

    return Point


@pytest.fixture(params=_OPTIONS, ids=str)
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """The same class by both decorators."""
    return _point(dataclasses.dataclass, **request.param), _point(lazy_dataclass.dataclass, **request.param)


def _outcome(function: Callable[[], object]) -> object:
    try:
        return function()
    except (TypeError, AttributeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize(
    "use",
    [
        lambda kind: str(inspect.signature(kind)),
        lambda kind: [(f.name, f.type, f.init, f.repr) for f in dataclasses.fields(kind)],
        lambda kind: kind.__match_args__,
        lambda kind: kind.__init__.__qualname__,
        lambda kind: typing.get_type_hints(kind.__init__),
        lambda kind: repr(kind(1, label="b")).rpartition(".")[2].partition(" object at")[0],
        lambda kind: vars(kind(1, 3.0, [4])),
        lambda kind: dataclasses.asdict(kind(x=1)),
        lambda kind: dataclasses.replace(kind(1), x=5, label="c").total,
        lambda kind: kind(1) == kind(1, seen=[2]),
        lambda kind: kind(1) == kind(2),
        lambda kind: kind(1) == (1, 2.0, "a", 3.0),
        lambda kind: copy.copy(kind(1)).total,
        lambda kind: kind.fixed,
        lambda kind: kind.__eq__ is object.__eq__,
        lambda kind: kind.__hash__ is None or (kind.__hash__ is object.__hash__),
        lambda kind: kind(),
        lambda kind: kind(1, 2, [], "a"),
        lambda kind: kind(1).__setattr__("x", 2),
        lambda kind: kind(1).__delattr__("x"),
        lambda kind: kind(1).__setattr__("other", 2),
        lambda kind: kind.kind,
        lambda kind: kind.__doc__,
        lambda kind: kind.missing,
    ],
)
def test_as_in_the_standard_library(pair: tuple[Any, Any], use: Callable[[Any], object]) -> None:
    expected, found = (_outcome(lambda kind=kind: use(kind)) for kind in pair)
    assert found == expected


def test_equal_objects_have_equal_hashes() -> None:
    kind = _point(lazy_dataclass.dataclass, frozen=True)
    assert hash(kind(1)) == hash(kind(1, seen=[3])) != hash(kind(2))


def test_the_constructor_is_compiled_once() -> None:
    kind = _point(lazy_dataclass.dataclass, frozen=True)
    assert not inspect.isfunction(vars(kind)["__init__"])
    kind(1)
    compiled = vars(kind)["__init__"]
    kind(2)
    assert inspect.isfunction(compiled) and vars(kind)["__init__"] is compiled


def test_methods_of_the_class_are_kept() -> None:
    @lazy_dataclass.dataclass(frozen=True)
    class Own:
        """Own methods."""

        x: int

        def __init__(self) -> None:
            object.__setattr__(self, "x", 3)

        def __repr__(self) -> str:
            return "own"

        def __hash__(self) -> int:
            return 4

    assert (Own().x, repr(Own()), hash(Own()), Own() == Own()) == (3, "own", 4, True)


@pytest.mark.parametrize("base", [dataclasses.dataclass, lazy_dataclass.dataclass])
@pytest.mark.parametrize("derived", [dataclasses.dataclass, lazy_dataclass.dataclass])
def test_classes_inherit_fields(base: Callable[..., Any], derived: Callable[..., Any]) -> None:
    @base(frozen=True)
    class Base:
        """A base."""

        x: int
        y: int = 0

    @derived(frozen=True)
    class Derived(Base):
        """A derived class."""

        z: int = 1

    item = Derived(1, z=3)
    assert repr(item).endswith("Derived(x=1, y=0, z=3)")
    assert item == Derived(1, 0, 3) != Base(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        item.z = 4
    with pytest.raises(TypeError, match="frozen"):
        derived(type("Thawed", (Base,), {}))


def test_a_subclass_that_is_no_dataclass() -> None:
    kind = _point(lazy_dataclass.dataclass, frozen=True)
    sub = type("Sub", (kind,), {})
    item = sub(1)
    item.other = 5  # as in the standard library, only fields are frozen
    assert (item.total, item.other, item == kind(1)) == (3.0, 5, False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        item.x = 2


@lazy_dataclass.dataclass(frozen=True)
class _Pickled:
    x: int


def test_objects_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(_Pickled(3))) == _Pickled(3)


def test_an_object_that_contains_itself_has_a_text() -> None:
    @lazy_dataclass.dataclass
    class Cell:
        """A cell."""

        inner: object = None

    cell = Cell()
    cell.inner = cell
    assert repr(cell).endswith("Cell(inner=...)")


@pytest.mark.parametrize("dataclass", [dataclasses.dataclass, lazy_dataclass.dataclass])
def test_a_field_without_default_after_one_with_default_is_refused(dataclass: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="non-default argument 'y' follows default argument"):

        @dataclass
        class Mixed:
            """A field with a default first."""

            x: int = 1
            y: int


@pytest.mark.parametrize("dataclass", [dataclasses.dataclass, lazy_dataclass.dataclass])
def test_order_of_inherited_fields(dataclass: Callable[..., Any]) -> None:
    base = dataclass(type("Base", (), {"__annotations__": {"x": int}, "x": 1}))
    with pytest.raises(TypeError, match="non-default argument 'y'"):
        dataclass(type("Derived", (base,), {"__annotations__": {"y": int}}))
    keyword = {"__annotations__": {"y": int}, "y": field(kw_only=True)}
    assert dataclass(type("Derived", (base,), keyword))(y=2).x == 1


@pytest.mark.parametrize("type_", ["dataclasses.InitVar[int]", dataclasses.InitVar[int]])
def test_unsupported_fields_are_refused(type_: object) -> None:
    with pytest.raises(TypeError, match="InitVar is not supported"):
        lazy_dataclass.dataclass(type("Part", (), {"__annotations__": {"x": type_}, "__module__": __name__}))
    with pytest.raises(TypeError, match="reserved"):
        lazy_dataclass.dataclass(type("Part", (), {"__annotations__": {"__graphopt_x": int}}))


@pytest.mark.parametrize("frozen", [False, True])
def test_fields_may_have_any_name(frozen: bool) -> None:
    names = ["self", "_set", "_missing", "_default_self", "create", "object"]
    kind = lazy_dataclass.dataclass(frozen=frozen)(
        type("Named", (), {"__annotations__": dict.fromkeys(names, int), "__module__": __name__})
    )
    assert vars(kind(*range(6))) == {name: number for number, name in enumerate(names)}
    with pytest.raises(TypeError, match="missing"):
        kind(1)
