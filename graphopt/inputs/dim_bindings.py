"""Bindings: sizes for the dynamic dims of a model's inputs.

A binding maps each symbol to a size. A model rarely declares which bindings it accepts: for example, a mask
as long as past and present together, or images with sizes in multiples of 32. Accepted bindings are found by
trial, from small, discriminating sizes to larger, more typical sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from graphopt.ir.signature import Port
from graphopt.util.dim_expressions import expression, is_expression
from graphopt.util.lazy_dataclass import dataclass

Binding = Mapping[str, int]
Shape = tuple[int, ...]

#: Distinct sizes, which reveal swapped dims, and primes, which fit no reshape by chance.
_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23)
#: Sizes at which some elements are not near a border.
_LARGER = (16, 24, 12, 20, 9, 10, 14, 15)
#: Sizes for models with a minimum or a granularity.
_LADDER = (2, 4, 8, 16, 32, 64, 96, 128, 160, 224, 256, 320, 512, 576, 1024)
#: Typical lengths in production.
_TYPICAL = (128, 64, 32)
#: Ranks to try for inputs without a declared rank.
RANKS = (2, 4, 3, 1, 0)


@dataclass(frozen=True)
class Dimensions:
    """The dims of a model's inputs, with names for all dynamic dims.

    Attributes:
        dims: dims by input; a symbol is a free name or an expression over others.
        symbols: the free symbols, in order of appearance.
        batch: symbols that are the first dim of some input; they tend to be equal.
    """

    dims: Mapping[str, tuple[int | str, ...]]
    symbols: tuple[str, ...]
    batch: frozenset[str]

    @classmethod
    def of(cls, ports: Iterable[Port], rank: int = RANKS[0]) -> Dimensions:
        """Name the anonymous dims of ``ports``; inputs without rank count as having ``rank`` dims."""
        dims: dict[str, tuple[int | str, ...]] = {}
        for port in ports:
            ranked = replace(port, dims=(None,) * rank) if port.dims is None else port
            dims[port.name] = ranked.named_dims
        names = dict.fromkeys(dim for shape in dims.values() for dim in shape if isinstance(dim, str))
        symbols = tuple(name for name in names if not is_expression(name, names))
        leading = (shape[0] for shape in dims.values() if shape)
        return cls(
            dims, symbols, frozenset(dim for dim in leading if dim in symbols and isinstance(dim, str))
        )

    def shape(self, name: str, binding: Binding) -> Shape:
        """The shape of input ``name`` under ``binding``."""
        return tuple(dim if isinstance(dim, int) else _evaluate(dim, binding) for dim in self.dims[name])

    def first_tries(self) -> Iterator[dict[str, int]]:
        """The most discriminating bindings, which the model may reject."""
        if not self.symbols:
            yield {}
            return
        yield dict.fromkeys(self.symbols, 1)
        yield self._spread(2, _PRIMES)
        yield self._spread(3, _LARGER)
        yield self._spread(2, _PRIMES, reverse=True)

    def typical_tries(self) -> Iterator[dict[str, int]]:
        """Bindings that are worth timing: a batch of 1, and long other dims."""
        for size in _TYPICAL:
            yield {symbol: 1 if symbol in self.batch else size for symbol in self.symbols}

    def more_tries(self, seed: int) -> Iterator[dict[str, int]]:
        """Likelier bindings, for a model that rejects the discriminating ones."""
        # one dim is the sum of two others: past + present = total
        spread = self._spread(2, _PRIMES)
        for total, a, b in itertools.permutations(self.symbols[:6], 3):
            if a < b:
                yield {**spread, total: spread[a] + spread[b]}
        for size in _LADDER:
            if self._rest:
                yield {symbol: 1 if symbol in self.batch else size for symbol in self.symbols}
            yield dict.fromkeys(self.symbols, size)
        generator = np.random.default_rng([seed, len(self.symbols)])
        for _ in range(32):
            sizes = generator.choice((1, 2, 3, 4, 5, 6, 8, 16, 32), len(self.symbols))
            yield dict(zip(self.symbols, map(int, sizes), strict=True))

    def variations(self, binding: Binding) -> Iterator[dict[str, int]]:
        """Variations of a valid binding, the most discriminating first."""
        rest = {symbol: binding[symbol] for symbol in self._rest}
        two, three = dict.fromkeys(self._leading, 2), dict.fromkeys(self._leading, 3)
        if rest and max(rest.values()) < 32:
            yield {**binding, **three, **dict.fromkeys(rest, 32)}
            yield {**binding, **dict.fromkeys(rest, 32)}
        uneven = {
            symbol: size * factor for (symbol, size), factor in zip(rest.items(), itertools.cycle((2, 3)))
        }
        yield {**binding, **two, **uneven}
        yield {**binding, **three}
        yield {**binding, **uneven}
        for factor in (2, 3):
            yield {**binding, **{symbol: size * factor for symbol, size in rest.items()}}
        for symbol, size in rest.items():
            yield {**binding, symbol: size * 2}
            yield {**binding, symbol: size + 1}
        yield {**binding, **two}

    def larger(self, binding: Binding, symbols: Iterable[str]) -> Iterator[dict[str, int]]:
        """Variations of a valid binding: larger sizes of all ``symbols``, then of each of them."""
        sizes = {symbol: binding[symbol] for symbol in symbols}
        for factor in (3, 2):
            yield {**binding, **{symbol: factor * size for symbol, size in sizes.items()}}
        for symbol, size in sizes.items():
            yield {**binding, symbol: 2 * size}

    def empty(self, binding: Binding) -> Iterator[dict[str, int]]:
        """Bindings with a size of 0: for all leading dims, then for each other symbol."""
        if self._leading:
            yield {**binding, **dict.fromkeys(self._leading, 0)}
        for symbol in self._rest:
            yield {**binding, symbol: 0}

    @property
    def _leading(self) -> list[str]:
        return [symbol for symbol in self.symbols if symbol in self.batch]

    @property
    def _rest(self) -> list[str]:
        return [symbol for symbol in self.symbols if symbol not in self.batch]

    def _spread(self, batch: int, sizes: tuple[int, ...], *, reverse: bool = False) -> dict[str, int]:
        """A binding with ``batch`` for leading symbols, and distinct ``sizes`` for the others."""
        rest = list(reversed(self._rest)) if reverse else self._rest
        given = dict(zip(rest, itertools.cycle(sizes), strict=False))
        return {symbol: given.get(symbol, batch) for symbol in self.symbols}


def describe(binding: Binding) -> str:
    """A binding as text, such as ``batch=2 seq=3``."""
    return " ".join(f"{symbol}={size}" for symbol, size in binding.items()) or "fixed shapes"


def derived_sizes(dims: Iterable[str], sizes: Binding) -> dict[str, int]:
    """The sizes of all ``dims`` that are expressions, such as ``past + 1``, over dims of known size."""
    names = dict.fromkeys(sizes)
    return {dim: _evaluate(dim, sizes) for dim in dims if dim not in sizes and is_expression(dim, names)}


def _evaluate(dim: str, binding: Binding) -> int:
    return binding[dim] if dim in binding else max(int(expression(dim, binding)), 0)
