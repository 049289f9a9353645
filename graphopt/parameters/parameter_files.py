"""Files of parameters: ``.safetensors`` and ``.npz``."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from graphopt import ir, publish
from graphopt.errors import UsageError
from graphopt.parameters.lifting import Parameters, as_parameters
from graphopt.util import npz
from graphopt.util.missing_files import no_such_file

SUFFIXES = (".safetensors", ".npz")
#: The metadata entry of safetensors files, and the key in it that all tools write.
_METADATA, _FORMAT = "__metadata__", "format"
#: The error number of the operating system in messages of safetensors.
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


def check_suffix(path: Path) -> None:
    """Check the suffix of a file of parameters.

    Raises:
        UsageError: the format is not supported.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"{path} is not a file of parameters: those end in {' or '.join(SUFFIXES)}",
            hint="safetensors.torch.save_file(model.state_dict(), 'weights.safetensors') writes torch's",
        )


def write(path: Path, parameters: Parameters) -> None:
    """Write parameters and their metadata; the file is replaced atomically.

    In safetensors, tied tensors are written once, and the metadata maps the other names to the written name.

    Raises:
        UsageError: the file can't be written, or the format does not support metadata or an element type.
        ResourceLimit: the disk is full.
    """
    with staged(path, parameters):
        pass


@contextlib.contextmanager
def staged(path: Path, parameters: Parameters) -> Iterator[None]:
    """Write parameters to a temporary file, which replaces ``path`` after the ``with`` block.

    If the block raises, ``path`` is unchanged. Errors are the same as for :func:`write`.
    """
    check_suffix(path)
    arrays = {name: _in_order(tensor.numpy()) for name, tensor in parameters.tensors.items()}
    is_npz = path.suffix.lower() == ".npz"
    fill = _npz(path, parameters, arrays) if is_npz else _safetensors(path, parameters, arrays)
    with publish.staged(path, fill):
        yield


def _npz(path: Path, parameters: Parameters, arrays: Mapping[str, np.ndarray]) -> Callable[[Path], None]:
    """A function that writes the arrays to an ``.npz`` file."""
    _check_plain(path, arrays)
    if parameters.metadata:
        raise UsageError(f"{path} can't hold metadata", hint="write a .safetensors file")
    return lambda file: npz.write_to(file, arrays)


def _safetensors(
    path: Path, parameters: Parameters, arrays: Mapping[str, np.ndarray]
) -> Callable[[Path], None]:
    """A function that writes the arrays to a ``.safetensors`` file."""
    if _METADATA in arrays:
        raise UsageError(f"{path} can't hold {_METADATA!r}, which is reserved in safetensors")
    metadata = {**parameters.metadata, _FORMAT: "np"}
    tied = {name: other for name, other in parameters.tied.items() if name not in metadata}
    once = {name: data for name, data in arrays.items() if name not in tied}

    def fill(file: Path) -> None:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        try:
            save_file(once, file, metadata={**metadata, **tied})
        except SafetensorError as error:
            number = _SYSTEM_ERROR.search(str(error))
            if number is not None:
                raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
            raise UsageError(f"can't write {path}: {error}") from error
        except (ValueError, KeyError) as error:
            raise UsageError(f"can't write {path}: {error}") from error

    return fill


def _in_order(data: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(data).reshape(data.shape)  # ascontiguousarray converts scalars to vectors


def _check_plain(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    for name, data in arrays.items():
        if data.dtype.isbuiltin == 2:  # a type of ml_dtypes
            raise UsageError(
                f"{path} can't hold {name!r}: numpy has no {data.dtype}", hint="write a .safetensors file"
            )


def read(path: Path) -> Parameters:
    """Read parameters from a file.

    Raises:
        UsageError: the file does not exist, its format is not supported, or it is damaged.
    """
    check_suffix(path)
    if path.suffix.lower() == ".npz":
        arrays = npz.read(path)
        if isinstance(arrays, np.ndarray):
            raise UsageError(f"{path} holds one array without a name")
        return as_parameters(arrays)
    return _read_safetensors(path)


def _read_safetensors(path: Path) -> Parameters:
    from safetensors import SafetensorError, safe_open

    found = Parameters()
    try:
        with safe_open(path, framework="numpy") as file:
            names = list(file.keys())
            for name in names:
                found.tensors[name] = ir.tensor(file.get_tensor(name), name=name)
            for name, text in sorted((file.metadata() or {}).items()):
                if name == _FORMAT:
                    continue
                if name in names or text not in names:
                    found.metadata[name] = text
                    continue
                found.tensors[name] = ir.tensor(file.get_tensor(text), name=name)
                found.tied[name] = text
    except FileNotFoundError as error:
        raise no_such_file(Path(path)) from error
    except (OSError, SafetensorError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} is not a safetensors file, or it is damaged: {error}") from error
    return found
