"""Weights without reading them twice: contents by hash, ties by storage."""

from __future__ import annotations

import hashlib

from graphopt.ir.onnxir import onnx_ir

_HASH = "graphopt.hash"


def hash_of(tensor: onnx_ir.TensorProtocol) -> str:
    """A content hash over dtype, shape and bytes; equal for equal tensors only.

    It is computed once a tensor and kept with it.
    """
    known = tensor.meta.get(_HASH)
    if known is not None:
        return str(known)
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{tensor.dtype}:{tuple(tensor.shape.numpy())}:".encode())
    if tensor.dtype == onnx_ir.DataType.STRING:
        for text in tensor.numpy().reshape(-1):
            data = bytes(text)
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
    else:
        digest.update(tensor.tobytes())
    result = digest.hexdigest()
    tensor.meta[_HASH] = result
    return result


def storage_of(tensor: onnx_ir.TensorProtocol) -> tuple[object, ...]:
    """Where the bytes of ``tensor`` live; equal for tensors that share them."""
    if isinstance(tensor, onnx_ir.ExternalTensor):
        return (
            "file",
            tensor.path,
            tensor.offset or 0,
            tensor.nbytes,
            tensor.dtype,
            tuple(tensor.shape.numpy()),
        )
    return "memory", id(tensor)
