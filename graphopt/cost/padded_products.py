"""Whether padding a matrix product to the multiples of matrix units makes it faster: estimates, no models.

The time of a product is the longer of two: that of its operations, and that of moving its operands and its
result (the roofline model; Williams, Waterman and Patterson, 2009). Times are in bytes: one unit is the time
that moves one byte of device memory. Unaligned rows slow down only the operations.
"""

from __future__ import annotations

from graphopt.ort.devices import MatrixUnits
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import human_bytes

#: Largest estimated ratio of times at which a product is padded: estimates are rough.
LEAST_GAIN = 0.8


@dataclass(frozen=True)
class Product:
    """``batch`` products of matrices ``[rows, inner] @ [inner, columns]``.

    Attributes:
        dtype: the element type in onnxruntime's notation.
        itemsize: bytes of an element of the operands.
        batch, rows: ``None`` if unknown.
        left_batch, right_batch: the number of different matrices on each side.
        left_transposed, right_transposed: whether the operand is stored as its transpose.
        left_constant, right_constant: whether the operand is padded ahead of time, at no cost.
    """

    dtype: str
    itemsize: int
    batch: int | None
    rows: int | None
    inner: int
    columns: int
    left_batch: int | None = 1
    right_batch: int | None = 1
    left_transposed: bool = False
    right_transposed: bool = False
    left_constant: bool = False
    right_constant: bool = False

    def __str__(self) -> str:
        return f"{'?' if self.rows is None else self.rows}×{self.inner}×{self.columns}"


@dataclass(frozen=True)
class Padding:
    """The numbers of zeros added to each dim of a product."""

    rows: int = 0
    inner: int = 0
    columns: int = 0

    def __bool__(self) -> bool:
        return any((self.rows, self.inner, self.columns))


@dataclass(frozen=True)
class PaddingDecision:
    """Whether to pad a product.

    Attributes:
        padding: the padding; none if the product remains unchanged.
        reason: one phrase.
        hint: a remedy for a missing fact.
    """

    padding: Padding
    reason: str
    hint: str | None = None

    def __bool__(self) -> bool:
        return bool(self.padding)


def required_padding(product: Product, multiple: int) -> Padding | None:
    """The padding after which all rows in memory are multiples of ``multiple``; ``None`` if it is unknown.

    Rows of the left operand have the length ``inner``, those of the right operand and of the result
    ``columns``. Rows of an operand that is stored as its transpose have the length of its other dim.
    """
    aligns_inner = not product.left_transposed or product.right_transposed
    if product.left_transposed and product.rows is None:
        return None
    return Padding(
        -(product.rows or 0) % multiple if product.left_transposed else 0,
        -product.inner % multiple if aligns_inner else 0,
        -product.columns % multiple,
    )


def decide(product: Product, units: MatrixUnits | None) -> PaddingDecision:
    """Whether padding ``product`` makes it faster on a device with ``units``."""
    multiple = None if units is None else units.multiples.get(product.dtype)
    if units is None or multiple is None:
        return PaddingDecision(Padding(), f"the device has no matrix units for {product.dtype}")
    padding = required_padding(product, multiple)
    if padding is not None and not padding:
        return PaddingDecision(padding, f"its rows are multiples of {multiple}")
    sizes = (product.batch, product.rows, product.left_batch, product.right_batch)
    if padding is None or None in sizes:
        return PaddingDecision(
            Padding(), "the number of rows or matrices is unknown", hint="--dim NAME=SIZE fixes a dynamic dim"
        )
    pads_left = (padding.rows or padding.inner) and not product.left_constant
    pads_right = (padding.inner or padding.columns) and not product.right_constant
    if (pads_left or pads_right) and product.dtype not in units.padded_types:
        return PaddingDecision(Padding(), f"the device has no Pad for {product.dtype}")
    intensity = units.intensities[product.dtype]
    operations, moved = _operations(product), _moved(product)
    if operations * units.slowdown <= moved * intensity:
        found = f"{operations / max(moved, 1):.0f} operations per byte, with {intensity:.0f} at full speed"
        return PaddingDecision(Padding(), f"it is memory-bound: {found}")
    before = operations * units.slowdown / intensity
    padded = _padded(product, padding)
    copies, nodes = _copies(product, padded, padding)
    after = max(_operations(padded) / intensity, _moved(padded)) + copies + nodes * units.launch_bytes
    ratio = after / before
    text = f"{product} → {padded}: about {ratio:.2f} × the time"
    if nodes:
        text += f", with {human_bytes(copies)} moved to pad and slice"
    return PaddingDecision(padding if ratio <= LEAST_GAIN else Padding(), text)


def _padded(product: Product, padding: Padding) -> Product:
    return Product(
        product.dtype,
        product.itemsize,
        product.batch,
        (product.rows or 0) + padding.rows,
        product.inner + padding.inner,
        product.columns + padding.columns,
        product.left_batch,
        product.right_batch,
    )


def _operations(product: Product) -> int:
    return 2 * (product.batch or 0) * (product.rows or 0) * product.inner * product.columns


def _moved(product: Product) -> int:
    """Bytes of the operands and the result."""
    return sum(_bytes(product))


def _bytes(product: Product) -> tuple[int, int, int]:
    """Bytes of the left operand, the right operand, and the result."""
    rows, size = product.rows or 0, product.itemsize
    return (
        (product.left_batch or 0) * rows * product.inner * size,
        (product.right_batch or 0) * product.inner * product.columns * size,
        (product.batch or 0) * rows * product.columns * size,
    )


def _copies(product: Product, padded: Product, padding: Padding) -> tuple[int, int]:
    """Bytes read and written by Pad and Slice at run time, and the number of these nodes."""
    old, new = _bytes(product), _bytes(padded)
    copied = (
        bool(padding.rows or padding.inner) and not product.left_constant,
        bool(padding.inner or padding.columns) and not product.right_constant,
        bool(padding.rows or padding.columns),
    )
    # a Slice reads only the part that it returns
    amounts = (old[0] + new[0], old[1] + new[1], 2 * old[2])
    return sum(amount for amount, is_copied in zip(amounts, copied, strict=True) if is_copied), sum(copied)
