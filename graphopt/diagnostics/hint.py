"""Hints: facts about a model, a device or its inputs that cost speed or precision, with the next step."""

from __future__ import annotations

from dataclasses import asdict

from graphopt.util.lazy_dataclass import dataclass

#: The code of each hint, and the condition under which it is given.
HINTS: dict[str, str] = {
    "tf32-off": "The model has float32 products or convolutions, the GPU computes them in TF32 (compute"
    " capability 8.0 or higher), and the session does not use TF32. Once per process.",
    "tf32-timed": "bench or optimize --tune times float32 products or convolutions in TF32, so that TF32 may"
    " decide the speed. The hint of bench names models with different numbers of them.",
    "tf32-verification": "As for tf32-off, and a result was verified: verification switches TF32 off, and"
    " onnxruntime switches it on by default. Once per process.",
    "bf16-unsupported": "The model computes in bfloat16, and the device has no support for it: the compute"
    " capability of the GPU is below 8.0, or the provider has no kernel of an operator for bfloat16.",
    "no-tensor-cores": "The pass pad-mm is part of the pipeline, and the device has no tensor cores; the pass"
    " does nothing.",
    "inputs-misaligned": "The address of an input in GPU memory is not a multiple of 16 bytes; each run"
    " copies the input.",
    "inputs-broadcast": "An input repeats elements (an axis has stride 0), and onnxruntime has no strides:"
    " each run expands it in memory.",
    "cuda-graph-off": "CUDA graphs were requested on a GPU, and are off for a reason that the hint names.",
}


@dataclass(frozen=True)
class Hint:
    """A hint.

    Attributes:
        code: its code, one of :data:`HINTS`.
        message: the fact, in one line.
        remedy: the next step.
    """

    code: str
    message: str
    remedy: str

    def __post_init__(self) -> None:
        if self.code not in HINTS:
            raise ValueError(f"no hint has the code {self.code!r}")

    def to_dict(self) -> dict[str, str]:
        """The hint for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The hint as text."""
        return [f"  hint      {self.message} [{self.code}]", f"            {self.remedy}"]
