"""Recorded kernels of onnxruntime's CUDA provider, for machines on which they can't be listed.

To list them, onnxruntime loads the libraries of all providers, including CUDA and TensorRT.
``tests/placement/record_kernels.py`` generates the table ``cuda_kernels.txt`` from the registry of one
release. The table also has a property that onnxruntime does not list: the inputs and outputs that a kernel
keeps in host memory.

Each line describes kernels of one operator; comments start with ``#``::

    ReduceSum 13- host=1 T=double,float,float16,int32,int64
    com.microsoft::Trilu 1- host=1 T=…

The fields are the operator, the first and the last version that the kernel implements (without a last
version, later definitions have other kernels), the indices of inputs (``host``) and outputs (``host-out``) in
host memory, and the accepted types by type parameter, without ``tensor(…)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from graphopt.util.lazy_dataclass import dataclass

#: Types by type parameter, or by the name of an input or output.
Types = tuple[tuple[str, frozenset[str]], ...]

_PATH = Path(__file__).with_name("cuda_kernels.txt")
_VERSION = "# onnxruntime "
_SEQUENCE = ("seq(", "optional(")


@dataclass(frozen=True)
class Kernel:
    """One registered kernel.

    Attributes:
        since, until: the first and the last version of the operator that it implements. If the runtime lists
            no last version, ``until`` equals ``since``, because a newer definition may differ.
        types: accepted types, such as ``tensor(float)``, by type parameter of the operator, or by the name of
            an input or output.
        host_inputs, host_outputs: indices of inputs and outputs in host memory, for a kernel of a device.
    """

    since: int
    until: int
    types: Types
    host_inputs: frozenset[int] = frozenset()
    host_outputs: frozenset[int] = frozenset()


@dataclass(frozen=True)
class RecordedKernels:
    """The table of one release.

    Attributes:
        version: the release of onnxruntime.
        kernels: kernels by domain and operator.
    """

    version: str
    kernels: Mapping[tuple[str, str], tuple[Kernel, ...]]

    def with_memory(self, key: tuple[str, str], kernel: Kernel) -> Kernel:
        """A listed kernel, with the host memory of the recorded one of the same or the next older version."""
        older = [one for one in self.kernels.get(key, ()) if one.since <= kernel.since]
        if not older:
            return kernel
        found = max(older, key=lambda one: one.since)
        return Kernel(kernel.since, kernel.until, kernel.types, found.host_inputs, found.host_outputs)


@lru_cache(maxsize=1)
def recorded() -> RecordedKernels:
    """The table that is shipped with graphopt."""
    version, *lines = _PATH.read_text(encoding="utf-8").splitlines()
    kernels: dict[tuple[str, str], list[Kernel]] = {}
    for line in lines:
        if line and not line.startswith("#"):
            key, kernel = parse(line)
            kernels.setdefault(key, []).append(kernel)
    return RecordedKernels(
        version.removeprefix(_VERSION), {key: tuple(found) for key, found in kernels.items()}
    )


def parse(line: str) -> tuple[tuple[str, str], Kernel]:
    """The operator and the kernel of one line."""
    name, versions, *fields = line.split()
    domain, _, op_type = name.rpartition("::")
    since, _, until = versions.partition("-")
    values = dict(field.split("=") for field in fields)
    return (domain, op_type), Kernel(
        int(since),
        int(until or since),
        tuple((name, _types(text)) for name, text in values.items() if not name.startswith("host")),
        _indices(values.get("host", "")),
        _indices(values.get("host-out", "")),
    )


def text(version: str, kernels: Iterable[tuple[tuple[str, str], Kernel]]) -> str:
    """The contents of the table."""
    lines = sorted(_line(key, kernel) for key, kernel in kernels)
    header = "# Kernels of the CUDA provider, written by tests/placement/record_kernels.py"
    return "\n".join((_VERSION + version, header, *lines)) + "\n"


def _line(key: tuple[str, str], kernel: Kernel) -> str:
    domain, op_type = key
    until = "" if kernel.until == kernel.since else kernel.until
    return " ".join(
        (f"{domain}::{op_type}" if domain else op_type, f"{kernel.since}-{until}", *_fields(kernel))
    )


def _fields(kernel: Kernel) -> Iterator[str]:
    for name, indices in (("host", kernel.host_inputs), ("host-out", kernel.host_outputs)):
        if indices:
            yield f"{name}={','.join(map(str, sorted(indices)))}"
    for name, types in kernel.types:
        yield f"{name}={','.join(sorted(map(_short, types)))}"


def _short(type: str) -> str:
    return type.removeprefix("tensor(").removesuffix(")") if type.startswith("tensor(") else type


def _types(text: str) -> frozenset[str]:
    return frozenset(one if one.startswith(_SEQUENCE) else f"tensor({one})" for one in text.split(","))


def _indices(text: str) -> frozenset[int]:
    return frozenset(map(int, text.split(","))) if text else frozenset()
