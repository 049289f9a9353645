"""onnxruntime's errors as one short line, and their error classes."""

from __future__ import annotations

import re

from graphopt.errors import RuntimeFailure, SystemExhausted

#: Parts removed from onnxruntime's messages: status codes, source locations, C++ signatures.
_NOISE = (
    (r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ", ""),
    (r"Load model from .+? failed: ?", ""),
    (r"This is an invalid model\. ", ""),
    (r"Non-zero status code returned while running (\S+) node\. Name:'(.*?)' Status Message: ", r"\1 '\2': "),
    (r"\S+\.(?:cc|h|cu|cuh|cpp|hpp):\d+ (?:(?:\S+ ){0,4}?\S*onnxruntime::\S*\(.*?\)(?: const)? )?", ""),
    (r"(^|': )[^'.]{1,150}? was false\. (?=\S)", r"\1"),
    (r" ?; GPU=\d+ ?; hostname=.*", ""),
    (
        r"ONNX Runtime only .*?Opset (\d+) .*?domain (\S+) is till opset (\d+)",
        r"opset \1 of \2 is unknown (last: \3)",
    ),
)
#: Number of characters of a message that are read.
_LONGEST = 20_000


def explain(error: BaseException) -> str:
    """The relevant part of an onnxruntime error, in one line."""
    text = " ".join(str(error)[:_LONGEST].split())  # a name in the message may have any length
    for pattern, replacement in _NOISE:
        text = re.sub(pattern, replacement, text)
    text = text.strip().rstrip(".") or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


#: Part of the message for the limit of onnxruntime's arena, which ``gpu_mem_limit`` sets.
_LIMIT_REACHED = "is smaller than requested bytes"
#: Parts of messages of the arena, CUDA, cuBLAS and cuDNN for exhausted GPU memory.
_NO_GPU_MEMORY = (
    *("Failed to allocate memory for requested buffer", _LIMIT_REACHED),
    *("CUDA failure 2:", "out of memory", "STATUS_ALLOC_FAILED"),
)
#: The next step if the memory of a GPU is exhausted.
GPU_MEMORY_HINT = (
    "nvidia-smi lists the memory of other processes; smaller inputs need less; the CUDA option"
    " arena_extend_strategy=as-requested reserves less; --device cpu runs on the CPU"
)


def lacks_gpu_memory(text: str) -> bool:
    """Whether ``text``, a message of a session on a GPU, reports exhausted memory."""
    return any(part in text for part in _NO_GPU_MEMORY)


def as_failure(error: BaseException, start: str, *, on_gpu: bool) -> RuntimeFailure | SystemExhausted:
    """The error of graphopt for an ``error`` of onnxruntime: exhausted GPU memory, or a failure.

    Args:
        error: the exception.
        start: the start of the message, such as "onnxruntime failed".
        on_gpu: whether the session runs on a GPU.
    """
    if on_gpu and _LIMIT_REACHED in str(error):
        return SystemExhausted(
            f"{start}: the memory limit of the session on the GPU is too low: {explain(error)}",
            hint="raise the CUDA option gpu_mem_limit, or use smaller inputs",
        )
    if on_gpu and lacks_gpu_memory(str(error)):
        return SystemExhausted(
            f"{start}: the GPU does not have enough memory: {explain(error)}", hint=GPU_MEMORY_HINT
        )
    return RuntimeFailure(f"{start}: {explain(error)}")
