"""Libraries with kernels for CUDA and for CPUs: device code for all architectures, and its host part in C.

An image of device code depends on one kernel, the architecture and the version of NVRTC. Images are in the
store as well, so that a kernel of several models is compiled once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache, partial
from importlib import resources
from pathlib import Path
from threading import Event

from graphopt.fusion.backend import ProgressCallback
from graphopt.fusion.backends.c.build_library import Plan, Provider, is_stored, levels, stored
from graphopt.fusion.backends.c.c_compiler import Compiler, find_compiler
from graphopt.fusion.backends.c.source_file import sources
from graphopt.fusion.backends.cuda.host_printer import HostedKernel, host_text
from graphopt.fusion.backends.cuda.nvrtc import OPTIONS, TARGETS, Image, Nvrtc, Resources, Target, find_nvrtc
from graphopt.process.stoppable_calls import run_all
from graphopt.util.disk_store import Store, key_of

_KIND, _FORM = "cuda-images", 1
_RUNTIME = ("devices.c", "launches.c", "driver.h", "device.h", "devices.h")


def build(
    kernels: Sequence[HostedKernel],
    store: Store,
    *,
    compiler: str | None = None,
    progress: ProgressCallback | None = None,
    requested: Sequence[int] | None = None,
) -> Path:
    """The library of ``kernels``; see :meth:`graphopt.fusion.backend.Backend.build`."""
    nvrtc, found = find_nvrtc(), find_compiler(compiler)
    report = progress or (lambda done, text: None)
    images = compile_images(
        [kernel.module for kernel in kernels], nvrtc, store, lambda done, text: report(_half(done), text)
    )
    plan = _plan(kernels, images, nvrtc, found, requested)
    return stored(plan, store, lambda done, text: report(None if done is None else 0.5 + _half(done), text))


def find(kernels: Sequence[HostedKernel], store: Store, *, compiler: str | None = None) -> Path | None:
    """The library of ``kernels``, or ``None`` if ``store`` does not have it."""
    nvrtc, found = find_nvrtc(), find_compiler(compiler)
    images = stored_images([kernel.module for kernel in kernels], nvrtc, store)
    rows = [[images.get((target, kernel.module)) for kernel in kernels] for target in TARGETS]
    whole = [[image for image in row if image is not None] for row in rows]
    if any(len(row) < len(kernels) for row in whole):
        return None
    plan = _plan(kernels, whole, nvrtc, found, None)
    return stored(plan, store) if is_stored(plan, store) else None


def _half(done: float | None) -> float:
    return (done or 0.0) / 2


def _plan(
    kernels: Sequence[HostedKernel],
    images: Sequence[Sequence[Image]],
    nvrtc: Nvrtc,
    compiler: Compiler,
    requested: Sequence[int] | None,
) -> Plan:
    units = sources([kernel.kernel for kernel in kernels])
    provider = cuda_provider(kernels, images, nvrtc.version[0])
    return Plan(tuple(units), len(kernels), compiler, levels(requested), providers=(provider,))


def cuda_provider(kernels: Sequence[HostedKernel], images: Sequence[Sequence[Image]], major: int) -> Provider:
    """The CUDA kernels of a library.

    Args:
        images: for each of ``TARGETS``, the images of the kernels.
        major: major version of CUDA that the driver has to support.
    """
    files: dict[str, str | bytes] = dict(runtime_files())
    files["device_kernels.c"] = host_text(kernels)
    files["images.c"] = "".join(f"{line}\n" for line in _images_lines(images))
    for number, row in enumerate(images):
        files |= {_file(number, place): image.code for place, image in enumerate(row)}
    lines = [
        f"#define GO_CUDA_MAJOR {major}",
        f"#define GO_DEVICE_COUNT {len(kernels)}",
        f"#define GO_FUNCTION_COUNT {sum(len(kernel.functions) for kernel in kernels)}",
        f"#define GO_ARCHITECTURE_COUNT {len(TARGETS)}",
        f"#define GO_MOST_SCRATCH {max(1, *(len(kernel.device.scratch) for kernel in kernels))}",
    ]
    return Provider("go_cuda", len(kernels), files, "\n".join(lines))


def compile_images(
    texts: Sequence[str], nvrtc: Nvrtc, store: Store, progress: ProgressCallback | None = None
) -> list[list[Image]]:
    """The images of modules, loaded from ``store`` or compiled: for each of ``TARGETS``, one per text.

    Raises:
        RuntimeFailure: a text does not compile.
        ResourceLimit: the store is not writable.
    """
    found = stored_images(texts, nvrtc, store)
    wanted = [(target, text) for target in TARGETS for text in dict.fromkeys(texts)]
    missing = [each for each in wanted if each not in found]

    def make(target: Target, text: str, stop: Event) -> None:
        found[target, text] = image = nvrtc.compile(text, target)
        store.put(_KIND, _packed(image), _key(text, target, nvrtc))

    report = progress or (lambda done, text: None)
    if missing:
        report(0.0, f"compiling {len(missing)} images by {nvrtc}")
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
    run_all(
        [partial(make, target, text) for target, text in missing],
        workers,
        lambda done: report(done / len(missing), f"compiled {done} of {len(missing)} images"),
    )
    return [[found[target, text] for text in texts] for target in TARGETS]


def stored_images(texts: Sequence[str], nvrtc: Nvrtc, store: Store) -> dict[tuple[Target, str], Image]:
    """The images of modules that are in ``store``, by target and text."""
    wanted = [(target, text) for target in TARGETS for text in dict.fromkeys(texts)]
    found = {each: _stored_image(store, _key(each[1], each[0], nvrtc)) for each in wanted}
    return {each: image for each, image in found.items() if image is not None}


@cache
def runtime_files() -> dict[str, str]:
    """The files of the runtime for CUDA, by name."""
    folder = resources.files(__package__) / "runtime"
    return {name: folder.joinpath(name).read_text(encoding="utf-8") for name in _RUNTIME}


def _key(text: str, target: Target, nvrtc: Nvrtc) -> str:
    return key_of(_FORM, *nvrtc.version, *OPTIONS, str(target), text)


def _packed(image: Image) -> bytes:
    """``image`` as bytes: a line with its resources, and the code."""
    table = {name: asdict(each) for name, each in image.resources.items()}
    return json.dumps(table, sort_keys=True).encode() + b"\n" + image.code


def _stored_image(store: Store, key: str) -> Image | None:
    data = store.get(_KIND, key)
    if data is None:
        return None
    table, _, code = data.partition(b"\n")
    return Image(code, {name: Resources(**each) for name, each in json.loads(table).items()})


def _file(number: int, place: int) -> str:
    return f"image{number}_{place}.bin"


_IMAGE = """\
#define GO_IMAGE(name, file) \\
  __asm__(".pushsection .rodata\\n.balign 64\\n.hidden " #name "\\n.globl " #name "\\n" \\
          #name ":\\n.incbin \\"" file "\\"\\n.byte 0\\n.popsection\\n"); \\
  extern const unsigned char name[];"""


def _images_lines(images: Sequence[Sequence[Image]]) -> Iterator[str]:
    """The C file that includes all images by ``.incbin``, which compiles faster than arrays in C.

    A comment has a digest of the code, because compilers with a cache, such as zig, ignore changes of files
    that ``.incbin`` reads.
    """
    yield f"/* {key_of(*(image.code for row in images for image in row))} */"
    yield '#include "device.h"'
    yield _IMAGE
    places = [(number, place) for number, row in enumerate(images) for place in range(len(row))]
    for number, place in places:
        yield f'GO_IMAGE(go_image_{number}_{place}, "{_file(number, place)}")'
    names = ", ".join(f"go_image_{number}_{place}" for number, place in places)
    yield f"const unsigned char *const go_images[] = {{{names}}};"
    targets = ", ".join(f"{{{target.number}, {int(target.ptx)}}}" for target in TARGETS)
    yield f"const go_architecture go_architectures[] = {{{targets}}};"
