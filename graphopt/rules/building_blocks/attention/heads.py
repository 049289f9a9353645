"""Tensors split into heads, and the tensors that they are views of.

Sizes: B batches, N heads, S elements of the sequence, D elements of a head. Axes are named by letters:
``bnsd`` is a tensor [B, N, S, D], and ``p`` an axis along which queries, keys and values are packed.
"""

from __future__ import annotations

from dataclasses import replace

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.analysis.symbolic import OrElse
from graphopt.context import Dim
from graphopt.rewrite import Builder, Match
from graphopt.rules.building_blocks.axes import axis_of, perm_of
from graphopt.rules.building_blocks.operands import producer_of
from graphopt.rules.building_blocks.reshape_targets import reshape, reshape_target
from graphopt.rules.building_blocks.shape_equality import same_shape
from graphopt.rules.building_blocks.slices_and_pads import Range, slice_
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Rows:
    """[B, S, N * D]: a tensor or columns of one, perhaps with two axes swapped.

    Attributes:
        source: [B, S, *], or [S, B, *] if ``time_first``, or [B, *, S] if ``transposed_rows``.
        columns: the first column and the one after the last; all columns if ``None``.
    """

    source: ir.Value
    columns: tuple[int, int] | None = None
    time_first: bool = False
    transposed_rows: bool = False

    def built(self, op: Builder, m: Match) -> ir.Value:
        """Build the tensor."""
        rows = self.source
        if self.time_first or self.transposed_rows:
            rows = op.Transpose(rows, perm=[1, 0, 2] if self.time_first else [0, 2, 1])
        return rows if self.columns is None else slice_(op, m, rows, [Range(2, *self.columns)])


@dataclass(frozen=True)
class Heads:
    """A tensor by heads; at least one of its representations exists.

    Attributes:
        shape: B, N, S and D.
        rows: [B, S, N * D].
        flat: [B, S, N, D].
        split: [B, N, S, D].
        transposed: [B, N, D, S].
        grouped: [B, N / groups, groups, S, D], if a Reshape can merge its heads.
        shared: the heads before their repetition for groups, [B, N / groups, S, D].
        cast: the type to which built tensors are converted; ``None`` for no conversion.
    """

    shape: tuple[Dim, ...]
    rows: Rows | None = None
    flat: ir.Value | None = None
    split: ir.Value | None = None
    transposed: ir.Value | None = None
    grouped: ir.Value | None = None
    shared: Heads | None = None
    cast: ir.DataType | None = None

    @property
    def tensor(self) -> ir.Value:
        """One of the existing tensors."""
        given = (
            self.split or self.transposed or self.flat or (None if self.rows is None else self.rows.source)
        )
        assert given is not None
        return given

    @property
    def has_rows(self) -> bool:
        """Whether its rows exist, or a view of them."""
        return self.rows is not None or self.flat is not None

    @property
    def width(self) -> int:
        """N * D."""
        width = self.shape[1] * self.shape[3]
        assert isinstance(width, int)
        return width

    def converted(self, dtype: ir.DataType) -> Heads:
        """These heads, built as tensors of type ``dtype``."""
        shared = None if self.shared is None else self.shared.converted(dtype)
        return replace(self, cast=dtype, shared=shared)

    def as_rows(self, op: Builder, m: Match) -> ir.Value:
        """[B, S, N * D]."""
        return self._cast(op, self._rows(op, m))

    def as_split(self, op: Builder, m: Match) -> ir.Value:
        """[B, N, S, D]."""
        return self._cast(op, self._split(op, m))

    def _cast(self, op: Builder, value: ir.Value) -> ir.Value:
        return value if self.cast is None else op.Cast(value, to=int(self.cast))

    def _rows(self, op: Builder, m: Match) -> ir.Value:
        if self.rows is not None:
            return self.rows.built(op, m)
        if self.flat is not None:
            flat = self.flat
        elif self.split is not None:
            flat = op.Transpose(self.split, perm=[0, 2, 1, 3])
        else:
            flat = op.Transpose(self.transposed, perm=[0, 3, 1, 2])
        return reshape(op, m, flat, [0, 0, self.width])

    def _split(self, op: Builder, m: Match) -> ir.Value:
        if self.split is not None:
            return self.split
        if self.grouped is not None:
            target = reshape_target(m, m.shape(self.grouped) or (), self.shape)
            assert target is not None
            return reshape(op, m, self.grouped, target)
        if self.transposed is not None:
            return op.Transpose(self.transposed, perm=[0, 1, 3, 2])
        if self.flat is not None:
            return op.Transpose(self.flat, perm=[0, 2, 1, 3])
        assert self.rows is not None
        return split_rows(op, m, self.rows.built(op, m), self.shape)


def split_rows(op: Builder, m: Match, rows: ir.Value, shape: tuple[Dim, ...]) -> ir.Value:
    """[B, S, N * D] as [B, N, S, D], which cancels with a later merge of the heads."""
    _, heads, _, size = shape
    assert isinstance(heads, int) and isinstance(size, int)
    return op.Transpose(reshape(op, m, rows, [0, 0, heads, size]), perm=[0, 2, 1, 3])


def heads_of(m: Match, value: ir.Value, *, transposed: bool = False) -> Heads | None:
    """``value``, [B, N, S, D], or [B, N, D, S] if ``transposed``, as heads; N is 1 for three axes."""
    shape = m.shape(value)
    if shape is None or len(shape) not in (3, 4):
        return None
    axes = ("bnds" if transposed else "bnsd") if len(shape) == 4 else "bds" if transposed else "bsd"
    sizes = dict(zip(axes, shape, strict=True))
    heads = Heads(tuple(sizes.get(axis, 1) for axis in "bnsd"))
    pack: int | None = None
    while True:
        if axes == "bnsd":
            heads = replace(heads, split=value, shared=_shared_heads(m, value, heads.shape))
        elif axes == "bnds":
            heads = replace(heads, transposed=value, grouped=_grouped(m, value, heads.shape))
            if heads.grouped is not None:
                heads = replace(heads, shared=_shared_by_groups(m, heads.grouped, heads.shape))
        elif axes in ("bsd", "sbd"):
            return replace(heads, rows=Rows(value, None, axes == "sbd"))
        node = producer_of(value)
        if node is None or not node.inputs or node.inputs[0] is None:
            break
        if node.op_type == "Transpose":
            perm = perm_of(m, node)
            if perm is None or len(perm) != len(axes):
                break
            before = dict(zip(perm, axes, strict=True))
            axes, value = "".join(before[axis] for axis in range(len(perm))), node.inputs[0]
        elif node.op_type == "Gather" and pack is None and (selected := _selected_index(m, node)) is not None:
            axis, pack = selected
            axes, value = f"{axes[:axis]}p{axes[axis:]}", node.inputs[0]
        else:
            break
    if len(axes) == 3:
        return replace(heads, rows=Rows(value, None, transposed_rows=True)) if axes == "bds" else None
    rows = _rows(m, value, axes, heads.shape, pack)
    return replace(heads, rows=rows, flat=value if rows is None and axes == "bsnd" else None)


def _selected_index(m: Match, node: ir.Node) -> tuple[int, int] | None:
    """(axis, index) if the Gather ``node`` selects one index and removes the axis."""
    data, index = node.inputs
    assert data is not None
    number = ir.scalar_of(index)
    rank = m.rank(data)
    axis = axis_of(m, node, rank)
    if number is None or axis is None or rank != 5:
        return None
    size = (m.shape(data) or ())[axis]
    return (axis, int(number) % size) if isinstance(size, int) and size > 0 else None


def _rows(m: Match, value: ir.Value, axes: str, shape: tuple[Dim, ...], pack: int | None) -> Rows | None:
    """The rows that ``value`` is a view of; each letter of ``axes`` denotes an axis of ``value``."""
    node = producer_of(value, "Reshape")
    if node is None or node.inputs[0] is None:
        return None
    batch, heads, length, size = shape
    known = ("bsnd", "sbnd", "bspnd", "sbpnd", *(("bnsd", "bnds") if length == 1 else ()))
    if not isinstance(heads, int) or not isinstance(size, int) or axes not in known:
        return None
    width = heads * size
    packed = 1 if pack is None else (m.shape(value) or ())[2]
    first = (length, batch) if axes[0] == "s" else (batch, length)
    source = node.inputs[0]
    if not isinstance(packed, int) or not same_shape(m, m.shape(source), (*first, packed * width)):
        return None
    columns = None if pack is None else (pack * width, (pack + 1) * width)
    return Rows(source, columns, axes[0] == "s")


def _shared_heads(m: Match, value: ir.Value, shape: tuple[Dim, ...]) -> Heads | None:
    """The heads that ``value``, [B, N, S, D], repeats for groups."""
    node = producer_of(value, "Reshape")
    return None if node is None else _shared_by_groups(m, node.inputs[0], shape)


def _grouped(m: Match, value: ir.Value, shape: tuple[Dim, ...]) -> ir.Value | None:
    """[B, N / groups, groups, S, D], if ``value``, [B, N, D, S], merges its heads and transposes it."""
    node = producer_of(value, "Reshape")
    turned = None if node is None else producer_of(node.inputs[0], "Transpose")
    if turned is None or turned.inputs[0] is None or perm_of(m, turned) != (0, 1, 2, 4, 3):
        return None
    found = m.shape(turned.inputs[0])
    batch, heads, length, size = shape
    if found is None or not same_shape(m, (*found[:1], *found[3:]), (batch, length, size)):
        return None
    merges = m.cx.facts.dim_equal(found[1] * found[2], heads)
    return turned.inputs[0] if merges and reshape_target(m, found, shape) is not None else None


def _shared_by_groups(m: Match, value: ir.Value | None, shape: tuple[Dim, ...]) -> Heads | None:
    """The heads that ``value``, [B, N / groups, groups, S, D], repeats for groups."""
    steps: list[ir.Node] = []
    for op_types in (("Expand",), ("Unsqueeze", "Reshape")):
        node = producer_of(steps[-1].inputs[0] if steps else value, *op_types)
        if node is None:
            return None
        steps.append(node)
    source, repeated = steps[1].inputs[0], m.shape(steps[0].outputs[0])
    assert source is not None
    source_shape, apart = m.shape(source), m.shape(steps[1].outputs[0])
    if (
        source_shape is None
        or repeated is None
        or apart is None
        or (len(source_shape), len(repeated)) != (4, 5)
    ):
        return None
    batch, heads, length, size = shape
    groups = repeated[2]
    fits = isinstance(groups, int) and isinstance(source_shape[1], int) and source_shape[1] * groups == heads
    same_dim = same_shape(m, source_shape, (batch, source_shape[1], length, size))
    if not (fits and same_dim and same_shape(m, apart, (*source_shape[:2], 1, *source_shape[2:]))):
        return None
    if not same_shape(m, repeated, (*source_shape[:2], groups, *source_shape[2:])):
        return None
    return heads_of(m, source)


def unmerged(m: Match, value: ir.Value) -> ir.Value | None:
    """The source of the view ``value``: [B, N, *, *] for [B * N, *, *], or vice versa."""
    node = producer_of(value, "Reshape")
    if node is None or node.inputs[0] is None:
        return None
    source = node.inputs[0]
    shapes = [m.shape(source), m.shape(value)]
    if shapes[0] is None or shapes[1] is None or sorted(map(len, shapes)) != [3, 4]:  # type: ignore[arg-type]
        return None
    three, four = sorted(shapes, key=len)  # type: ignore[arg-type]
    assert three is not None and four is not None
    merged = (four[0] * four[1], *four[2:])
    return source if all(same_dim(m, a, b) for a, b in zip(three, merged, strict=True)) else None


def unmerged_keys(m: Match, value: ir.Value) -> tuple[ir.Value, bool] | None:
    """The source of the keys ``value``, [B * N, D, T]: ([B, N, D, T], True) or ([B, N, T, D], False)."""
    direct = unmerged(m, value)
    if direct is not None:
        return direct, True
    node = producer_of(value, "Transpose")
    if node is None or node.inputs[0] is None or perm_of(m, node) != (0, 2, 1):
        return None
    before = unmerged(m, node.inputs[0])
    return None if before is None else (before, False)


def same_dim(m: Match, a: Dim, b: Dim) -> bool:
    """Whether two dims are equal, except where a 0 in the shape of a Reshape copies another dim.

    Such a tensor is empty, or the model fails, so that the difference has no effect.
    """
    return m.cx.facts.dim_equal(_without_fallback(a), _without_fallback(b))


def _without_fallback(dim: Dim) -> Dim:
    atom = symbolic.lone_atom(dim)
    return _without_fallback(atom.operands[0]) if isinstance(atom, OrElse) else dim
