"""Attributes that the CUDA provider does not support, although it has a kernel (``GetCapability``)."""

from __future__ import annotations

from collections.abc import Callable

from graphopt import ir

#: Activations of cuDNN's recurrences, by operator; bidirectional ones have two of each.
_ACTIVATIONS = {
    "LSTM": ("sigmoid", "tanh", "tanh"),
    "GRU": ("sigmoid", "tanh"),
    "RNN": ("tanh",),
}
#: Attributes that no recurrence of cuDNN supports.
_UNSUPPORTED = ("activation_alpha", "activation_beta", "clip")
_PEEPHOLES = 7


def refusal(node: ir.Node) -> str | None:
    """The reason why ``node`` runs on the CPU although CUDA has a kernel, or ``None``."""
    check = _CHECKS.get(node.op_type) if node.domain == "" else None
    return None if check is None else check(node)


def is_forced(node: ir.Node) -> bool:
    """Whether the provider keeps ``node`` even if it only computes with sizes."""
    return node.domain == "" and node.op_type in _ACTIVATIONS.keys() | {"ConvTranspose"}


def _recurrence(node: ir.Node) -> str | None:
    for name in _UNSUPPORTED:
        if name in node.attributes:
            return f"cuDNN's {node.op_type} does not support {name}"
    given = node.attributes.get("activations")
    if given is not None:
        expected = _ACTIVATIONS[node.op_type] * 2
        for found, own in zip(given.as_strings(), expected, strict=False):
            if found.lower() != own:
                return f"cuDNN's {node.op_type} requires the activation {own.capitalize()}, not {found}"
    if node.op_type == "LSTM" and _integer(node, "input_forget"):
        return "cuDNN's LSTM does not couple the input and forget gates"
    if node.op_type == "GRU" and _integer(node, "linear_before_reset") != 1:
        return "cuDNN's GRU requires linear_before_reset = 1"
    if node.op_type == "LSTM" and len(node.inputs) > _PEEPHOLES and node.inputs[_PEEPHOLES] is not None:
        return "cuDNN's LSTM does not support peepholes"
    return None


def _integer(node: ir.Node, name: str) -> int:
    attribute = node.attributes.get(name)
    return 0 if attribute is None else attribute.as_int()


def _last_index(node: ir.Node) -> str | None:
    is_last = _integer(node, "select_last_index")
    return f"CUDA's {node.op_type} does not support select_last_index" if is_last else None


def _transposed_convolution(node: ir.Node) -> str | None:
    pads = node.attributes.get("pads")
    if pads is not None:
        sizes = pads.as_ints()
        half = len(sizes) // 2
        if list(sizes[:half]) != list(sizes[half:]):
            return "CUDA's ConvTranspose requires equal pads at the start and the end of an axis"
    attribute = node.attributes.get("auto_pad")
    padding = "NOTSET" if attribute is None else attribute.as_string()
    if padding in ("SAME_UPPER", "SAME_LOWER"):
        return f"CUDA's ConvTranspose does not support auto_pad {padding}"
    return None


_CHECKS: dict[str, Callable[[ir.Node], str | None]] = {
    **dict.fromkeys(_ACTIVATIONS, _recurrence),
    **dict.fromkeys(("ArgMax", "ArgMin"), _last_index),
    "ConvTranspose": _transposed_convolution,
}
