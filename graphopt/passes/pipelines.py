"""The named pipelines, as text.

``noopt`` and the other lower-case names follow the order of PyTorch's JIT executor and of
Inductor's ``compile_fx``, with ONNX meanings; ``O0`` to ``O3`` are the presets that
``graphopt optimize`` offers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphopt.errors import UsageError
from graphopt.ir.io.interoperability import PassBase
from graphopt.passes.base import Pass
from graphopt.passes.load_pass import BY_PATH
from graphopt.passes.onnx_ir import GivenOnnxIrPass
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipeline_steps import Fixpoint, Step
from graphopt.passes.registry import Passes, Registry
from graphopt.rewrite.rule import Rule
from graphopt.util.argument_checks import checked
from graphopt.util.entry_points import extensions

_CLEAN = (
    "dce,fixpoint(canonicalize,constant-propagation,fold-if,merge-ifs,sink-into-ifs,unroll-loops{{factor=1,full=2}},"
    "index-split-lists,gather-loop-lists,trim-loops,hoist-loop-invariants,"
    "{peephole},constant-pooling,cse,split-slices,dce),"
    "merge-functions"
)

_ROUND = _CLEAN.format(peephole="peephole")
_FUSED = f"decompose,{_ROUND},batch-mm,fuse-builtin,{_ROUND}"

PIPELINES = {
    "fallback": "lower-grad-of,remove-expands",
    "noopt": "inline-functions,lower-grad-of,remove-expands,canonicalize,dce",
    "pre-autodiff": (
        "lower-grad-of,specialize-autograd-zero,remove-expands,canonicalize,dce,"
        "peephole,constant-propagation,dce,cse,peephole,constant-propagation,"
        "constant-pooling,unroll-loops,remove-sequence-mutation,peephole,"
        "constant-propagation,cse,check-aliasing"
    ),
    "no-grad": (
        "pre-passes,lower-sequences,specialize-types,batch-mm,fuse-groups,guard-groups,"
        "post-passes,remove-type-specializations,lower-fallbacks"
    ),
    "no-grad-builtin": (
        "pre-passes,lower-sequences,batch-mm,fuse-builtin,guard-groups,"
        "post-passes,remove-type-specializations,lower-fallbacks"
    ),
    "profiling-insensitive": (
        "inline-functions,clear-profile,lower-grad-of,clear-undefinedness,remove-expands,canonicalize,dce,"
        "decompose,constant-propagation,dce,cse,constant-pooling,peephole,dce,lower-sequences,check-aliasing"
    ),
    "profiling-insensitive-noopt": (
        "clear-profile,lower-grad-of,clear-undefinedness,remove-expands,canonicalize,dce"
    ),
    "gradients": (
        "create-autodiff-subgraphs,differentiate,inline-autodiff-subgraphs,guard-groups,lower-fallbacks,"
        "remove-profile-nodes"
    ),
    "profiling": "pre-autodiff,if-gradient(gradients,otherwise,no-grad),dce",
    "profiling-builtin": "pre-autodiff,if-gradient(gradients,otherwise,no-grad-builtin),dce",
    "profiling-gradients": "pre-autodiff,gradients,dce",
    "profiling-noopt": "noopt",
    "forward": "remove-type-specializations,remove-profile-nodes,update-requires-grad,lower-fallbacks",
    "joint": "fixpoint(peephole,constant-propagation,cse,dce)",
    "post-grad": "batch-mm,fuse-builtin,views-to-reshape," + _CLEAN.format(peephole="peephole"),
    "pre-grad": (
        "canonicalize,remove-expands,if-gradient(otherwise,peephole{families=batchnorm+conv+gemm+matmul})"
    ),
    "inner": "views-to-reshape,infer-shapes,post-grad,pad-mm,promote-types",
    "inference": "pre-grad,joint,inner",
    "training": "joint,inner",
    "freezing": "pre-grad,joint,infer-shapes,layout,freeze,inner",
    "ahead": "inference",
    "final": "add-if-then-else",
    "plan-general": "profiling-insensitive",
    "plan-profiled": "profiling-insensitive,instrument,profile-autograd-zero",
    "plan-optimized": "drop-counters,profiling,lower-fallbacks,final,check-strict-fusion",
    "plan-optimized-builtin": "drop-counters,profiling-builtin,lower-fallbacks,final,check-strict-fusion",
    "plan-optimized-gradients": "drop-counters,profiling-gradients,lower-fallbacks,final,check-strict-fusion",
    "O0": "",
    "O1": _CLEAN.format(peephole="peephole{numerics=exact}") + ",promote-types",
    "O2": _CLEAN.format(peephole="peephole") + ",promote-types",
    "O3": _FUSED + ",promote-types",
}
PIPELINES["post-grad-native"] = PIPELINES["post-grad"] + ",fuse-groups"
PIPELINES["native"] = f"dissolve-groups,{_FUSED},fuse-groups,promote-types"

SUMMARIES = {
    "fallback": "without optimization or profiling: only remove operators that onnxruntime cannot run",
    "noopt": "inline functions and clean up, nothing else",
    "pre-autodiff": "clean up and unroll loops before groups of nodes are differentiated or fused",
    "no-grad": "without gradients: fuse groups of nodes for the profiled types",
    "no-grad-builtin": "like no-grad, with fused operators of onnxruntime instead of groups",
    "profiling-insensitive": "optimize without profiled types",
    "profiling-insensitive-noopt": "like profiling-insensitive without optimization: only clean up",
    "gradients": "with gradients: differentiate groups of nodes",
    "profiling": "optimize for profiled types, or for gradients if a value requires one",
    "profiling-builtin": "like profiling, with fused operators of onnxruntime instead of groups",
    "profiling-gradients": "optimize for gradients, required or not",
    "profiling-noopt": "like profiling without optimization",
    "forward": "compile the forward part of each differentiated group",
    "joint": "clean up a joint graph of forward and backward computation",
    "post-grad": "fuse operators, after joint",
    "post-grad-native": "like post-grad, with compiled kernels",
    "pre-grad": "clean up before differentiation, and fold weights unless a value requires a gradient",
    "inner": "the passes that inference, training and freezing end with",
    "inference": "for runs without gradients",
    "training": "for joint graphs of graphopt grad, and for each model of grad --split",
    "freezing": "like inference, with constant parameters and operators in inference form",
    "ahead": "like inference, for models that are written to files",
    "final": "last step, after all passes that match Ifs",
    "plan-general": "plan of the executor without specialization",
    "plan-profiled": "plan of the executor that profiles types and contents",
    "plan-optimized": "plan of the executor, made from plan-profiled after enough runs",
    "plan-optimized-builtin": "like plan-optimized, with fused operators of onnxruntime instead of groups",
    "plan-optimized-gradients": "like plan-optimized, with gradients",
    "O0": "load and save",
    "O1": "clean up with bit-exact rewrites",
    "O2": "clean up; sums may be evaluated in another order (the default)",
    "O3": "like O2, with fused operators of onnxruntime where they are faster",
    "native": "like O3, with compiled kernels that fuse chains of memory-bound operators",
}

#: The packages of passes; those in ``graphopt.passes`` run passes and rules of callers.
_PASSES = ("graphopt.passes", "graphopt.transforms")


def registry() -> Registry:
    """All passes and pipelines: graphopt's own, and additions of installed packages.

    Third parties add passes through the entry-point group ``graphopt.passes``.
    """
    return Registry(Passes(_PASSES, filter(_is_pass, extensions("graphopt.passes"))), PIPELINES)


def _is_pass(item: object) -> bool:
    return isinstance(item, type) and issubclass(item, Pass)


@checked
def make_pipeline(
    pipeline: str | Sequence[str | Pass | PassBase],
    pre_passes: Iterable[str | Pass | PassBase] = (),
    post_passes: Iterable[str | Pass | PassBase] = (),
) -> Pipeline:
    """A pipeline from its name or text, or from passes, with further passes at both ends.

    If the pipeline has placeholders (``pre-passes``, ``post-passes``), the further passes replace the
    placeholders instead.

    Raises:
        UsageError: a pass is unknown, or has the name of another pass or of a rule; or the text is malformed.
        TypeError: an object is no pass.
    """
    made = Pipeline(_all_steps(pipeline)).filled(_all_steps(pre_passes), _all_steps(post_passes))
    _check_names(item for item in own_passes(made.passes()) if item.name not in BY_PATH)
    return made


def _check_names(own: Iterable[Pass]) -> None:
    """Check that the names of the caller's passes are distinct for ``--skip`` and reports.

    Raises:
        UsageError: a pass has the name of a pass or rule of graphopt.
    """
    for item in own:
        from graphopt.rules import all_rules

        is_pass = item.name in registry().passes
        if is_pass or any(item.name == rule.name for rule in all_rules()):
            path = f"{type(item).__module__}:{type(item).__name__}"
            raise UsageError(
                f"pass {path} is named {item.name!r}, like a {'pass' if is_pass else 'rule'} of graphopt",
                hint='give its class another name, or a name="..." of its own',
            )


def _all_steps(items: str | Pass | PassBase | Iterable[str | Pass | PassBase]) -> tuple[Step, ...]:
    if isinstance(items, (str, Pass, PassBase, Rule)) or not isinstance(items, Iterable):
        return tuple(_steps(items))
    return tuple(step for item in items for step in _steps(item))


def _steps(item: object) -> Sequence[Step]:
    """The pass, or the steps of pipeline text."""
    match item:
        case str():
            return Pipeline.parse(item, registry()).steps
        case Pass() | Fixpoint():
            return [item]
        case PassBase():
            return [GivenOnnxIrPass.of(item)]
        case Rule():
            raise TypeError(f"{item.name!r} is a rewrite rule, not a pass: pass it as rules=[...]")
        case type() if issubclass(item, (Pass, PassBase)):
            raise TypeError(f"{item.__name__} is a class; give an instance: {item.__name__}()")
    raise TypeError(
        f"a pass is an object of a subclass of graphopt.Pass or onnx_ir.passes.PassBase, its name or"
        f" 'module:Class', not {type(item).__name__}"
    )


def own_passes(passes: Iterable[Pass]) -> list[Pass]:
    """The caller's passes among ``passes``: neither graphopt's nor added by an installed package."""
    known = registry().passes
    return [item for item in passes if item.name in BY_PATH or known.get(item.name) is not type(item)]
