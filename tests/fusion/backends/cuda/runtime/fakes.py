"""A fake driver and a fake onnxruntime, in which libraries with kernels for CUDA run without a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np

from graphopt.fusion.backends.c import build_library
from graphopt.fusion.backends.c.c_compiler import find_compiler
from graphopt.fusion.backends.c.source_file import sources
from graphopt.fusion.backends.cuda import build_library as cuda_library
from graphopt.fusion.backends.cuda.host_printer import HostedKernel
from graphopt.fusion.backends.cuda.nvrtc import TARGETS, Image
from graphopt.fusion.loops.interpreter import TYPES
from graphopt.fusion.loops.ir import Kernel

HERE = Path(__file__).parent
#: Runs a launch: its function, blocks, threads per block, and the addresses of its arguments.
Runner = Callable[[str, int, int, "ctypes.Array[ctypes.c_void_p]"], None]
_RUNNER = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)
)


def library(
    kernels: Sequence[HostedKernel],
    folder: Path,
    driver: str,
    flags: Sequence[str] = (),
    on_cpu: int | None = None,
) -> Path:
    """A library with the host parts of ``kernels``, whose images are their names.

    Args:
        driver: path or name of the driver.
        on_cpu: number of kernels that the library also has for CPUs; by default all.
    """
    images = [[Image(f"{target} {one.kernel.name}".encode(), {}) for one in kernels] for target in TARGETS]
    provider = cuda_library.cuda_provider(kernels, images, 13)
    host = [one.kernel for one in kernels][:on_cpu]
    units = tuple(sources(host))
    levels = build_library.levels((2,))
    words = (*flags, f'-DGO_DRIVER_LIBRARY="{driver}"')
    plan = build_library.Plan(units, len(host), find_compiler(), levels, words, (provider,))
    folder.mkdir(parents=True, exist_ok=True)
    plan.make(folder, folder / "kernels.so")
    return folder / "kernels.so"


class Fakes:
    """The fakes.

    Attributes:
        path: path of the driver.

    Args:
        flags: further arguments for the compiler.
    """

    def __init__(self, folder: Path, flags: Sequence[str] = ()) -> None:
        headers = [
            f"-I{Path(module.__file__).parent / 'runtime'}" for module in (build_library, cuda_library)
        ]
        common = ["-std=gnu11", "-O1", "-shared", "-fPIC", *headers, *flags]
        folder.mkdir(parents=True, exist_ok=True)
        self.path = str(folder / "fake_driver.so")
        find_compiler().run([*common, str(HERE / "fake_driver.c"), "-o", self.path], folder, 60)
        find_compiler().run([*common, str(HERE / "fake_ort.c"), "-o", "fake_ort.so", "-ldl"], folder, 60)
        self.driver = ctypes.CDLL(self.path)
        self.ort = ctypes.CDLL(str(folder / "fake_ort.so"))
        for name in ("fault", "image"):
            getattr(self.driver, f"fake_{name}").restype = ctypes.c_char_p
        for name in ("open", "name", "provider", "message", "run"):
            getattr(self.ort, f"ort_{name}").restype = ctypes.c_char_p
        for name in ("create", "data", "input_data", "stream"):
            getattr(self.ort, f"ort_{name}").restype = ctypes.c_void_p
        self.ort.ort_dims.restype = ctypes.POINTER(ctypes.c_int64)
        self.ort.ort_scratch.restype = ctypes.c_int64
        self._runner = _RUNNER()
        self.reset()

    def reset(
        self,
        version: int = 13000,
        gpus: int = 1,
        capability: int = 90,
        init_error: int = 0,
        current: int = -1,
    ) -> None:
        """Describe the driver and its GPUs, and the GPU of the current context."""
        self.driver.fake_driver(version, gpus, capability, init_error)
        self.driver.fake_errors(0, 0)
        self.ort.ort_scratch_fails(0)
        self.driver.fake_run(current, ctypes.c_void_p(self.ort.ort_stream()), _RUNNER())
        self.current = current

    def run_by(self, runner: Runner) -> None:
        """Run launches by ``runner``."""

        def run(name: bytes, blocks: int, threads: int, arguments: ctypes.Array[ctypes.c_void_p]) -> int:
            runner(name.decode(), blocks, threads, arguments)
            return 0

        self._runner = _RUNNER(run)
        self.driver.fake_run(self.current, ctypes.c_void_p(self.ort.ort_stream()), self._runner)

    @contextmanager
    def opened(self, path: Path, version: str = "1.31.1") -> Iterator[Opened]:
        """The library at ``path``, registered; its objects have to be released at the end."""
        message = self.ort.ort_open(str(path).encode(), version.encode())
        assert message is None, message
        try:
            yield Opened(self)
        finally:
            self.ort.ort_reset()
            self.ort.ort_close()
        assert self.driver.fake_fault() == b""
        assert self.ort.ort_alive() == 0
        assert self.ort.ort_domains() == 0
        assert self.driver.fake_loaded() == self.driver.fake_unloaded()


class Opened:
    """A registered library."""

    def __init__(self, fakes: Fakes) -> None:
        self.fakes, self._ort = fakes, fakes.ort

    @cached_property
    def operators(self) -> list[tuple[str, str]]:
        """The name and the provider of each operator."""
        count = self._ort.ort_count()
        return [(self._ort.ort_name(at).decode(), self._ort.ort_provider(at).decode()) for at in range(count)]

    def place(self, kernel: Kernel) -> int:
        """The operator of ``kernel`` for CUDA."""
        return self.operators.index((kernel.name, "CUDAExecutionProvider"))

    def pairs(self, kernel: Kernel) -> list[tuple[int, int]]:
        """The pairs of an input and an output that may share memory."""
        found = (ctypes.c_int * 64)()
        count = self._ort.ort_pairs(self.place(kernel), found)
        return [(found[2 * at], found[2 * at + 1]) for at in range(count)]

    @contextmanager
    def session(self, kernel: Kernel, device: int = 0) -> Iterator[Session]:
        """An instance of ``kernel`` on a GPU; RuntimeError with its message if that fails."""
        place = self.place(kernel)
        instance = self._ort.ort_create(place, device)
        if not instance:
            raise RuntimeError(self._ort.ort_message().decode())
        try:
            yield Session(self.fakes, kernel, place, ctypes.c_void_p(instance))
        finally:
            self._ort.ort_destroy(place, ctypes.c_void_p(instance))


class Session:
    """A kernel of one session."""

    def __init__(self, fakes: Fakes, kernel: Kernel, place: int, instance: ctypes.c_void_p) -> None:
        self._fakes, self._ort = fakes, fakes.ort
        self._kernel, self._place, self._instance = kernel, place, instance

    def run(self, inputs: Sequence[np.ndarray], in_place: bool = False) -> list[np.ndarray]:
        """The outputs for ``inputs``; RuntimeError with the kernel's message if it fails."""
        self._ort.ort_reset()
        for index, array in enumerate(inputs):
            array = np.ascontiguousarray(array).reshape(array.shape)
            self._input(index, array.shape, array.ctypes.data, array.nbytes)
        self._compute(in_place)
        return [self._output(index) for index in range(len(self._kernel.outputs))]

    def run_without_memory(self, shape: tuple[int, ...]) -> None:
        """Run on an input of ``shape``, and an output in its place, without memory for their elements."""
        self._ort.ort_reset()
        self._input(0, shape, 0, 0)
        self._compute(in_place=True)

    def _input(self, index: int, shape: tuple[int, ...], data: int, nbytes: int) -> None:
        dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self._ort.ort_input(index, len(shape), dims, ctypes.c_void_p(data), ctypes.c_int64(nbytes))

    def _compute(self, in_place: bool) -> None:
        shared = {output: source for source, output in self._kernel.in_place} if in_place else {}
        for index, port in enumerate(self._kernel.outputs):
            self._ort.ort_output(index, port.element.bytes, shared.get(index, -1))
        message = self._ort.ort_run(self._place, self._instance)
        if message is not None:
            raise RuntimeError(message.decode())

    def input_address(self, index: int) -> int:
        """The address of an input of the last run."""
        return int(self._ort.ort_input_data(index))

    def output_address(self, index: int) -> int:
        """The address of an output of the last run."""
        return int(self._ort.ort_data(index))

    def _output(self, index: int) -> np.ndarray:
        shape = tuple(self._ort.ort_dims(index)[: self._ort.ort_rank(index)])
        found = np.empty(shape, TYPES[self._kernel.outputs[index].element])
        ctypes.memmove(found.ctypes.data, self._ort.ort_data(index), found.nbytes)
        return found
