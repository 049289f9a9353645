"""Statistics of constants as text."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.util.text_tables import human_bytes

#: Size in bytes up to which a constant is read.
_READ = 64 << 20


def statistics_of(tensor: ir.TensorProtocol) -> str:
    """The size of ``tensor``; its least, mean and greatest element; the shares of zeros, NaN and infinity.

    Large tensors and strings have only a size. Elements that are not finite don't contribute to the mean.

    >>> statistics_of(ir.tensor(np.array([0.0, 1.0, 2.0], np.float32)))
    '12 B, least 0, mean 1, greatest 2, 33.3 % zeros'
    """
    size = human_bytes(tensor.nbytes)
    if tensor.dtype == ir.DataType.STRING or not 0 < tensor.nbytes <= _READ:
        return size
    array = tensor.numpy()
    if array.dtype == np.bool_ or array.dtype.kind == "c":
        return size
    numbers = array.astype(np.float64) if array.dtype.kind not in "iu" else array
    finite = numbers[np.isfinite(numbers)]
    parts = [size]
    if finite.size:
        parts += [f"least {finite.min():.4g}", f"mean {finite.mean():.4g}", f"greatest {finite.max():.4g}"]
    for name, mask in (("zeros", numbers == 0), ("NaN", np.isnan(numbers)), ("infinite", np.isinf(numbers))):
        count = int(np.count_nonzero(mask))
        if count:
            parts.append(f"{100 * count / numbers.size:.3g} % {name}")
    return ", ".join(parts)
