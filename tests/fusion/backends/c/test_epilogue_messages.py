"""Messages of template kernels about wrong shapes name the inputs of the group."""

from __future__ import annotations

from graphopt.context import context_for
from graphopt.fusion.backends.c.template_printer import printer_for
from graphopt.fusion.group_functions import kernels_of
from graphopt.fusion.template_kernel import TemplateKernel
from graphopt.passes.pipelines import make_pipeline
from tests.model_testing import parse


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
    assert "input 2 of" in text and "the result of the template of" in text
