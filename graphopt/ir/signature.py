"""The signature of a model (its inputs and outputs), and differences between two signatures."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

from graphopt import ir
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Dims = tuple[int | str | None, ...]


@dataclass(frozen=True)
class Port:
    """One input or output.

    Attributes:
        name: its name.
        type: its type in onnxruntime's notation, such as ``tensor(float)``, ``seq(tensor(int64))`` or
            ``map(string,tensor(float))``; ``""`` if the model does not declare it.
        dims: the size or symbol of each dimension, ``None`` if unknown; ``None`` for an unknown rank. For
            sequences and optionals, the dims of the element.
        role: ``overridable`` inputs have a default; ``constant`` inputs are initializers that IR versions
            below 4 require to be listed as inputs; callers can't feed them.
    """

    name: str
    type: str
    dims: Dims | None
    role: Literal["required", "overridable", "constant"] = "required"

    @property
    def named_dims(self) -> tuple[int | str, ...]:
        """The ``dims`` of an input, unnamed dims as ``x@0``; empty if the rank is unknown."""
        return tuple(
            ir.unnamed_dim(self.name, axis) if dim is None or dim in ir.ANONYMOUS_DIMS else dim
            for axis, dim in enumerate(self.dims or ())
        )

    def __str__(self) -> str:
        return notation(self.type, self.dims)

    @property
    def kind(self) -> str:
        """``tensor``, ``seq``, ``optional``, ``map``, ``sparse_tensor`` or ``""``."""
        return self.type.partition("(")[0]

    def accepts(self, shape: Sequence[int | str]) -> bool:
        """Whether ``shape`` fits the declaration; a symbol fits any size."""
        if self.dims is None:
            return True
        pairs = [(size, dim) for size, dim in zip(shape, self.dims, strict=False) if isinstance(dim, int)]
        return len(shape) == len(self.dims) and all(
            isinstance(size, str) or size == dim for size, dim in pairs
        )

    @property
    def element(self) -> str:
        """The innermost element type, such as ``float``, of a tensor, sequence or optional."""
        return self.type.rpartition("(")[2].rstrip(")")


@dataclass(frozen=True)
class Signature:
    """The interface of a model."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @classmethod
    def of(cls, model: ir.Model) -> Signature:
        """Read the declared signature of ``model``."""
        return cls(
            tuple(_port(value, _role(value)) for value in model.graph.inputs),
            tuple(_port(value, "required") for value in model.graph.outputs),
        )

    @classmethod
    def of_session(cls, made: InferenceSession) -> Signature:
        """Read the signature of a session; it has no constant inputs."""
        fed, defaults = made.get_inputs(), made.get_overridable_initializers()
        return cls(
            tuple(Port(value.name, value.type, None) for value in fed)
            + tuple(Port(value.name, value.type, None, "overridable") for value in defaults),
            tuple(Port(value.name, value.type, None) for value in made.get_outputs()),
        )

    @property
    def fed(self) -> tuple[Port, ...]:
        """The inputs that a caller must feed."""
        return tuple(port for port in self.inputs if port.role == "required")

    @property
    def input_types(self) -> dict[str, str]:
        """The types of the inputs that a caller may feed, by name."""
        return {port.name: port.type for port in self.inputs if port.role != "constant"}


@dataclass(frozen=True)
class Change:
    """One difference between two signatures.

    Attributes:
        kind: ``gone`` or ``new`` for an input or output; ``order`` for their order or number; otherwise the
            changed property of one input or output.
        port: the name of the input or output; empty if the change affects all of them.
        text: the change as one phrase.
    """

    kind: Literal["gone", "new", "order", "role", "type", "rank", "dim"]
    port: str
    text: str

    def __str__(self) -> str:
        return self.text


def diff(a: Signature, b: Signature, *, distrusted: Collection[str] = ()) -> list[Change]:
    """The differences between ``a`` and ``b`` that affect callers; empty if there are none.

    Constant inputs are omitted: callers can't feed them.

    Args:
        a: the original.
        b: the changed signature.
        distrusted: outputs with wrong declared shapes in ``a``; ``b`` may correct them.
    """
    inputs, new_inputs = (tuple(p for p in side.inputs if p.role != "constant") for side in (a, b))
    changes = _compare_ports("input", inputs, new_inputs, ())
    return changes + _compare_ports("output", a.outputs, b.outputs, distrusted)


def fixed_dims(a: Signature, b: Signature) -> dict[str, int]:
    """Dims of inputs that are dynamic in ``a`` and have a size in ``b``, by symbol or as ``x@0``."""
    sizes: dict[str, int] = {}
    others = {port.name: port.dims for port in b.inputs}
    for port in a.inputs:
        for old, new in zip(port.named_dims, others.get(port.name) or (), strict=False):
            if isinstance(new, int) and not isinstance(old, int):
                sizes.setdefault(old, new)
    return sizes


def notation(type_: str, dims: Sequence[object] | None = None) -> str:
    """A type and its dims for people, as everywhere in graphopt: ``f32[batch, seq, 256]``.

    Args:
        type_: the type in onnxruntime's notation, such as ``tensor(float)`` or ``seq(tensor(int64))``.
        dims: sizes and symbols, ``None`` for an unknown size; ``None`` for an unknown rank.
    """

    def short(tensor: re.Match[str]) -> str:
        dtype = ir.DataType.__members__.get(tensor[2].upper())
        if dtype is None:
            return tensor[0]
        text = ir.type_text(dtype, dims)
        return f"sparse({text})" if tensor[1] else text

    return re.sub(r"(sparse_)?tensor\((\w+)\)", short, type_)


def type_text(value: ir.Value) -> str:
    """The type of ``value`` in onnxruntime's notation; ``""`` if it is not declared."""
    carried = ir.opaque_type(value)
    if carried is not None:
        return _proto_text(carried)
    return "" if value.type is None else text_of_type(value.type)


def _port(value: ir.Value, role: Literal["required", "overridable", "constant"]) -> Port:
    dims: Dims | None = None
    if value.shape is not None:
        dims = tuple(
            (dim if dim >= 0 else None) if isinstance(dim, int) else dim.value for dim in value.shape.dims
        )
    return Port(value.name or "", type_text(value), dims, role)


def _role(value: ir.Value) -> Literal["required", "overridable", "constant"]:
    if not value.is_initializer():
        return "required"
    return "overridable" if ir.is_overridable(value) else "constant"


def _element_text(code: int) -> str:
    try:
        return ir.DataType(code).name.lower()
    except ValueError:
        return f"type {code}"


def text_of_type(type_: ir.TypeProtocol) -> str:
    """``type_`` in the notation of onnxruntime and operator schemas, such as ``seq(tensor(float))``."""
    if isinstance(type_, ir.SequenceType):
        return f"seq({text_of_type(type_.elem_type)})"
    if isinstance(type_, ir.OptionalType):
        return f"optional({text_of_type(type_.elem_type)})"
    name = "sparse_tensor" if isinstance(type_, ir.SparseTensorType) else "tensor"
    return f"{name}({_element_text(type_.dtype)})"


def _proto_text(proto: Any) -> str:
    """The text of an ``onnx.TypeProto``."""
    kind: str | None = proto.WhichOneof("value")
    part: Any = getattr(proto, kind) if kind else None
    match kind:
        case "tensor_type":
            return f"tensor({_element_text(part.elem_type)})"
        case "sparse_tensor_type":
            return f"sparse_tensor({_element_text(part.elem_type)})"
        case "sequence_type":
            return f"seq({_proto_text(part.elem_type)})"
        case "optional_type":
            return f"optional({_proto_text(part.elem_type)})"
        case "map_type":
            return f"map({_element_text(part.key_type)},{_proto_text(part.value_type)})"
    return ""


def _compare_ports(
    direction: str, before: tuple[Port, ...], after: tuple[Port, ...], distrusted: Collection[str]
) -> list[Change]:
    names, new_names = [port.name for port in before], [port.name for port in after]
    changes: list[Change] = []
    if names != new_names:
        lost = [name for name in names if name not in new_names]
        added = [name for name in new_names if name not in names]
        changes += [Change("gone", name, f"{direction} {name!r} is gone") for name in lost]
        changes += [Change("new", name, f"{direction} {name!r} is new") for name in added]
        if not lost and not added:
            same = sorted(names) == sorted(new_names)
            text = f"the {direction}s changed their {'order' if same else 'number'}"
            changes.append(Change("order", "", text))
    remaining = list(after)
    for port in before:
        # a name may be listed more than once among the outputs
        other = next((candidate for candidate in remaining if candidate.name == port.name), None)
        if other is not None:
            remaining.remove(other)
            changes += _compare_port(direction, port, other, port.name in distrusted)
    return changes


def _compare_port(direction: str, a: Port, b: Port, distrusted: bool) -> list[Change]:
    name = f"{direction} {a.name!r}"
    changes: list[Change] = []
    if a.role != b.role:
        changes.append(Change("role", a.name, f"{name} was {a.role}, now {b.role}"))
    if a.type != b.type and a.type and "undefined" not in a.type:
        changes.append(Change("type", a.name, f"{name} was of type {a}, now {b if b.type else 'undeclared'}"))
    if a.dims is None or distrusted:
        if direction == "input" and b.dims is not None:
            changes.append(Change("rank", a.name, f"{name} took any rank, now {len(b.dims)}"))
        return changes
    if b.dims is None:
        changes.append(Change("rank", a.name, f"{name} lost its shape"))
    elif len(a.dims) != len(b.dims):
        changes.append(Change("rank", a.name, f"{name} was of rank {len(a.dims)}, now {len(b.dims)}"))
    else:
        for axis, (old, new) in enumerate(zip(a.dims, b.dims, strict=True)):
            text = _compare_dim(old, new)
            if text is not None:
                changes.append(Change("dim", a.name, f"{name}: dimension {axis} {text}"))
    return changes


def _compare_dim(old: int | str | None, new: int | str | None) -> str | None:
    if old == new or (old is None and isinstance(new, str)):
        return None  # a name for an anonymous dimension does not constrain callers
    if isinstance(new, int) and not isinstance(old, int):
        return f"was dynamic ({old or 'unnamed'}), now fixed to {new}"
    return f"was {old}, now {'unnamed' if new is None else new}"
