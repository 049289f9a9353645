"""Guards: where a run leaves a model that relies on what was seen of its values.

One operator of the domain ``graphopt.profile``: ``y = Guard(x)`` with an attribute ``seen``, which holds
as JSON what is asserted of ``x``: what ``graphopt.profile.Seen.to_dict`` tells, that is its type (nothing
if that is empty), its sizes, and its contents.

- Where that holds, ``y`` is ``x``. Where it does not, the run leaves: its results come from the model as
  it was before anything relied on guards, whatever else has been computed, or would fail.
- A size that is a text is a symbol. It stands for one number in each run: all guards of the model that name
  it, in bodies and functions too, must see that number, each time that they run. Such a symbol is none of
  the names that the model has for its own dims, even if it is spelt alike. What tells nothing of a dim
  (``?``, see :data:`graphopt.ir.ANONYMOUS_DIMS`) asserts nothing of it.
- What relies on ``y`` need not read it: the sizes of ``y`` may have become constants. So a guard stays when
  nothing reads it any more, and so does what holds or calls one.

No runtime knows the operator. Guards are for passes, which find in facts about ``y`` what they assert; before
a model is written they are eliminated, or become a choice between the specialized model and the general one.

The counterparts in PyTorch's JIT executor are ``prim::Guard``, ``prim::BailOut`` and ``prim::TypeCheck``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphopt import ir

DOMAIN = "graphopt.profile"
GUARD = "Guard"
#: Attribute: what is asserted, as JSON.
SEEN = "seen"


def is_guard(node: ir.Node | None) -> bool:
    """Whether ``node`` is a guard."""
    return node is not None and node.domain == DOMAIN and node.op_type == GUARD


def guards_of(model: ir.Model) -> list[ir.Node]:
    """All guards of ``model``, those in bodies and functions too."""
    return [node for graph in ir.graphs_of(model) for node in graph if is_guard(node)]


def has_guards(node: ir.Node, functions: Mapping[Any, ir.Function]) -> bool:
    """Whether ``node`` is a guard, or its bodies, or functions that it calls, hold one."""
    pending = [node]
    called: dict[Any, None] = {}
    while pending:
        current = pending.pop()
        if is_guard(current):
            return True
        if current.attributes:
            pending.extend(inner for body in ir.bodies(current) for inner in body)
        key = current.op_identifier() if functions else None
        if key in functions and key not in called:
            called[key] = None
            pending.extend(functions[key])
    return False
