"""Random graphs with products, by seed."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.products.attention_layers import attention_layers
from tests.fuzz.products.byte_products import byte_products
from tests.fuzz.products.convolutions import convolutions
from tests.fuzz.products.low_bits import low_bits
from tests.fuzz.products.matrix_products import matrix_products
from tests.fuzz.products.pointwise_convolutions import pointwise_convolutions
from tests.fuzz.products.product_graph import ProductGraph
from tests.fuzz.products.quantized_products import quantized_products
from tests.fuzz.products.recurrences import recurrences

_FLOATS: tuple[Callable[[ProductGraph], None], ...] = (
    convolutions,
    matrix_products,
    attention_layers,
    recurrences,
    low_bits,
)
#: A seed selects the family by its remainder.
FAMILIES = (*_FLOATS, quantized_products, *_FLOATS, byte_products, pointwise_convolutions)


def generate(seed: int, has_bodies: bool = True) -> ProductGraph:
    """The graph of ``seed``; about a quarter of all are bodies of If or Loop, unless there are to be none."""
    place = seed % len(FAMILIES)
    family = FAMILIES[place]
    turn = seed // len(FAMILIES) * FAMILIES.count(family) + FAMILIES[:place].count(family)
    g = ProductGraph(seed, turn=turn)
    body = g.pick("", "", "", "", "", "", "if", "loop")
    g.body = body if has_bodies else ""
    family(g)
    return g
