"""Groups of nodes that are handled as one: what may be in one, which groups there are, and why no more.

The algorithm (:mod:`graphopt.partition.propose`) asks a policy about single nodes, and knows nothing else of
what groups are for; :mod:`graphopt.partition.autodiff` is the policy for groups that are differentiated.
"""

from graphopt.partition.policy import Place, Policy, Ruling
from graphopt.partition.propose import Partition, Proposal, propose, propose_all

__all__ = ["Partition", "Place", "Policy", "Proposal", "Ruling", "propose", "propose_all"]
