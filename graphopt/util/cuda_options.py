"""Options of onnxruntime's CUDA provider: names, values, and flags of the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from graphopt.errors import UsageError, unknown
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.parse_values import natural_or_none, parse_size

_SWITCH = {
    **dict.fromkeys(("1", "true", "on"), "1"),
    **dict.fromkeys(("0", "false", "off"), "0"),
}


@dataclass(frozen=True)
class CudaOption:
    """One option.

    Attributes:
        help: its effect, in one sentence.
        default: onnxruntime's documented default.
        words: the values of the provider, by their names on the command line; empty for numbers.
        is_size: whether its value is a positive number of bytes, also written as a size such as 4GiB.
        flag: its flag on the command line; empty if only ``--cuda-option`` sets it.
        metavar: the notation of the value of ``flag``; empty for a switch.
    """

    help: str
    default: str
    words: Mapping[str, str] = field(default_factory=dict)
    is_size: bool = False
    flag: str = ""
    metavar: str = ""

    @property
    def is_switch(self) -> bool:
        """Whether its values are 1 and 0."""
        return self.words is _SWITCH

    @property
    def choices(self) -> list[str]:
        """The names of its values on the command line; empty for numbers."""
        return ["1", "0"] if self.is_switch else list(self.words)

    @property
    def default_name(self) -> str:
        """The name of the default on the command line."""
        names = (name for name in self.choices if self.words[name] == self.default)
        return next(names, self.default)


_SEARCHES = {word.lower(): word for word in ("EXHAUSTIVE", "HEURISTIC", "DEFAULT")}
_GROWTHS = {"power-of-two": "kNextPowerOfTwo", "as-requested": "kSameAsRequested"}

#: The options by name, as in cuda_execution_provider_info.cc; those with a flag first. The provider rejects
#: other names, and its error does not suggest a similar one.
CUDA_OPTIONS: dict[str, CudaOption] = {
    "use_tf32": CudaOption(
        "Round the factors of float32 products to 10 bits (TF32).", "1", _SWITCH, flag="--tf32/--no-tf32"
    ),
    "prefer_nhwc": CudaOption(
        "Prefer the channels-last layout for convolutions.", "0", _SWITCH, flag="--nhwc/--no-nhwc"
    ),
    "cudnn_conv_algo_search": CudaOption(
        "Search for convolution algorithms: measured, estimated, or none.",
        "EXHAUSTIVE",
        _SEARCHES,
        flag="--conv-search",
        metavar="|".join(_SEARCHES),
    ),
    "gpu_mem_limit": CudaOption(
        "Memory limit of the arena of a session on the GPU, without the workspaces of cuDNN and cuBLAS.",
        "all memory",
        is_size=True,
        flag="--gpu-memory",
        metavar="SIZE",
    ),
    "arena_extend_strategy": CudaOption(
        "Growth of the arena: by powers of two, or by the requested bytes.",
        "kNextPowerOfTwo",
        _GROWTHS,
        flag="--arena-growth",
        metavar="|".join(_GROWTHS),
    ),
    "use_ep_level_unified_stream": CudaOption(
        "Run all kernels of a session on one stream.", "0", _SWITCH, flag="--one-stream"
    ),
    "cudnn_conv_use_max_workspace": CudaOption(
        "Allow convolution algorithms with large workspaces.", "1", _SWITCH
    ),
    "cudnn_conv1d_pad_to_nc1d": CudaOption(
        "Pad the input of a convolution of one axis to [N, C, 1, D] instead of [N, C, D, 1].", "0", _SWITCH
    ),
    "fuse_conv_bias": CudaOption(
        "Fuse a convolution and its bias in cuDNN, which compiles a kernel at first use.", "0", _SWITCH
    ),
    "enable_cudnn": CudaOption("Use cuDNN; without it, operators that require it fail.", "1", _SWITCH),
    "sdpa_kernel": CudaOption(
        "Attention kernels, as a bit mask: 1 flash, 2 efficient, 4 TensorRT, 8 cuDNN, 16 plain.", "0"
    ),
    "external_data_loader_reading_threads": CudaOption(
        "Threads that read external data directly to the GPU.", "4"
    ),
    "do_copy_in_default_stream": CudaOption("Execute copies on the stream of the kernels.", "1", _SWITCH),
    "tunable_op_enable": CudaOption("Use the results of operator tuning.", "0", _SWITCH),
    "tunable_op_tuning_enable": CudaOption("Tune operators at first use.", "0", _SWITCH),
    "tunable_op_max_tuning_duration_ms": CudaOption(
        "Time limit of the tuning of an operator, in milliseconds.", "0"
    ),
    "enable_skip_layer_norm_strict_mode": CudaOption(
        "Compute SkipLayerNormalization in float32; ignored by newer versions.", "0", _SWITCH
    ),
}

_ADDRESS = "an address in one process, but graphopt creates sessions in several"
#: Options that onnxruntime accepts and graphopt refuses: the reason, and the next step.
_REFUSED: dict[str, tuple[str, str]] = {
    "device_id": ("is part of the device", "--device cuda:N selects it"),
    "enable_cuda_graph": (
        "has conditions, which --cuda-graph checks",
        "--cuda-graph of run and bench, or cuda_graph=True of executors and bundles",
    ),
    "has_user_compute_stream": (f"describes {_ADDRESS}", "leave it out"),
    **dict.fromkeys(
        ("user_compute_stream", "gpu_external_alloc", "gpu_external_free", "gpu_external_empty_cache"),
        (f"is {_ADDRESS}", "leave it out"),
    ),
}


def parse_cuda_options(options: Iterable[str] | Mapping[str, object]) -> dict[str, str]:
    """The options of the CUDA provider in ``options``, with values in the notation of onnxruntime.

    >>> parse_cuda_options(["use_tf32=off", "gpu_mem_limit=1GiB"])
    {'use_tf32': '0', 'gpu_mem_limit': '1073741824'}

    Args:
        options: values by name, or texts ``KEY=VALUE``.

    Raises:
        UsageError: an option is unknown, not supported, or has two values; or a value is invalid.
    """
    found: dict[str, str] = {}
    for text in as_texts(options):
        if not isinstance(text, str):
            raise UsageError(f"the CUDA option {text!r} is not a text", hint="such as 'prefer_nhwc=1'")
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise UsageError(
                f"the CUDA option {text!r} is not of the form KEY=VALUE", hint="such as prefer_nhwc=1"
            )
        if name in _REFUSED:
            reason, hint = _REFUSED[name]
            raise UsageError(f"the CUDA option {name!r} {reason}", hint=hint)
        if name not in CUDA_OPTIONS:
            raise unknown("CUDA option", name, CUDA_OPTIONS, "docs/settings.md#options-of-cuda lists all")
        parsed = _parsed(name, value)
        if found.setdefault(name, parsed) != parsed:
            raise UsageError(f"the CUDA option {name!r} has two values, {found[name]} and {parsed}")
    return {name: found[name] for name in CUDA_OPTIONS if name in found}


def as_texts(options: Iterable[str] | Mapping[str, object]) -> tuple[str, ...]:
    """``options`` as texts ``KEY=VALUE``; a single text is accepted."""
    if isinstance(options, Mapping):
        return tuple(f"{name}={value}" for name, value in options.items())
    return (options,) if isinstance(options, str) else tuple(options)


def _parsed(name: str, value: str) -> str:
    """``value`` in the notation of onnxruntime; raises UsageError if it is invalid for ``name``."""
    option = CUDA_OPTIONS[name]
    if option.words:
        known = dict(option.words) | {word.lower(): word for word in option.words.values()}
        if value.lower() in known:
            return known[value.lower()]
        raise _invalid(name, value, f"one of {', '.join(option.choices)}")
    if option.is_size:
        try:
            size = parse_size(value)
        except ValueError:
            size = 0
        if not 0 < size < 1 << 64:
            raise _invalid(name, value, "a positive number of bytes below 2⁶⁴, or a size such as 4GiB")
        return str(size)
    number = natural_or_none(value)
    if number is None:
        raise _invalid(name, value, "a natural number")
    return str(number)


def _invalid(name: str, value: str, form: str) -> UsageError:
    return UsageError(f"the CUDA option {name!r} can't be {value!r}: give {form}")
