"""Entries of the tables of kernels that the runtime in C registers."""

from __future__ import annotations

from graphopt.fusion.template_kernel import NativeKernel


def table_entry(kernel: NativeKernel, constants: int = 0) -> tuple[list[str], str]:
    """Definitions for the ``go_kernel`` of ``kernel``, and its initializer.

    Args:
        constants: number of elements of ``NAME_constants``.
    """
    name = kernel.name
    lines = [
        _ints(f"{name}_{kind}", [port.element.value for port in ports])
        for kind, ports in (("inputs", kernel.inputs), ("outputs", kernel.outputs))
    ]
    lines.append(_ints(f"{name}_in_place", [index for pair in kernel.in_place for index in pair]))
    row = (
        f'    {{"{name}", {len(kernel.inputs)}, {len(kernel.outputs)}, {name}_inputs, {name}_outputs, '
        f"{len(kernel.in_place)}, {name}_in_place, {name}_main, "
        f"{constants}, {f'{name}_constants' if constants else 'NULL'}}},"
    )
    return lines, row


def _ints(name: str, values: list[int]) -> str:
    return f"static const int {name}[] = {{{', '.join(map(str, values)) or '0'}}};"
