"""Groups of nodes that are handled as one: what may be in one, which groups there are, and why no more.

The algorithm (:mod:`graphopt.partitioning.propose`) asks a policy about single nodes, and knows nothing of
what groups are for; :mod:`graphopt.partitioning.autodiff` is the policy for groups that are differentiated.
"""

from graphopt.partitioning.policy import Decision, Policy, Role
from graphopt.partitioning.propose import Partition, Proposal, propose, propose_all

__all__ = ["Decision", "Partition", "Policy", "Proposal", "Role", "propose", "propose_all"]
