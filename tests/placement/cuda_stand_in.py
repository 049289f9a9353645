"""CUDA libraries that need no device: sessions of the CUDA provider are created, and place nodes, but can't run.

The provider's library is that of the installed wheel. It needs the libraries of CUDA and cuDNN; here, C functions
with the same names take their place. They return success, and allocate host memory. Creating a session then
partitions the graph and inserts Memcpy nodes, as with a device. Results of kernels are meaningless.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

_HEADER = """
#include <stdlib.h>
#include <string.h>
static void *handle(void) { return calloc(1, 1 << 16); }
static int allocate(void **p, size_t n) { return (*p = aligned_alloc(256, (n + 511) / 256 * 256)) ? 0 : 2; }
"""
_ALLOCATE = "int {name}(void **p, size_t n) {{ return allocate(p, n); }}"
_HANDLE = "int {name}(void **p) {{ *p = handle(); return 0; }}"
_FREE = "int {name}(void *p) {{ free(p); return 0; }}"
_TEXT = 'const char *{name}(int status) {{ return "stand-in"; }}'
_SUCCESS = "int {name}() {{ return 0; }}"
_DEFINITIONS = {
    "cudaGetDeviceCount": "int {name}(int *n) {{ *n = 1; return 0; }}",
    "cuDeviceGetCount": "int {name}(int *n) {{ *n = 1; return 0; }}",
    "cuDriverGetVersion": "int {name}(int *n) {{ *n = 13000; return 0; }}",
    "cudaGetDevice": "int {name}(int *n) {{ *n = 0; return 0; }}",
    "cudaDriverGetVersion": "int {name}(int *n) {{ *n = 13000; return 0; }}",
    "cudaRuntimeGetVersion": "int {name}(int *n) {{ *n = 13000; return 0; }}",
    "cudaMemGetInfo": "int {name}(size_t *a, size_t *b) {{ *a = *b = 64ull << 30; return 0; }}",
    "cudaMemcpy": "int {name}(void *to, const void *from, size_t n, int k) {{ memcpy(to, from, n); return 0; }}",
    "cudaMemcpyAsync": "int {name}(void *to, const void *from, size_t n, int k, void *s) {{ memcpy(to, from, n); return 0; }}",
    "cudaMemset": "int {name}(void *to, int v, size_t n) {{ memset(to, v, n); return 0; }}",
    "cudaMemsetAsync": "int {name}(void *to, int v, size_t n, void *s) {{ memset(to, v, n); return 0; }}",
    # compute capability 9.0 (attributes 75 and 76)
    "cudaDeviceGetAttribute": "int {name}(int *v, int a, int d) {{ *v = a == 75 ? 9 : a == 76 ? 0 : 1024; return 0; }}",
    # offsets of cudaDeviceProp in CUDA 13: totalGlobalMem 288, warpSize 308, maxThreadsPerBlock 320, major 360,
    # multiProcessorCount 388
    "cudaGetDeviceProperties": "int {name}(char *p, int d) {{ memset(p, 0, 1008); *(size_t *)(p + 288) = 64ull << 30;"
    " *(int *)(p + 308) = 32; *(int *)(p + 320) = 1024; *(int *)(p + 360) = 9; *(int *)(p + 388) = 132; return 0; }}",
    "cudaPointerGetAttributes": "int {name}(void *a, const void *p) {{ memset(a, 0, 24); return 0; }}",
    "cudaStreamEndCapture": "int {name}(void *s, void **graph) {{ *graph = handle(); return 0; }}",
    "cudaGraphInstantiate": "int {name}(void **p, void *graph, long f) {{ *p = handle(); return 0; }}",
    "cudaStreamIsCapturing": "int {name}(void *s, int *v) {{ *v = 0; return 0; }}",
    "__cudaRegisterFatBinary": "void **{name}(void *image) {{ static void *handles[4]; return handles; }}",
    "cudnnGetVersion": "size_t {name}(void) {{ return 91200; }}",
    "cudnnBackendCreateDescriptor": "int {name}(int kind, void **p) {{ *p = handle(); return 0; }}",
    "cudnnDropoutGetStatesSize": "int {name}(void *h, size_t *n) {{ *n = 1024; return 0; }}",
    "cudnnGetRNNWeightSpaceSize": "int {name}(void *h, void *d, size_t *n) {{ *n = 1 << 20; return 0; }}",
    # one element at the start of the weights of a recurrence
    "cudnnGetRNNWeightParams": "int {name}(void *h, void *r, int layer, size_t n, void *w, int id, void *m, void **ma,"
    " void *b, void **ba) {{ *ma = *ba = w; return 0; }}",
    "cudnnGetTensorNdDescriptor": "int {name}(void *d, int n, int *type, int *rank, int *dims, int *strides)"
    " {{ *type = 0; *rank = n; for (int i = 0; i < n; i++) dims[i] = strides[i] = 1; return 0; }}",
    **dict.fromkeys(("cudaMalloc", "cudaMallocHost", "cudaHostAlloc", "cudaMallocFromPoolAsync"), _ALLOCATE),
    **dict.fromkeys(("cudaFree", "cudaFreeHost", "cudaFreeAsync"), _FREE),
    **dict.fromkeys(
        (
            *("cudaGetErrorString", "cudaGetErrorName"),
            *("cublasGetStatusName", "cublasGetStatusString", "cudnnGetErrorString"),
        ),
        _TEXT,
    ),
}
_CREATES = re.compile(r"(cudaStream|cudaEvent|cublas|cublasLt\w*|cudaMemPool|cudnn)Create\w*")
#: cuDNN is loaded by name at run time, so that the functions it must have are not in the provider's symbols.
_CUDNN = """
ActivationForward AddTensor BackendCreateDescriptor BackendDestroyDescriptor BackendExecute BackendFinalize
BackendGetAttribute BackendSetAttribute BatchNormalizationForwardInference BatchNormalizationForwardTraining
ConvolutionBiasActivationForward ConvolutionForward Create CreateActivationDescriptor CreateConvolutionDescriptor
CreateDropoutDescriptor CreateFilterDescriptor CreateLRNDescriptor CreatePoolingDescriptor CreateRNNDataDescriptor
CreateRNNDescriptor CreateReduceTensorDescriptor CreateTensorDescriptor DeriveBNTensorDescriptor Destroy
DestroyActivationDescriptor DestroyConvolutionDescriptor DestroyDropoutDescriptor DestroyFilterDescriptor
DestroyLRNDescriptor DestroyPoolingDescriptor DestroyRNNDataDescriptor DestroyRNNDescriptor
DestroyReduceTensorDescriptor DestroyTensorDescriptor DropoutGetStatesSize FindConvolutionForwardAlgorithmEx
GetConvolutionForwardAlgorithm_v7 GetConvolutionForwardWorkspaceSize GetErrorString GetLastErrorString
GetRNNTempSpaceSizes GetRNNWeightParams GetRNNWeightSpaceSize GetReductionIndicesSize GetReductionWorkspaceSize
GetStream GetTensorNdDescriptor GetVersion LRNCrossChannelForward PoolingForward RNNForward ReduceTensor
SetActivationDescriptor SetConvolutionGroupCount SetConvolutionMathType SetConvolutionNdDescriptor
SetDropoutDescriptor SetFilterNdDescriptor SetLRNDescriptor SetPoolingNdDescriptor SetRNNDataDescriptor
SetRNNDescriptor_v8 SetReduceTensorDescriptor SetStream SetTensorNdDescriptor SoftmaxForward
"""
#: Libraries of TensorRT, without which onnxruntime can't list the kernels of any provider.
_TENSORRT = {
    "libnvinfer.so.10": "createInferBuilder_INTERNAL createInferRefitter_INTERNAL createInferRuntime_INTERNAL"
    " getInferLibVersion getPluginRegistry",
    "libnvonnxparser.so.10": "createNvOnnxParser_INTERNAL createNvOnnxParserRefitter_INTERNAL",
}


@cache
def obstacle() -> str | None:
    """The reason why the libraries can't be built here, or ``None``."""
    import onnxruntime

    if not sys.platform.startswith("linux"):
        return "the stand-in for CUDA's libraries is for Linux"
    missing = [tool for tool in ("cc", "nm") if shutil.which(tool) is None]
    if missing:
        return f"{missing[0]} is not installed"
    if not _provider_library().exists():
        return f"onnxruntime {onnxruntime.__version__} is a build without CUDA"
    return None


def build(folder: Path) -> None:
    """Write the libraries into ``folder``."""
    functions: dict[str, list[str]] = {"libcudnn.so.9": [f"cudnn{name}" for name in _CUDNN.split()]}
    functions["libcuda.so.1"] = ["cuInit", "cuDeviceGetCount", "cuDriverGetVersion"]
    functions |= {"libcurand.so.10": [], **{library: names.split() for library, names in _TENSORRT.items()}}
    for name, library in _needed(_provider_library()):
        functions.setdefault(library, []).append(name)
    for library, names in functions.items():
        _compile(folder, library, names)


def run(folder: Path, module: str, *arguments: str) -> str:
    """The output of ``python -m module arguments``, with the libraries in ``folder``."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _provider_library() -> Path:
    import onnxruntime

    return Path(onnxruntime.__file__).with_name("capi") / "libonnxruntime_providers_cuda.so"


def _needed(library: Path) -> Iterator[tuple[str, str]]:
    """The functions of CUDA that ``library`` imports, each with the name of its library."""
    listing = subprocess.run(
        ["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout
    for word in (line.split()[-1] for line in listing.splitlines()):
        name, _, owner = word.partition("@")
        if re.match(r"(__)?(cu[A-Zdb])", name):
            yield name, owner or ("libcurand.so.10" if name.startswith("curand") else "libcuda.so.1")


def _compile(folder: Path, library: str, names: Iterable[str]) -> None:
    definitions: Mapping[str, str] = _DEFINITIONS
    source = folder / f"{library}.c"
    lines = (
        definitions.get(name, _HANDLE if _CREATES.fullmatch(name) else _SUCCESS).format(name=name)
        for name in names
    )
    source.write_text(_HEADER + "\n".join(lines) + "\n")
    script = folder / f"{library}.map"
    script.write_text(f"{library} {{ global: *; }};\n")
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-w",
        f"-Wl,-soname,{library}",
        "-o",
        str(folder / library),
        str(source),
    ]
    if library.startswith(("libcudart", "libcublas")):  # their symbols have versions
        command.append(f"-Wl,--version-script={script}")
    subprocess.run(command, check=True, capture_output=True)
