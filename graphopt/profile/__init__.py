"""What was seen of a model's values in runs, what to assume because of it, and the guards that check that.

Nothing here runs a model or changes one: :mod:`graphopt.specialization` does.
"""

from graphopt.profile.assumptions import Guard
from graphopt.profile.branch_inputs import branch_inputs
from graphopt.profile.profile import Pattern, Profile, check_profile
from graphopt.profile.strategy import Behaviour, FusionStrategy
from graphopt.profile.value_profile import Seen, contents_of, merged, observe, unfit
from graphopt.profile.variants import Variant, assumed, variants_of

__all__ = [
    "Behaviour",
    "FusionStrategy",
    "Guard",
    "Pattern",
    "Profile",
    "Seen",
    "Variant",
    "assumed",
    "branch_inputs",
    "check_profile",
    "contents_of",
    "merged",
    "observe",
    "unfit",
    "variants_of",
]
