"""How gradients that are known to be zero are written down, until they are lowered to plain operators.

Three operators of the domain ``graphopt.ad``:

- ``GradOf(dy…, x…)`` with an attribute ``body``, a graph without inputs that reads what it needs from
  around it. It has an output for each ``x``: the gradient of ``x``, of the shape and dtype of ``x``.
  Where all ``dy`` are zero, so are all its outputs.
- ``AutogradAdd(a, b)``: the sum of two gradients of one value.
- ``Zero(x)``: the gradient of ``x`` where that is known to be zero.

A value noted :data:`UNDEFINED` is known to be a zero gradient, too. What profiled runs have found
out about a value is noted under :data:`PROFILE`. Notes are metadata of values; saving strips them.

The counterparts in PyTorch's JIT executor are ``prim::GradOf``, ``prim::AutogradAdd``,
``prim::AutogradZero`` and the undefinedness and profiled types of values.
"""

from __future__ import annotations

DOMAIN = "graphopt.ad"
GRAD_OF = "GradOf"
ADD = "AutogradAdd"
ZERO = "Zero"
#: Metadata of a value that is known to be a zero gradient: ``true``; ``false`` if it is known not to be.
UNDEFINED = "graphopt.undefined"
#: Metadata keys of what profiled runs noted on a value begin so.
PROFILE = "graphopt.profile."
#: Metadata of a value: ``true`` if a gradient of it is wanted where it stands, ``false`` if none is.
REQUIRES_GRAD = "graphopt.requires_grad"
#: Functions of this domain are groups of nodes that are differentiated as one.
GROUPS = "graphopt.autodiff"
