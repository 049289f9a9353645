"""Value profiles of runs, the assumptions derived from them, and the guards that check the assumptions.

This package neither runs nor changes models; :mod:`graphopt.specialization` does.
"""

from graphopt.profile.branch_inputs import branch_inputs
from graphopt.profile.fusion_strategy import FusionStrategy, SpecializationKind, StrategyLike
from graphopt.profile.guard import Guard
from graphopt.profile.profile import Pattern, Profile, check_profile
from graphopt.profile.value_profile import (
    MOST_INTS,
    ValueProfile,
    contents_of,
    merged,
    observe,
    obstacle_to_specialization,
)
from graphopt.profile.variants import Variant, guard_for_all, variants_of

__all__ = [
    "MOST_INTS",
    "FusionStrategy",
    "Guard",
    "Pattern",
    "Profile",
    "SpecializationKind",
    "StrategyLike",
    "ValueProfile",
    "Variant",
    "branch_inputs",
    "check_profile",
    "contents_of",
    "guard_for_all",
    "merged",
    "observe",
    "obstacle_to_specialization",
    "variants_of",
]
