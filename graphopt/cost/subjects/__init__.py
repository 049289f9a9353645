# mypy: implicit-reexport
"""What is measured to fill a table of costs.

A subject makes, for each choice of sizes, the nodes that exporters write and the same with each of the
fused operators that can replace them.
"""

from graphopt.cost.subjects import attention, norms, products
from graphopt.cost.subjects.contest import UNFUSED, Contest, Subject

SUBJECTS: tuple[Subject, ...] = (*attention.SUBJECTS, *norms.SUBJECTS, *products.SUBJECTS)
