"""Patterns of normalizations in the forms that exporters write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

#: Operators that compute a mean; exporters from TensorFlow use the pooling for axes 2 and up.
MEANS = ("ReduceMean", "GlobalAveragePool")


def _mean(op: Any, x: Any, axes: Any) -> Any:
    return op.one_of(*MEANS)(x, axes.rest())


def _squares(op: Any, x: Any) -> Iterator[Any]:
    """x squared."""
    yield op.Pow(x, 2)
    yield op.Mul(x, x)


def _inverses(op: Any, variance: Any) -> Iterator[Any]:
    """1 over the root of ``variance``."""
    yield op.Reciprocal(op.Sqrt(variance))
    yield op.Div(1, op.Sqrt(variance))
    yield op.Sqrt(op.Reciprocal(variance))
    yield op.Pow(variance, -0.5)


def _quotients(op: Any, x: Any, variance: Any) -> Iterator[Any]:
    """x over the root of ``variance``."""
    yield op.Div(x, op.Sqrt(variance))
    yield op.Div(x, op.Pow(variance, 0.5))
    for inverse in _inverses(op, variance):
        yield op.Mul(x, inverse)


def _scaled(op: Any, x: Any, variance: Any, scale: Any) -> Iterator[Any]:
    """x over the root of ``variance``, times ``scale``, which multiplies the inverse or x first."""
    yield op.Mul(x, op.Div(scale, op.Sqrt(variance)))
    yield op.Div(op.Mul(x, scale), op.Sqrt(variance))
    for inverse in _inverses(op, variance):
        yield op.Mul(x, op.Mul(inverse, scale))
        yield op.Mul(op.Mul(x, scale), inverse)


def _over_root(op: Any, x: Any, variance: Any) -> Iterator[Any]:
    yield op.Div(x, op.Sqrt(variance))
    yield op.Mul(x, op.Reciprocal(op.Sqrt(variance)))


def _variance(op: Any, square: Any, axes: Any, eps: Any) -> Any:
    return op.Add(_mean(op, square, axes), eps.constant())


def layer_norms(op: Any, x: Any, a: Any, b: Any, eps: Any, scale: Any) -> Iterator[Any]:
    """(x - mean) / Sqrt(variance + eps), and the same times ``scale``."""
    deviation = op.Sub(x, _mean(op, x, a))
    for square in _squares(op, deviation):
        variance = _variance(op, square, b, eps)
        yield from _quotients(op, deviation, variance)
        yield from _over_root(op, deviation, _mean(op, square, b))
        yield from _scaled(op, deviation, variance, scale)


def layer_norms_with_bias(op: Any, x: Any, a: Any, b: Any, eps: Any, scale: Any, bias: Any) -> Iterator[Any]:
    """(x - mean) / Sqrt(variance + eps) * scale + bias, where scale and bias are constant."""
    deviation = op.Sub(x, _mean(op, x, a))
    for square in _squares(op, deviation):
        variance = _variance(op, square, b, eps)
        for core in _quotients(op, deviation, variance):
            yield op.Add(op.Mul(core, scale.constant()), bias.constant())
        for scaled in _scaled(op, deviation, variance, scale.constant()):
            yield op.Add(scaled, bias.constant())


def rms_norms(op: Any, x: Any, b: Any, eps: Any, scale: Any) -> Iterator[Any]:
    """x / Sqrt(variance + eps), and the same times ``scale``."""
    for square in _squares(op, x):
        variance = _variance(op, square, b, eps)
        yield from _quotients(op, x, variance)
        yield from _over_root(op, x, _mean(op, square, b))
        yield from _scaled(op, x, variance, scale)


def layer_norms_by_batch_norm(
    op: Any, x: Any, before: Any, after: Any, a: Any, b: Any, c: Any, n: Any
) -> Any:
    """Keras' LayerNormalization: a BatchNormalization with rows as channels, and the moments of the rows."""
    rows = op.Reshape(x, before, tag="rows")
    mean = op.ReduceMean(rows, a.rest(), tag="mean")
    squares = op.ReduceSumSquare(op.Sub(rows, mean), b.rest(), tag="squares")
    norm = op.BatchNormalization(rows, 1, 0, op.Squeeze(mean, c.rest()), op.Div(squares, n), tag="norm")
    return op.Reshape(norm, after)
