"""Data movement: reference computations, and additions to random graphs."""

from __future__ import annotations

import numpy as np

from tests.fuzz.kernels.graph_builder import Dim, Grower, Value

_RANK = 5


def _text(*dims: Dim) -> Dim:
    """The product of dims, in a canonical form."""
    number, symbols = 1, []
    for dim in dims:
        if isinstance(dim, int):
            number *= dim
        else:
            symbols.append(dim)
    if not symbols:
        return number
    return "*".join([*([str(number)] if number != 1 else []), *sorted(symbols)])


def transpose(g: Grower) -> Value | None:
    x = g.some(lambda value: len(value.dims) > 1)
    if x is None:
        return None
    perm = g.random.sample(range(len(x.dims)), len(x.dims))
    dims = tuple(x.dims[axis] for axis in perm)
    return g.op("Transpose", [x], x.dtype, dims, lambda a, v: np.transpose(v, perm), perm=perm)


def reshape(g: Grower) -> Value | None:
    """Merge two adjacent axes, or split one."""
    splits = [
        (value, axis)
        for value in g.values
        for axis, dim in enumerate(value.dims)
        if isinstance(dim, int) and dim > 1 and len(value.dims) < _RANK
    ]
    x = g.some(lambda value: len(value.dims) > 1)
    if splits and (x is None or g.random.random() < 0.4):
        x, axis = g.random.choice(splits)
        whole = int(x.dims[axis])
        factor = g.random.choice([n for n in range(1, whole + 1) if whole % n == 0])
        dims = (*x.dims[:axis], factor, whole // factor, *x.dims[axis + 1 :])
    elif x is not None:
        axis = g.random.randrange(len(x.dims) - 1)
        dims = (*x.dims[:axis], _text(*x.dims[axis : axis + 2]), *x.dims[axis + 2 :])
    else:
        return None
    # Dims before the change are copied (0); one of the others may be inferred.
    numbers: list[int] = []
    for place, dim in enumerate(dims):
        numbers.append(0 if place < axis else dim if isinstance(dim, int) else -1)
    if numbers.count(-1) > 1:
        return None
    shape = g.ints(*numbers)

    def compute(a: object, v: np.ndarray, *_: object) -> np.ndarray:
        wanted = [v.shape[place] if number == 0 else number for place, number in enumerate(numbers)]
        if -1 in wanted and v.size == 0:
            rest = int(np.prod([n for n in wanted if n != -1]))
            wanted[wanted.index(-1)] = 0 if rest else 1
        return v.reshape(wanted)

    return g.op("Reshape", [x, shape], x.dtype, dims, compute)


def unsqueeze(g: Grower) -> Value | None:
    x = g.some(lambda value: len(value.dims) < _RANK)
    if x is None:
        return None
    axis = g.random.randrange(len(x.dims) + 1)
    dims = (*x.dims[:axis], 1, *x.dims[axis:])
    return g.op("Unsqueeze", [x, g.ints(axis)], x.dtype, dims, lambda a, v, _: np.expand_dims(v, axis))


def squeeze(g: Grower) -> Value | None:
    x = g.some(lambda value: 1 in value.dims)
    if x is None:
        return None
    axis = x.dims.index(1)
    dims = (*x.dims[:axis], *x.dims[axis + 1 :])
    return g.op("Squeeze", [x, g.ints(axis)], x.dtype, dims, lambda a, v, _: np.squeeze(v, axis))


def cut(g: Grower) -> Value | None:
    """A slice with any step."""
    x = g.some(lambda value: any(isinstance(dim, int) and dim > 1 for dim in value.dims))
    if x is None:
        return None
    axis = g.random.choice([axis for axis, dim in enumerate(x.dims) if isinstance(dim, int) and dim > 1])
    whole = int(x.dims[axis])
    step = g.random.choice([1, 1, 1, 2, 3, -1, -2])
    start = g.random.randrange(whole)
    stop = g.random.randrange(whole + 1)
    if step > 0:
        start, stop = min(start, stop), max(start, stop, min(start, stop) + 1)
        part = slice(start, stop, step)
    else:
        start, stop = max(start, stop - 1, 0), -whole - 1
        part = slice(start, None, step)
    if g.random.random() < 0.3 and step > 0:
        start -= whole
    count = len(range(whole)[part])
    dims = (*x.dims[:axis], count, *x.dims[axis + 1 :])
    place = (slice(None),) * axis + (part,)
    inputs = [x, g.ints(start), g.ints(stop), g.ints(axis), g.ints(step)]
    return g.op("Slice", inputs, x.dtype, dims, lambda a, v, *_: v[place])


def split(g: Grower) -> Value | None:
    x = g.some(lambda value: any(isinstance(dim, int) and dim > 1 for dim in value.dims))
    if x is None:
        return None
    axis = g.random.choice([axis for axis, dim in enumerate(x.dims) if isinstance(dim, int) and dim > 1])
    whole = int(x.dims[axis])
    first = g.random.randrange(1, whole)
    outputs = [(x.dtype, (*x.dims[:axis], size, *x.dims[axis + 1 :])) for size in (first, whole - first)]
    made = g.node("Split", [x, g.ints(first, whole - first)], outputs,
                  lambda a, v, _: list(np.split(v, [first], axis)), axis=axis)  # fmt: skip
    return made[0]


def concat(g: Grower) -> Value | None:
    x = g.some(lambda value: bool(value.dims))
    if x is None:
        return None
    axis = g.random.randrange(len(x.dims))

    def fits(value: Value) -> bool:
        same = value.dtype == x.dtype and len(value.dims) == len(x.dims)
        return same and all(
            a == b for place, (a, b) in enumerate(zip(value.dims, x.dims, strict=True)) if place != axis
        )

    parts = [x, g.some(fits) or x]
    g.random.shuffle(parts)
    along = [part.dims[axis] for part in parts]
    if all(isinstance(dim, int) for dim in along):
        total: Dim = sum(int(dim) for dim in along)
    else:
        total = "(" + "+".join(map(str, along)) + ")"
    dims = (*x.dims[:axis], total, *x.dims[axis + 1 :])
    return g.op("Concat", parts, x.dtype, dims, lambda a, *vs: np.concatenate(vs, axis), axis=axis)


def expand(g: Grower) -> Value | None:
    x = g.some(lambda value: 1 in value.dims)
    if x is None:
        return None
    axis = x.dims.index(1)
    count = g.random.choice([2, 3, 5])
    dims = (*x.dims[:axis], count, *x.dims[axis + 1 :])
    numbers = [count if place == axis else 1 for place in range(len(dims))]
    return g.op("Expand", [x, g.ints(*numbers)], x.dtype, dims,
                lambda a, v, n: np.broadcast_to(v, np.broadcast_shapes(v.shape, tuple(n))))  # fmt: skip


def flatten(g: Grower) -> Value | None:
    x = g.some(lambda value: len(value.dims) > 1)
    if x is None:
        return None
    axis = g.random.randrange(1, len(x.dims))
    dims = (_text(*x.dims[:axis]), _text(*x.dims[axis:]))

    def compute(a: object, v: np.ndarray) -> np.ndarray:
        return v.reshape(int(np.prod(v.shape[:axis])), int(np.prod(v.shape[axis:])))

    return g.op("Flatten", [x], x.dtype, dims, compute, axis=axis)


def gather(g: Grower) -> Value | None:
    """One element along an axis, which is removed."""
    x = g.some(lambda value: any(isinstance(dim, int) for dim in value.dims))
    if x is None:
        return None
    axis = g.random.choice([axis for axis, dim in enumerate(x.dims) if isinstance(dim, int)])
    if not x.dims[axis]:
        return None
    place = g.random.randrange(int(x.dims[axis]))
    dims = (*x.dims[:axis], *x.dims[axis + 1 :])
    index = g.constant(np.int64(place - int(x.dims[axis]) * g.random.choice([0, 1])), "i64")
    return g.op("Gather", [x, index], x.dtype, dims, lambda a, v, _: np.take(v, place, axis), axis=axis)


def identity(g: Grower) -> Value | None:
    x = g.some()
    return None if x is None else g.op("Identity", [x], x.dtype, x.dims, lambda a, v: v)


MOVES = (
    flatten,
    gather,
    identity,
    transpose,
    transpose,
    reshape,
    reshape,
    unsqueeze,
    squeeze,
    cut,
    split,
    concat,
    expand,
)
