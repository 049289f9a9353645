"""The Python interface: load, save, optimize, explain, verify, run; profiles, variants, executors, gradients.

>>> import graphopt
>>> model, report = graphopt.optimize(graphopt.load_model("model.onnx"))   # doctest: +SKIP
>>> print(report)                                                    # doctest: +SKIP
>>> graphopt.save(model, "model.opt.onnx")                           # doctest: +SKIP

Arguments that are settings too (see :class:`graphopt.config.Settings`) default to the settings
in force: those of the nearest ``graphopt.toml``, of the environment, or of
:func:`graphopt.config.patch`.
"""

from graphopt.api.bailing import Bailed, bailout, with_bailouts
from graphopt.api.files import is_bundle, load, load_model, save, to_proto
from graphopt.api.gradients import grad, split, value_and_grad, verify_split
from graphopt.api.native import build_kernels, kernels
from graphopt.api.optimizing import Result, explain, optimize
from graphopt.api.parameters import lift_parameters, unlift_parameters
from graphopt.api.partitioning import partition, with_groups
from graphopt.api.running import run, try_out, verify
from graphopt.api.specializing import compile, record_profile, specialize
from graphopt.api.training import train_step
from graphopt.assembly import choose_device
from graphopt.driver import context_for, copy, make_options, make_pipeline
from graphopt.instrument.report import Report
from graphopt.request import vouch

__all__ = [
    "Bailed",
    "Report",
    "Result",
    "bailout",
    "build_kernels",
    "choose_device",
    "compile",
    "context_for",
    "copy",
    "explain",
    "grad",
    "is_bundle",
    "kernels",
    "lift_parameters",
    "load",
    "load_model",
    "make_options",
    "make_pipeline",
    "optimize",
    "partition",
    "record_profile",
    "run",
    "save",
    "specialize",
    "split",
    "to_proto",
    "train_step",
    "try_out",
    "unlift_parameters",
    "value_and_grad",
    "verify",
    "verify_split",
    "vouch",
    "with_bailouts",
    "with_groups",
]
