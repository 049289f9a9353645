"""The models of the check: enlarged samples and networks on a GPU, small ones in a rehearsal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.generated_decoder import Shape, write
from benchmarks.gpu_check.running import HALF_TOLERANCE, TOLERANCE
from benchmarks.gpu_check.section import Bench
from benchmarks.inputs import make_feeds
from benchmarks.kernel_models import Example, networks, processing
from benchmarks.measured_models import Case as GivenCase
from benchmarks.measured_models import manifest_cases
from benchmarks.measured_tools import ROOT


@dataclass(frozen=True)
class Case:
    """A model and its inputs.

    Attributes:
        path: the model.
        tolerance: the accepted error; for quantized models, it permits a difference of one step.
    """

    path: Path
    feeds: Mapping[str, np.ndarray]
    tolerance: float = TOLERANCE


@dataclass(frozen=True)
class _Enlarged:
    """Arguments of a sample's builder, and its input shapes, that keep a GPU busy."""

    sizes: Mapping[str, int]
    shapes: Mapping[str, Any]
    tolerance: float = TOLERANCE


#: The samples with kernels on CUDA; operators of ai.onnx.ml have none.
_SAMPLES = {
    "transformer": _Enlarged(
        {"layers": 4, "hidden": 256, "heads": 8, "positions": 256},
        {"input_ids": [8, 128], "attention_mask": [8, 128]},
    ),
    "cnn": _Enlarged({"width": 64, "size": 64, "blocks": 6}, {"image": [16, 3, 64, 64]}),
    "quantized": _Enlarged({"width": 64}, {"image": [16, 3, 16, 16]}, tolerance=3e-2),
    "control_flow": _Enlarged({}, {"x": [64, 8], "n": {"shape": [], "gen": {"kind": "const", "value": 8}}}),
    "functions": _Enlarged({}, {"x": [16, 64, 16]}),
}
#: The networks at sizes for a GPU, and the size of the batch.
_NETWORKS: Mapping[str, tuple[Callable[[], Example], int]] = {
    "bert": (partial(networks.bert, width=768, layers=6, heads=12, hidden=3072), 8),
    "llama": (partial(networks.llama, width=1024, layers=6, heads=16, hidden=2816, length=256), 4),
    "residual": (partial(networks.cnn, size=224, widths=(64, 128, 256)), 8),
    "depthwise": (partial(networks.depthwise, size=224), 8),
    "detector": (processing.detector_output, 8),
}
#: The same networks at sizes for a rehearsal.
_SMALL: Mapping[str, Callable[[], Example]] = {
    "bert": partial(networks.bert, width=64, layers=1, heads=2, hidden=128, length=16),
    "llama": partial(networks.llama, width=64, layers=1, heads=2, hidden=96, length=16),
    "residual": partial(networks.cnn, size=16, widths=(8, 16)),
    "depthwise": partial(networks.depthwise, size=32, widths=(8, 16), depth=1),
    "detector": partial(processing.detector_output, sizes=(20, 10)),
}
#: A decoder with a key-value cache in float16: on a GPU and in a rehearsal. Past tokens of its step.
_DECODER = (Shape(4, 1024, 2816, 16, 4, 32000), Shape(2, 64, 128, 4, 2, 96))
_PAST = 128


def sample(name: str, bench: Bench) -> Case:
    """A sample, enlarged for a GPU."""
    if str(ROOT / "samples") not in sys.path:
        sys.path.insert(0, str(ROOT / "samples"))
    from zoo import SAMPLES

    found, enlarged = SAMPLES[name], _SAMPLES[name]
    sizes = {} if bench.is_rehearsal else enlarged.sizes
    shapes = found.shape_sets[0] if bench.is_rehearsal else enlarged.shapes
    feeds = make_feeds({"inputs": found.inputs, "shape_sets": [shapes]}, 0)
    return Case(_written(found.build(**sizes), name, bench), feeds, enlarged.tolerance)


def network(name: str, bench: Bench) -> Case:
    """A network; on a GPU, with a batch of several images or sentences."""
    make, batch = _NETWORKS[name]
    if bench.is_rehearsal:
        make, batch = _SMALL[name], 1
    example = make()
    feeds = {key: np.concatenate([value] * batch) for key, value in example.feeds.items()}
    return Case(_written(example.model, name, bench), feeds)


def decoder(bench: Bench, element: type[np.generic] = np.float16) -> Case:
    """One step of a decoder with a key-value cache."""
    shape = _DECODER[bench.is_rehearsal]
    folder = bench.scratch / f"decoder-{np.dtype(element).name}"
    folder.mkdir(exist_ok=True)
    path = write(shape, folder / "decoder.onnx", element=element)
    random = np.random.default_rng(0)
    cache = (1, shape.cached_heads, _PAST, shape.width)
    feeds: dict[str, np.ndarray] = {
        "input_ids": random.integers(0, shape.words, (1, 1)),
        "attention_mask": np.ones((1, _PAST + 1), np.int64),
        "position_ids": np.full((1, 1), _PAST),
    }
    for layer in range(shape.layers):
        for part in ("key", "value"):
            values = random.standard_normal(cache, np.float32) * 0.1
            feeds[f"past_key_values.{layer}.{part}"] = values.astype(element)
    return Case(path, feeds, HALF_TOLERANCE if element is np.float16 else TOLERANCE)


def given(case: GivenCase) -> Case:
    """A model of the caller's folder."""
    return Case(case.path, make_feeds(case.entry, 0), HALF_TOLERANCE)


def cases(bench: Bench) -> dict[str, Callable[[], Case]]:
    """The samples and six networks, or the samples and the models of the folder of ``bench``."""
    found: dict[str, Callable[[], Case]] = {name: partial(sample, name, bench) for name in _SAMPLES}
    if bench.models is not None:
        return {**{case.name: partial(given, case) for case in manifest_cases(bench.models)}, **found}
    own: dict[str, Callable[[], Case]] = {name: partial(network, name, bench) for name in _NETWORKS}
    return {**own, "decoder": partial(decoder, bench), **found}


def _written(model: onnx.ModelProto, name: str, bench: Bench) -> Path:
    path = bench.scratch / f"{name.replace(' ', '_')}.onnx"
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path
