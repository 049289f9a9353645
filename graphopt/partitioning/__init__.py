"""Partition a graph into groups of nodes that are handled as one.

A policy assigns a role to each node. The algorithm
(:mod:`graphopt.partitioning.propose_groups`) is independent of the purpose of groups.
:mod:`graphopt.partitioning.autodiff_policy` is the policy for groups that are differentiated.
"""

from graphopt.partitioning.policy_interface import Decision, Policy, Role
from graphopt.partitioning.propose_groups import Partition, Proposal, propose, propose_all

__all__ = ["Decision", "Partition", "Policy", "Proposal", "Role", "propose", "propose_all"]
