"""Partition a graph into groups of nodes that are handled as one.

The algorithm (:mod:`graphopt.partitioning.propose`) takes the role of each node from a policy and is
independent of the purpose of groups; :mod:`graphopt.partitioning.autodiff` is the policy for groups that are
differentiated.
"""

from graphopt.partitioning.policy import Decision, Policy, Role
from graphopt.partitioning.propose import Partition, Proposal, propose, propose_all

__all__ = ["Decision", "Partition", "Policy", "Proposal", "Role", "propose", "propose_all"]
