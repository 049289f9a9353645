"""Options of runs that ``run`` and ``bench`` share: CUDA graphs, and checks of inputs."""

from __future__ import annotations

import click

from graphopt.cli.options import shared_options

#: ``--cuda-graph``.
cuda_graph_option = shared_options.group(
    "CUDA",
    click.option("--cuda-graph", is_flag=True, help="Capture the kernels in a CUDA graph, and replay it."),
)

#: ``--check-sizes``.
check_sizes_option = shared_options.group(
    "Inputs",
    click.option(
        "--check-sizes",
        is_flag=True,
        help="Check the number, the shapes and the static addresses of inputs before each run.",
    ),
)
