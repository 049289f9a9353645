"""Models for native kernels: patterns of memory-bound chains, and networks that contain them.

Models are generated from fixed seeds. ``PATTERNS`` maps a name to a function of the bytes of the main tensor;
``NETWORKS`` maps a name to a function without arguments. Both return an :class:`Example`.
"""

from benchmarks.kernel_models.graph import Example
from benchmarks.kernel_models.networks import NETWORKS
from benchmarks.kernel_models.patterns import PATTERNS

__all__ = ["NETWORKS", "PATTERNS", "Example"]
