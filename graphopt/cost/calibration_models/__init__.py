# mypy: implicit-reexport
"""The subjects of calibration.

For each combination of sizes, a subject builds the nodes that exporters write, and equivalent models with
each of the fused operators that can replace them.
"""

from graphopt.cost.calibration_models import attention, matmuls, normalizations
from graphopt.cost.calibration_models.competing_models import UNFUSED, CompetingModels, Subject

SUBJECTS: tuple[Subject, ...] = (*attention.SUBJECTS, *normalizations.SUBJECTS, *matmuls.SUBJECTS)
