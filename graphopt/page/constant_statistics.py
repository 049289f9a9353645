"""Statistics of constants as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from graphopt import ir
from graphopt.util.text_tables import human_bytes

#: Size in bytes up to which a constant is read.
_READ = 64 << 20
#: Number of elements that are read at once, to limit memory.
_CHUNK = 1 << 20


def statistics_of(tensor: ir.TensorProtocol) -> str:
    """The size of ``tensor``; its least, mean and greatest element; the shares of zeros, NaN and infinity.

    Large tensors, strings and complex numbers have only a size. Elements that are not finite don't contribute
    to the mean; booleans are 0 and 1.

    >>> statistics_of(ir.tensor(np.array([0.0, 1.0, 2.0], np.float32)))
    '12 B, least 0, mean 1, greatest 2, 33.3 % zeros'
    """
    size = human_bytes(tensor.nbytes)
    if tensor.dtype == ir.DataType.STRING or not 0 < tensor.nbytes <= _READ:
        return size
    array = tensor.numpy()
    if array.dtype.kind == "c":
        return size
    finite, mean, least, greatest = 0, 0.0, np.inf, -np.inf
    zeros = nan = infinite = 0
    with np.errstate(all="ignore"):  # sums of huge numbers overflow, and signaling NaN are converted
        for chunk in _chunks(array.reshape(-1)):
            mask = np.isfinite(chunk)
            if not mask.all():
                missing = int(np.count_nonzero(np.isnan(chunk)))
                nan, infinite = nan + missing, infinite + int(np.count_nonzero(~mask)) - missing
                chunk = chunk[mask]
            if not chunk.size:
                continue
            finite += chunk.size
            mean += (_mean(chunk) - mean) * (chunk.size / finite)
            least, greatest = min(least, chunk.min()), max(greatest, chunk.max())
            zeros += chunk.size - int(np.count_nonzero(chunk))
    parts = [size]
    if finite:
        parts += [f"least {least:.4g}", f"mean {mean:.4g}", f"greatest {greatest:.4g}"]
    for name, count in (("zeros", zeros), ("NaN", nan), ("infinite", infinite)):
        if count:
            parts.append(f"{100 * count / array.size:.3g} % {name}")
    return ", ".join(parts)


def _mean(chunk: npt.NDArray[Any]) -> float:
    """The mean, also if the sum overflows."""
    mean = float(chunk.mean(dtype=np.float64))
    return mean if np.isfinite(mean) else float((chunk / chunk.size).sum())


def _chunks(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """The elements in types that NumPy computes with; float32 represents all smaller floats and integers."""
    is_native = array.dtype.kind in "iu" or (array.dtype.kind == "f" and array.dtype.itemsize >= 4)
    for first in range(0, array.size, _CHUNK):
        chunk = array[first : first + _CHUNK]
        yield chunk if is_native else chunk.astype(np.float32)
