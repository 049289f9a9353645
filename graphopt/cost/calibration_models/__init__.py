# mypy: implicit-reexport
"""The subjects of calibration.

For each combination of sizes, a subject builds the nodes that exporters write, and equivalent models with
each of the fused operators that can replace them.
"""

from graphopt.cost.calibration_models import attention, cuda_operators, matmuls, normalizations
from graphopt.cost.calibration_models.competing_models import UNFUSED, CompetingModels, Subject
from graphopt.cost.calibration_models.halves import in_half
from graphopt.ort.devices import Device

SUBJECTS: tuple[Subject, ...] = (*attention.SUBJECTS, *normalizations.SUBJECTS, *matmuls.SUBJECTS)


def subjects_for(device: Device) -> tuple[Subject, ...]:
    """The subjects for ``device``; for GPUs, also operators with CUDA kernels only, and float16."""
    if device.capabilities.is_host:
        return SUBJECTS
    own = (*attention.SUBJECTS, *normalizations.SUBJECTS, *cuda_operators.SUBJECTS)
    return (*SUBJECTS, *cuda_operators.SUBJECTS, *in_half(own))
