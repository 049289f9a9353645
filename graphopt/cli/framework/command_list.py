"""The list of commands, so that ``graphopt --help`` imports none of them."""

from __future__ import annotations

#: The summary of each command, by section of ``graphopt --help``.
COMMANDS: dict[str, dict[str, str]] = {
    "Everyday": {
        "optimize": "Make models smaller and faster.",
        "verify": "Check that model B computes the same as model A.",
        "inspect": "Show the interface and the contents of a model.",
        "bench": "Compare the latencies of models.",
        "run": "Run a model once and show its outputs.",
        "compile": "Write a model with all that its runs need, ahead of time.",
        "convert": "Convert a model to another file format, by suffix.",
        "sample": "Write the sample model to a file.",
    },
    "Look inside": {
        "dump": "Print a model, or the changes of each pass.",
        "diff": "Show the differences between the graphs of two models.",
        "report": "Write a page with the changes of an optimization.",
        "view": "Show the graph of a model in a browser.",
        "explain": "Show the fusions of -O3, and the reasons for unfused nodes.",
        "lineage": "Show the original nodes of a node, and their rewrites.",
        "passes": "List all passes, or describe one.",
        "pipelines": "List the named pipelines, or show the steps of one.",
        "partition": "Find groups of nodes that can be handled as one.",
        "kernels": "Show native kernels of a model, or build their library.",
    },
    "Debugging": {
        "doctor": "Show versions, devices, and remedies for faults.",
        "compare": "Find the first tensor that departs between two models.",
        "bisect": "Find the first rewrite after which a check fails.",
        "reduce": "Shrink a model as long as a check of its result fails.",
        "replay": "Rerun a reproducer of bisect or --save-repro.",
    },
    "Training": {
        "grad": "Write a model that also returns gradients of a loss.",
        "train-step": "Write a model that performs one training step.",
        "lift-parameters": "Turn parameters into inputs, after the model's own inputs.",
        "unlift-parameters": "Put parameters from a file into a model.",
        "split-constants": "Optimize a model for weights that are replaced later.",
        "update-weights": "Replace weights of an optimized model.",
    },
    "Expert": {
        "bailout": "Cut a model in two, also within a Loop or an If.",
        "cache": "List, explain, check or remove stored results.",
        "calibrate": "Measure the costs of fused operators on this machine.",
        "config": "Show settings with their sources, or compare them.",
        "completion": "Print a shell completion script.",
        "profile": "Run a model and record a profile of its values.",
    },
}

#: The names of all commands.
NAMES = sorted(name for section in COMMANDS.values() for name in section)
