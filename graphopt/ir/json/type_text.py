r"""Types as text, without loss: ``f32[batch,3,?]``, ``seq(map(i64,f32[]))``.

::

    type   = (tensor | sparse(tensor) | seq(type) | opt(type) | map(key,type) | opaque(name,name) | ?) [@name]
    tensor = element "[" ("..." | dim, dim, …) "]"
    dim    = (integer | name | ?) [@name]
    name   = plain | 'quoted, with \' and \\'

``?`` is an undeclared dim or type, ``[...]`` is an unknown rank, and ``@`` precedes a denotation. An empty
element type, as in ``[2,3]``, is undeclared.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import onnx

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.json.errors import Fault, nearest, quoted

#: Longer names of element types than onnx-ir's short names.
_NAMES = {onnx_ir.DataType.BOOL: "bool", onnx_ir.DataType.STRING: "str"}
ELEMENTS = {int(dtype): _NAMES.get(dtype) or dtype.short_name() for dtype in onnx_ir.DataType}
_NUMBERS = {name: number for number, name in ELEMENTS.items()}
#: Notation of element types unknown to this version, with their numbers.
_OTHER = re.compile(r"type(\d{1,9})")

_PLAIN = re.compile(r"[A-Za-z_](?:[\w:/+*. -]*[\w:/+*.-])?", re.ASCII)
_TOKEN = re.compile(
    r"\s*(?:(?P<int>-?\d+)|(?P<quoted>'(?:[^'\\]|\\.)*')|(?P<plain>[A-Za-z_][\w:/+*. -]*)"
    r"|(?P<mark>\.\.\.|[][(),?@]))\s*",
    re.ASCII | re.DOTALL,
)
_AROUND = {"seq": "sequence_type", "opt": "optional_type"}
_TENSORS = {"tensor_type": "", "sparse_tensor_type": "sparse("}


def write_type(proto: onnx.TypeProto) -> str:
    """The text of ``proto``."""
    before, after = "", ""
    while True:
        kind = proto.WhichOneof("value")
        denotation = _denotation(proto)
        match kind:
            case "sequence_type" | "optional_type":
                before, after = f"{before}{str(kind)[:3]}(", f"){denotation}{after}"
                inner: Any = getattr(proto, str(kind))
                if not inner.HasField("elem_type"):
                    return before + after
                proto = inner.elem_type
            case "map_type":
                inner = proto.map_type
                before, after = f"{before}map({_element(inner, 'key_type')},", f"){denotation}{after}"
                if not inner.HasField("value_type"):
                    return before + after
                proto = inner.value_type
            case "opaque_type":
                inner = proto.opaque_type
                names = (_quote(getattr(inner, f)) if inner.HasField(f) else "" for f in ("domain", "name"))
                return f"{before}opaque({','.join(names)}){denotation}{after}"
            case "tensor_type" | "sparse_tensor_type":
                inner = getattr(proto, str(kind))
                dims = ",".join(map(_write_dim, inner.shape.dim)) if inner.HasField("shape") else "..."
                text = f"{_element(inner, 'elem_type')}[{dims}]"
                text = text if kind == "tensor_type" else f"sparse({text})"
                return before + text + denotation + after
            case _:
                return f"{before}?{denotation}{after}"


def write_tensor_type(data_type: int, dims: Any) -> str:
    """The type of a tensor with contents."""
    return f"{element_name(data_type)}[{','.join(map(str, dims))}]"


def element_name(number: int) -> str:
    """The name of an element type."""
    return ELEMENTS.get(number) or f"type{number}"


def _element(proto: Any, field: str) -> str:
    return element_name(getattr(proto, field)) if proto.HasField(field) else ""


def _denotation(proto: Any) -> str:
    return f"@{_quote(proto.denotation)}" if proto.HasField("denotation") else ""


def _write_dim(dim: onnx.TensorShapeProto.Dimension) -> str:
    match dim.WhichOneof("value"):
        case "dim_value":
            text = str(dim.dim_value)
        case "dim_param":
            text = _quote(dim.dim_param)
        case _:
            text = "?"
    return text + _denotation(dim)


def _quote(name: str) -> str:
    if _PLAIN.fullmatch(name):
        return name
    return "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"


@functools.lru_cache(4096)
def read_type(text: str) -> onnx.TypeProto:
    """Parse a type. The result is cached and must not be changed.

    Raises:
        Fault: the text is not a type.
    """
    return _Reader(text).type()


@functools.lru_cache(4096)
def read_tensor_type(text: str) -> tuple[int, tuple[int, ...]]:
    """Element type and dims of a tensor with contents.

    Raises:
        Fault: the text is not a tensor type, or dims are not numbers.
    """
    proto = read_type(text)
    tensor = proto.tensor_type
    if not proto.HasField("tensor_type") or not tensor.HasField("shape") or not tensor.HasField("elem_type"):
        raise Fault(f"expects a tensor type with all dims, such as f32[2,3], found {quoted(text)}")
    if not all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in tensor.shape.dim):
        raise Fault(f"the dims of a constant are numbers, 0 or greater, found {quoted(text)}")
    return tensor.elem_type, tuple(dim.dim_value for dim in tensor.shape.dim)


class _Reader:
    """A parser for one type."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self.kind = self.token = ""
        self._next()

    def type(self) -> onnx.TypeProto:
        root = onnx.TypeProto()
        stack = [root]
        while stack:
            proto = stack[-1]
            inner = self._open(proto)
            if inner is not None:
                stack.append(inner)
                if len(stack) > 30:
                    raise Fault("a type is nested more than 30 deep")
                continue
            # proto is complete except for its denotation, and the enclosing types may also be complete
            while stack:
                self._denotation(stack.pop())
                if stack:
                    self._take(")")
        if self.kind != "end":
            raise self._fault("nothing more")
        return root

    def _open(self, proto: onnx.TypeProto) -> onnx.TypeProto | None:
        """Read a type up to its inner type, which is returned, or to its end."""
        if self.token == "?":
            self._next()
            return None
        if self.kind != "plain" or self.token not in {*_AROUND, "map", "sparse", "opaque"}:
            self._tensor(proto.tensor_type)
            return None
        name = self.token
        self._next()
        self._take("(")
        if name == "sparse":
            self._tensor(proto.sparse_tensor_type)
            self._take(")")
            return None
        if name == "opaque":
            proto.opaque_type.SetInParent()
            for field, end in (("domain", ","), ("name", ")")):
                if self.token != end or self.kind == "quoted":
                    setattr(proto.opaque_type, field, self._name())
                self._take(end)
            return None
        holder: Any
        if name == "map":
            holder, field = proto.map_type, "value_type"
            holder.SetInParent()
            if self.token != ",":
                holder.key_type = self._element()
            self._take(",")
        else:
            holder, field = getattr(proto, _AROUND[name]), "elem_type"
            holder.SetInParent()
        if self.token == ")" and self.kind == "mark":  # undeclared contents
            self._next()
            return None
        inner: onnx.TypeProto = getattr(holder, field)
        inner.SetInParent()
        return inner

    def _tensor(self, tensor: Any) -> None:
        tensor.SetInParent()
        if self.token != "[":
            tensor.elem_type = self._element()
        self._take("[")
        if self.token == "..." and self.kind == "mark":
            self._next()
            self._take("]")
            return
        tensor.shape.SetInParent()
        while self.token != "]" or self.kind == "quoted":
            if tensor.shape.dim:
                self._take(",")
            self._dim(tensor.shape.dim.add())
        self._next()

    def _dim(self, dim: onnx.TensorShapeProto.Dimension) -> None:
        if self.kind == "int":
            number = int(self.token) if len(self.token) < 30 else 1 << 64
            if not -(1 << 63) <= number < 1 << 63:
                raise Fault(f"the dim {self.token[:30]} does not fit into 64 bits")
            dim.dim_value = number
            self._next()
        elif self.token == "?" and self.kind == "mark":
            self._next()
        else:
            dim.dim_param = self._name("a dim")
        self._denotation(dim)

    def _denotation(self, proto: Any) -> None:
        if self.token == "@" and self.kind == "mark":
            self._next()
            proto.denotation = self._name()

    def _name(self, expected: str = "a name") -> str:
        if self.kind not in {"plain", "quoted"}:
            raise self._fault(expected)
        name = self.token
        self._next()
        return name

    def _element(self) -> int:
        if self.kind != "plain":
            raise self._fault("a type")
        name = self.token
        other = _OTHER.fullmatch(name)
        if name not in _NUMBERS and not other:
            raise Fault(f"{quoted(name)} is no element type{nearest(name, _NUMBERS)}")
        self._next()
        return int(other[1]) if other else _NUMBERS[name]

    def _take(self, mark: str) -> None:
        if self.token != mark or self.kind != "mark":
            raise self._fault(repr(mark))
        self._next()

    def _next(self) -> None:
        if self._place == len(self._text):
            self.kind, self.token = "end", ""
            return
        match = _TOKEN.match(self._text, self._place)
        if match is None:
            raise Fault(
                f"{quoted(self._text)} can't be read as a type from {self._text[self._place :][:20]!r} on"
            )
        self.kind = str(match.lastgroup)
        self.token = match[self.kind].strip()
        if self.kind == "quoted":
            self.token = re.sub(r"\\(.)", r"\1", self.token[1:-1], flags=re.DOTALL)
        self._place = match.end()

    def _fault(self, wanted: str) -> Fault:
        found = quoted(self.token) if self.kind != "end" else "its end"
        return Fault(f"{quoted(self._text)} can't be read as a type: expects {wanted}, found {found}")
