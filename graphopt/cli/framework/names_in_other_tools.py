"""Commands and options of other tools, with their equivalents in graphopt.

The tables map a name to the equivalent command or option, or to a line about an alternative where graphopt
has no equivalent. The tables provide hints only; :func:`expand_shorthands` alone changes a command line.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Sequence

from graphopt.util.model_suffixes import suffixes

_FP16 = (
    "graphopt keeps the dtypes of a model; optimize first, then convert to fp16 with"
    " onnxruntime.transformers.float16, or Olive (docs/faq.md)"
)
_QUANTIZE = (
    "graphopt keeps the dtypes of a model; quantize with onnxruntime.quantization after graphopt optimize"
    " (quantized models can be optimized, too)"
)
_ORT = (
    "graphopt writes .onnx; for .ort: python -m onnxruntime.tools.convert_onnx_models_to_ort FILE, after"
    " graphopt optimize"
)
_SHAPES = "--input-shape NAME:1x3x224x224 for generated inputs; --dim NAME=SIZE fixes a dynamic dim"
_TENSORRT = "graphopt runs models with onnxruntime, on the CPU or with CUDA: --device cuda"
_EXPORT = "graphopt starts from ONNX; export with torch.onnx.export, tf2onnx or optimum-cli export onnx"

#: Commands of other tools, with graphopt's commands and options for the same effect.
COMMANDS: dict[str, str] = {
    # onnxslim, onnxsim, onnxoptimizer, polygraphy surgeon sanitize
    "simplify": "optimize",
    "simp": "optimize",
    "sim": "optimize",
    "slim": "optimize",
    "opt": "optimize",
    "shrink": "optimize",
    "compress": "optimize",
    "minify": "optimize",
    "sanitize": "optimize",
    "fold": "optimize",
    "auto-opt": "optimize",
    "surgeon": "optimize",
    "fold-constants": "optimize --passes constant-propagation,dce",
    "fuse": "optimize -O3",
    "tune": "optimize --tune",
    "autotune": "optimize --tune",
    "specialise": "optimize --profile FILE.json",
    "specialize": "optimize --profile FILE.json",
    "make-dynamic-shape-fixed": "optimize --dim NAME=SIZE",
    "fix-shape": "optimize --dim NAME=SIZE",
    # inspection
    "info": "inspect",
    "stats": "inspect",
    "stat": "inspect",
    "summary": "inspect",
    "summarize": "inspect",
    "describe": "inspect",
    "list": "inspect",
    "show": "inspect",
    "print": "dump",
    "cat": "dump",
    "text": "dump",
    "export-text": "convert",
    "netron": "view",
    "visualize": "view",
    "visualise": "view",
    "draw": "dump --format dot",
    "plot": "dump --format dot",
    "graph": "dump --format dot",
    "dot": "dump --format dot",
    "shape-infer": "dump",
    "infer-shapes": "dump",
    "shapes": "dump",
    "why": "explain",
    # comparison and execution
    "check": "verify",
    "validate": "verify",
    "test": "verify",
    "equal": "verify",
    "infer": "run",
    "inference": "run",
    "predict": "run",
    "exec": "run",
    "execute": "run",
    "time": "bench",
    "timing": "bench",
    "benchmark": "bench",
    "perf": "bench",
    "perftest": "bench",
    "latency": "bench",
    "speed": "bench",
    # search for faults
    "debug": "bisect",
    "minimize": "reduce",
    "repro": "replay",
    "reproduce": "replay",
    "env": "doctor",
    "devices": "doctor",
    "settings": "config show",
    "options": "config show",
    # deployment
    "aot": "compile",
    "aot-compile": "compile",
    "bundle": "compile",
    "package": "compile",
    "deploy": "compile",
    "load": "run",
    "freeze": "optimize --pipeline freezing",
    "inline-weights": "optimize --pipeline freezing",
    "replace-weights": "update-weights",
    "refit": "update-weights",
    # training
    "train": "train-step",
    "gradient": "grad",
    "backward": "grad",
    "differentiate": "grad",
    # models in another form
    "transform": "convert",
    "to-json": "convert",
    "save": "convert",
    "opset": "convert --target-opset N",
    "upgrade": "convert --target-opset N",
    "convert-opset": "convert --target-opset N",
    "version-convert": "convert --target-opset N",
    "rules": "passes",
    "example": "sample",
    "demo": "sample",
}

#: Commands of other tools without an equivalent in graphopt; the value is a line about an alternative.
ELSEWHERE: dict[str, str] = {
    "fp16": _FP16,
    "half": _FP16,
    "float16": _FP16,
    "convert-fp16": _FP16,
    "quantize": _QUANTIZE,
    "quantise": _QUANTIZE,
    "quant": _QUANTIZE,
    "int8": _QUANTIZE,
    "convert-to-ort": _ORT,
    "to-ort": _ORT,
    "ort": _ORT,
    "trt": _TENSORRT,
    "tensorrt": _TENSORRT,
    "export": _EXPORT,
    "import": _EXPORT,
    "extract": "onnx.utils.extract_model cuts models by names; graphopt partition finds groups",
    "download": "graphopt does not download: curl -LO URL",
}

#: Options of other tools; the value begins with an option of graphopt, or is a line about an alternative.
OPTIONS: dict[str, str] = {
    # shapes and inputs
    "--input-shapes": _SHAPES,
    "--overwrite-input-shape": "--dim NAME=SIZE fixes a dynamic dim of the model",
    "--overwrite-input-shapes": "--dim NAME=SIZE fixes a dynamic dim of the model",
    "--test-input-shape": "--input-shape NAME:1x3x224x224",
    "--dynamic-input-shape": "dynamic dims stay dynamic unless --dim fixes them",
    "--shape": _SHAPES,
    "--shapes": _SHAPES,
    "--dim-param": "--dim NAME=SIZE",
    "--dim-value": "--dim NAME=SIZE",
    "--batch": "--dim batch=N fixes the dim called batch (graphopt inspect lists the dims)",
    "--batch-size": "--dim batch=N fixes the dim called batch (graphopt inspect lists the dims)",
    "--trt-min-shapes": "--dim-range NAME=FIRST:LAST",
    "--trt-max-shapes": "--dim-range NAME=FIRST:LAST",
    "--trt-opt-shapes": "--dim-range NAME=FIRST:LAST",
    "--input-data-path": "--input NAME:FILE.npy, or --input FILE.npz",
    "--model-check-inputs": "--input NAME:FILE.npy, or --input FILE.npz",
    "--load-inputs": "--input FILE.npz",
    "--data-loader-script": "--input FILE.npz, with arrays that the script saves",
    # amount of optimization
    "--level": "-O0, -O1, -O2 or -O3",
    "--optimization-level": "-O0, -O1, -O2 or -O3",
    "--opt-level": "-O0, -O1, -O2 or -O3",
    "--skip-optimization": "--skip A,B leaves out passes or rules; -O0 all of them",
    "--skip-optimizer": "--skip A,B leaves out passes or rules; -O0 all of them",
    "--skip-fusion-patterns": "--skip A,B leaves out passes or rules",
    "--skip-fuse-bn": "--skip A,B leaves out passes or rules (graphopt passes lists them)",
    "--skip-constant-folding": "--skip constant-propagation",
    "--skip-shape-inference": "shapes are inferred as far as passes need them; --time-limit bounds the time",
    "--size-threshold": "--fold-limit SIZE",
    "--tensor-size-threshold": "--fold-limit SIZE",
    "--fold-size-threshold": "--fold-limit SIZE",
    "--large-constant": "--fold-limit SIZE",
    "--no-large-tensor": "--fold-limit SIZE",
    "--iterations": "pipelines run to a fixpoint; graphopt pipelines show O2",
    # checks
    "--model-check": "results are always compared with the original; --no-verify skips that",
    "--check": "results are always compared with the original; --no-verify skips that",
    "--check-n": "results are always compared with the original; --set verify-seconds=1m for longer",
    "--no-check": "--no-verify",
    "--skip-check": "--no-verify",
    "--no-validate": "--no-verify",
    "--atol": "tolerances follow from the rewrites: --exact, or --fast-math, chooses a class",
    "--rtol": "tolerances follow from the rewrites: --exact, or --fast-math, chooses a class",
    "--tolerance": "tolerances follow from the rewrites: --exact, or --fast-math, chooses a class",
    # output files
    "--bundle": "--emit bundle, with --profile FILE.json and -o FOLDER",
    "--opset": "--target-opset N",
    "--opset-version": "--target-opset N",
    "--output-file": "-o OUT.onnx",
    "--out": "-o OUT.onnx",
    "--output-model": "-o OUT.onnx",
    "--overwrite": "--force, without -o; a file that -o names is replaced in any case",
    "--yes": "--force, without -o; a file that -o names is replaced in any case",
    "--save-as-external-data": "--weights beside",
    "--save-external-data": "--weights beside",
    "--inplace": "-o with the path of the model itself",
    "--in-place": "-o with the path of the model itself",
    "--inspect": "graphopt inspect MODEL",
    "--dump-to-disk": "graphopt inspect MODEL --json, or graphopt dump MODEL -o FILE.txt",
    "--inputs": "graphopt keeps the interface; onnx.utils.extract_model cuts models (run: --input FILE.npz)",
    "--outputs": "graphopt keeps the interface; onnx.utils.extract_model cuts models",
    "--unused-output": "graphopt keeps the interface; onnx.utils.extract_model cuts models",
    "--output-names": "graphopt keeps the interface; onnx.utils.extract_model cuts models",
    # devices
    "--gpu": "--device cuda",
    "--cuda": "--device cuda",
    "--cpu": "--device cpu",
    "--use-gpu": "--device cuda",
    "--provider": "--device cpu or --device cuda",
    "--providers": "--device cpu or --device cuda",
    "--execution-provider": "--device cpu or --device cuda",
    "--ep": "--device cpu or --device cuda",
    "--onnxrt": "models always run with onnxruntime; graphopt verify A B compares two",
    "--trt": _TENSORRT,
    "--tensorrt": _TENSORRT,
    # timing
    "--runs": "--rounds N",
    "--repeat": "--rounds N",
    "--num-threads": "--threads N",
    "--intra-op-num-threads": "--threads N",
    "--warm-up": "--warmup N",
    "--profile-model": "graphopt bench MODEL --hot",
    # dtypes and forms
    "--dtype": _FP16,
    "--fp16": _FP16,
    "--half": _FP16,
    "--fp16-quantize": _FP16,
    "--fp-to-fp16": _FP16,
    "--int8": _QUANTIZE,
    "--quantize": _QUANTIZE,
    "--ort": _ORT,
    # log and messages
    "--silent": "-q",
    "--log-level": "-v, -vv or -q; --log SPEC for single passes and rules",
    "--dry": "--dry-run",
}

#: Suffixes of files, other than models, that are named in place of commands and arguments.
_SUFFIXES = (".npz", ".bundle", ".gopt")
#: Words that users type as a command, and the equivalent option of graphopt.
_WORDS = {"help": "--help", "version": "--version"}


def expand_shorthands(arguments: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """The command line with its shorthands expanded.

    ``help [COMMAND]`` is ``[COMMAND] --help``, ``version`` is ``--version``, and the path of a model without
    a command is ``optimize``: with ``--dry-run``, unless ``-o`` names the output.

    Args:
        arguments: the arguments of the process.
        known: the names of all commands.
    """
    if not arguments:
        return ()
    first, *rest = arguments
    if first in _WORDS and first not in known:
        return (*rest, _WORDS[first])
    if first in known or not _is_path(first):
        return tuple(arguments)
    writes = any(word.startswith("-o") or word.partition("=")[0] == "--output" for word in rest)
    return ("optimize", *(() if writes else ("--dry-run",)), *arguments)


def for_command(name: str, rest: Sequence[str]) -> str | None:
    """The hint for a command that does not exist; ``None`` if the table does not have it.

    Args:
        name: the command.
        rest: the arguments after it, which the hint repeats.
    """
    name = name.lower().replace("_", "-")
    if name not in COMMANDS:
        return ELSEWHERE.get(name)
    return f"graphopt {COMMANDS[name]} {shlex.join(rest)}".rstrip()


def for_option(name: str, known: Collection[str]) -> str | None:
    """The hint for an option that does not exist; ``None`` if no hint fits.

    The parts of a hint, separated by semicolons, that name options of other commands are omitted. If no
    other part names an option, the hint does not fit.

    Args:
        name: the option.
        known: the options of the command.
    """
    meaning = OPTIONS.get(name.lower().replace("_", "-"), "")
    parts = [part for part in meaning.split("; ") if all(option in known for option in options_in(part))]
    found = "; ".join(parts)
    return found if found and bool(options_in(found)) == bool(options_in(meaning)) else None


def options_in(hint: str) -> list[str]:
    """The options that ``hint`` names, except those of another command, or in parentheses."""
    text = re.sub(r"\(.*?\)|graphopt \S+ MODEL.*", "", hint)
    return re.findall(r"(?<![\w-])(?:--[a-z][a-z-]+|-[A-Za-z])", text)


def for_file_like_option(option: str, words: Sequence[str]) -> str | None:
    """The hint for the unknown option of a file whose name begins with ``-``; ``None`` for other options.

    Args:
        option: the unknown option, such as ``-m`` for ``-model.onnx``.
        words: the arguments.
    """
    found = next((word for word in words if word.startswith(option) and "=" not in word), None)
    if found is None or not (os.path.exists(found) or found.endswith((*suffixes(), *_SUFFIXES))):
        return None
    return f"write ./{found} for the file"


def _is_path(word: str) -> bool:
    """Whether ``word``, in place of a command, is a path: no command has a dot or a slash."""
    return word == "-" or (
        not word.startswith("-") and ("." in word or os.sep in word or "/" in word or os.path.exists(word))
    )
