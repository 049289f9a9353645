"""Messages of template kernels about wrong shapes name operands, axes and sizes."""

from __future__ import annotations

import re

import pytest

from graphopt.context import context_for
from graphopt.fusion.backends.c.template_printer import OUT_OF_MEMORY, printer_for, template_names
from graphopt.fusion.group_functions import kernels_of
from graphopt.fusion.template_kernel import TemplateKernel
from graphopt.ir import from_proto
from graphopt.passes.pipelines import make_pipeline
from tests.fuzz.products.families import FAMILIES, generate
from tests.model_testing import parse

_FAILURE = re.compile(r'go_fail(?:ure)?\(call, "([^"]*)"')


def test_an_input_of_an_epilogue_has_the_number_that_the_group_gives_it() -> None:
    model = parse(
        """g (float[M,256] x, float[256,256] w, float[M,256] b) => (float[M,256] y) {
            m = MatMul(x, w)
            y = Add(m, b)
        }"""
    )
    with context_for(model) as cx:
        make_pipeline("fuse-groups{kernels=all}").run(model, cx)
    (kernel,) = kernels_of(model)
    assert isinstance(kernel, TemplateKernel) and kernel.epilogue is not None
    text = printer_for(kernel).text()
    assert "input 2 is" in text and "the result of the template is" in text


@pytest.fixture(name="kernels", scope="module")
def _kernels() -> list[TemplateKernel]:
    found = []
    for seed in range(8 * len(FAMILIES)):
        model = from_proto(generate(seed).model())
        with context_for(model) as cx:
            make_pipeline("fuse-groups{kernels=all}").run(model, cx)
        found += [kernel for kernel in kernels_of(model) if isinstance(kernel, TemplateKernel)]
    assert {kernel.template for kernel in found} == template_names()
    return found


def test_messages_contain_sizes_and_not_the_name_of_the_kernel(kernels: list[TemplateKernel]) -> None:
    for kernel in kernels:
        messages = _FAILURE.findall(printer_for(kernel).text())
        assert messages and not any(kernel.name in message for message in messages)
        for message in messages:
            assert message == OUT_OF_MEMORY or "%lld" in message or "outside of" in message, kernel.template


def test_every_operand_has_a_name(kernels: list[TemplateKernel]) -> None:
    for kernel in kernels:
        printer = printer_for(kernel)
        labels = [printer.label(operand) for operand in range(len(kernel.operands))]
        assert len(set(labels)) == len(labels) and not any("operand" in label for label in labels)
