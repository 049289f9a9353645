"""Sessions on CUDA without a card: onnxruntime's constructor is replaced at the boundary.

The provider options that a session of CUDA would receive are recorded, and its provider is that of the CPU.
"""

from __future__ import annotations

from typing import Any

import onnxruntime
import pytest

from graphopt.ort import devices
from graphopt.ort.cuda_probe import CudaStatus

_Session = onnxruntime.InferenceSession


@pytest.fixture
def cuda_sessions(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """A usable GPU; the provider options of the sessions that this process creates on it."""
    created: list[dict[str, str]] = []

    def create(source: Any, options: Any = None, providers: Any = (), **more: Any) -> Any:
        name, *rest = providers
        if isinstance(name, tuple):
            assert name[0] == "CUDAExecutionProvider" and more.pop("enable_fallback") == 0
            created.append(dict(name[1]))
            providers = rest
        return _Session(source, options, providers=providers, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", create)
    monkeypatch.setattr(devices, "probe_cuda", lambda index=0: CudaStatus(True, ""))
    return created
