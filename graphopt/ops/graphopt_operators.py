"""graphopt's own operators and metadata, by domain.

``graphopt.ad``: gradients that may be known to be zero, before they are lowered to plain operators.

- ``GradOf(dy…, x…)`` with an attribute ``body``, a graph without inputs that captures outer values. Output
  ``i`` is the gradient of ``x_i``, with the shape and dtype of ``x_i``. If all ``dy`` are zero, all outputs
  are zero.
- ``AutogradAdd(a, b)``: the sum of two gradients of one value.
- ``Zero(x)``: a gradient of ``x`` that is known to be zero.

The counterparts in PyTorch's JIT executor are ``prim::GradOf``, ``prim::AutogradAdd``,
``prim::AutogradZero``, and the undefinedness and the profiled types of values.

``graphopt.profile``: ``y = Guard(x)`` with an attribute ``seen``, an assumption about ``x`` as JSON
(``graphopt.profile.ValueProfile.to_dict``): its type (none if empty), sizes and contents.

- If the assumption holds, ``y`` is ``x``. Otherwise the run deoptimizes: it returns the results of the model
  without the rewrites that rely on guards, even if other nodes ran or failed.
- A size given as text is a symbol, which represents one number in each run: all guards that name it,
  including guards in bodies and functions, must observe that number every time they run. The symbol is
  distinct from the model's own dims, even from a dim of the same name. An anonymous dim (``?``, see
  :data:`graphopt.ir.ANONYMOUS_DIMS`) is unconstrained.
- Code that relies on ``y`` need not read it: the sizes of ``y`` may have become constants. Therefore
  unread guards, and nodes that contain or call a guard, are not dead code.

No runtime implements Guard. Shape inference derives facts about ``y`` from it; before a model is written,
guards are eliminated, or become a choice between the specialized and the general model. The counterparts in
PyTorch's JIT executor are ``prim::Guard`` and ``prim::BailOut``.

``ok = TypeCheck(x…)`` with the same attribute ``seen``, a JSON list with one assumption for each input: a
scalar that is true if all assumptions hold. Equal symbols denote equal sizes only among the inputs of one
node. ``guard-groups`` makes it the condition of an If whose branches are a specialized and a general version
of a group; ``lower-fallbacks`` replaces it by standard operators, as no runtime implements it. The
counterpart is ``prim::TypeCheck``, with ``prim::FallbackGraph`` for the general version.

Instrumented models call functions of the same domain, which any runtime executes. ``y = Profile(x)`` and ``y
= ProfileZero(x)`` return ``x``, and mark the value that the attribute ``value`` names. Profiled runs record
the shape of a value marked by ``Profile``, and whether a gradient marked by ``ProfileZero`` is zero.
``Counter()`` marks that runs are counted. These functions are lowered to outputs of the model that is run
(:mod:`graphopt.specialization.instrumented_model`). The counterpart is ``prim::profile``.

``graphopt.native``: groups of nodes with a native kernel, as functions, and the operators that replace them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from graphopt import ir

AD_DOMAIN = "graphopt.ad"
GRAD_OF = "GradOf"
AUTOGRAD_ADD = "AutogradAdd"
ZERO = "Zero"
#: Domain of functions that are groups of nodes differentiated as one.
AUTODIFF_GROUPS = "graphopt.autodiff"
#: Domain of functions that compute the gradients of these groups; each has the name of its group.
AUTODIFF_BACKWARD = "graphopt.autodiff.backward"
#: Metadata of a value, stripped on saving: ``true`` for a gradient known to be zero, ``false`` for a gradient
#: known to be nonzero.
UNDEFINED = "graphopt.undefined"
#: Prefix of the metadata keys of profile annotations on values; stripped on saving.
PROFILE_NOTES = "graphopt.profile."
#: Metadata of a value, stripped on saving: ``true`` if its gradient is needed, ``false`` if not.
REQUIRES_GRAD = "graphopt.requires_grad"

GUARD_DOMAIN = "graphopt.profile"
GUARD = "Guard"
#: Attribute of a guard: its assumption, as JSON.
SEEN = "seen"

TYPE_CHECK = "TypeCheck"
#: Metadata of a value, stripped on saving, for the condition of an If that chooses between a specialized and
#: a general version of a group: the types and dims of the tensors that the specialized version reads, as JSON
#: (``{"x": [1, [2, "n"]]}``, with the number of the type in ONNX).
CHECKED = "graphopt.checked"

#: Functions of :data:`GUARD_DOMAIN` that mark watched values, and counted runs.
PROFILE, PROFILE_ZERO, COUNTER = "Profile", "ProfileZero", "Counter"
#: Attribute of a profiling node: the name of the watched value.
WATCHED = "value"

#: Domain of functions that are groups of nodes with a native kernel, and of the operators of these kernels.
NATIVE_DOMAIN = "graphopt.native"
#: Metadata of the model: types that its kernels are built for, by function name. Not in the private
#: namespace ``graphopt.``, because saving strips that, and kernels are built from this entry later.
KERNEL_SIGNATURES = "graphopt:kernels"


def requires_grad_annotation(value: ir.Value) -> bool | None:
    """Whether ``value`` is annotated to require a gradient; ``None`` without an annotation."""
    text = value.metadata_props.get(REQUIRES_GRAD)
    return None if text is None else text == "true"


def is_guard(node: ir.Node | None) -> bool:
    """Whether ``node`` is a guard."""
    return node is not None and node.domain == GUARD_DOMAIN and node.op_type == GUARD


def guards_of(model: ir.Model) -> list[ir.Node]:
    """All guards of ``model``, including guards in bodies and functions."""
    return [node for graph in ir.graphs_of(model) for node in graph if is_guard(node)]


def is_type_check(node: ir.Node | None) -> bool:
    """Whether ``node`` checks the assumptions of a specialized group."""
    return node is not None and node.domain == GUARD_DOMAIN and node.op_type == TYPE_CHECK


def type_checks_of(model: ir.Model) -> list[ir.Node]:
    """All checks of the assumptions of specialized groups, also in bodies and functions."""
    return [node for graph in ir.graphs_of(model) for node in graph if is_type_check(node)]


def guarded_branch(node: ir.Node) -> ir.Graph | None:
    """The specialized branch of ``node``, an If that chooses a version of a group; otherwise ``None``."""
    condition = node.inputs[0] if (node.domain, node.op_type) == ("", "If") and node.inputs else None
    if condition is None:
        return None
    if not is_type_check(condition.producer()) and CHECKED not in condition.metadata_props:
        return None
    branch = node.attributes.get("then_branch")
    return None if branch is None or branch.is_ref() else branch.as_graph()


#: The type of a tensor, and its dims if the rank is known.
CheckedType = tuple[ir.DataType, list[int | str | None] | None]


def checked_text(types: Mapping[str, CheckedType]) -> str:
    """The text of :data:`CHECKED` for tensors by name."""
    return json.dumps({name: (dtype.value, dims) for name, (dtype, dims) in types.items()})


def checked_types(condition: ir.Value | None) -> dict[str, CheckedType]:
    """The tensors in :data:`CHECKED` of ``condition``; none if there is no such text."""
    text = "{}" if condition is None else condition.metadata_props.get(CHECKED, "{}")
    try:
        return {name: (ir.DataType(dtype), dims) for name, (dtype, dims) in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):  # the user edited a dump
        return {}


def is_profiling_node(node: ir.Node | None, *op_types: str) -> bool:
    """Whether ``node`` marks a watched value, by a call of one of the functions ``op_types`` if given."""
    types = op_types or (PROFILE, PROFILE_ZERO)
    return node is not None and node.domain == GUARD_DOMAIN and node.op_type in types


def watched_name(node: ir.Node) -> str:
    """The name of the value that the profiling node ``node`` watches."""
    attribute = node.attributes.get(WATCHED)
    return "" if attribute is None or attribute.is_ref() else attribute.as_string()


def has_guards(node: ir.Node, functions: Mapping[Any, ir.Function]) -> bool:
    """Whether ``node`` is a guard, or its bodies or called functions contain one."""
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


def has_groups(model: ir.Model, *domains: str) -> bool:
    """Whether ``model`` has groups of one of ``domains``, by default groups for native kernels."""
    return any(key[0] in (domains or (NATIVE_DOMAIN,)) for key in model.functions)
