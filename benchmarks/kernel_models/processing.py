"""Pre- and postprocessing of networks: images, boxes, audio features, losses."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from benchmarks.kernel_models.graph import Example, Graph

F32 = np.float32


def image_input(height: int = 720, width: int = 1280) -> Example:
    """image pre-processing: u8 NHWC to normalized f32 NCHW, saturated"""
    g = Graph()
    pixels = g.op("Cast", g.input("pixels", np.uint8, "N", "H", "W", 3), to=TensorProto.FLOAT)
    scaled = g.op("Transpose", g.op("Div", pixels, g.number(255.0)), perm=[0, 3, 1, 2])
    linear = g.op("Pow", scaled, g.number(2.0))
    mean = g.constant(np.array([0.485, 0.456, 0.406], F32).reshape(3, 1, 1))
    deviation = g.constant(np.array([0.229, 0.224, 0.225], F32).reshape(3, 1, 1))
    normal = g.op("Div", g.op("Sub", linear, mean), deviation)
    clipped = g.op("Clip", normal, g.number(-3.0), g.number(3.0))
    g.output(clipped, "image", F32, ("N", 3, "H", "W"))
    drawn = np.random.default_rng(1).integers(0, 256, (1, height, width, 3)).astype(np.uint8)
    return Example(image_input.__doc__ or "", g.model(), {"pixels": drawn})


def detector_output(classes: int = 80, sizes: tuple[int, ...] = (80, 40, 20)) -> Example:
    """detector post-processing: scores, boxes by exp and grids, clipping, threshold"""
    g = Graph()
    grids = [np.stack(np.meshgrid(np.arange(n), np.arange(n)), -1).reshape(1, -1, 2) for n in sizes]
    grid = g.constant(np.concatenate(grids, 1).astype(F32))
    steps = [np.full((1, n * n, 1), 8 * 2**level, F32) for level, n in enumerate(sizes)]
    stride = g.constant(np.concatenate(steps, 1))
    places = sum(n * n for n in sizes)
    raw = g.input("raw", F32, "N", places, 5 + classes)

    def part(start: int, stop: int) -> str:
        return g.op("Slice", raw, g.ints(start), g.ints(stop), g.ints(2), g.ints(1))

    center = g.op("Mul", g.op("Add", part(0, 2), grid), stride)
    half = g.op("Mul", g.op("Mul", g.op("Exp", part(2, 4)), stride), g.number(0.5))
    corners = g.op("Concat", g.op("Sub", center, half), g.op("Add", center, half), axis=2)
    boxes = g.op("Clip", corners, g.number(0.0), g.number(640.0))
    scores = g.op("Mul", g.op("Sigmoid", part(5, 5 + classes)), g.op("Sigmoid", part(4, 5)))
    kept = g.op("Where", g.op("Greater", scores, g.number(0.25)), scores, g.number(0.0))
    g.output(boxes, "boxes", F32, ("N", places, 4))
    g.output(kept, "scores", F32, ("N", places, classes))
    drawn = np.random.default_rng(1).standard_normal((1, places, 5 + classes), F32)
    return Example(detector_output.__doc__ or "", g.model(), {"raw": drawn})


def log_mel(frames: int = 3000, bins: int = 80) -> Example:
    """features of sound: log, floor below the maximum, normalized over time"""
    g = Graph()
    power = g.input("power", F32, "N", bins, "frames")
    logs = g.op("Log", g.op("Clip", power, g.number(1e-10)))
    logs = g.op("Mul", logs, g.number(1 / np.log(10)))
    top = g.op("ReduceMax", logs, g.ints(1, 2), keepdims=1)
    floored = g.op("Max", logs, g.op("Sub", top, g.number(8.0)))
    scaled = g.op("Div", g.op("Add", floored, g.number(4.0)), g.number(4.0))
    centered = g.op("Sub", scaled, g.op("ReduceMean", scaled, g.ints(-1), keepdims=1))
    spread = g.op("ReduceMean", g.op("Mul", centered, centered), g.ints(-1), keepdims=1)
    normal = g.op("Div", centered, g.op("Add", g.op("Sqrt", spread), g.number(1e-5)))
    g.output(normal, "features", F32, ("N", bins, "frames"))
    drawn = np.random.default_rng(1).standard_normal((1, bins, frames), F32) ** 2
    return Example(log_mel.__doc__ or "", g.model(), {"power": drawn})


def losses(rows: int = 1024, width: int = 512) -> Example:
    """pointwise losses: Mish, smooth L1 and a focal factor, and their sums of rows"""
    g = Graph()
    x, y = (g.input(name, F32, "rows", width) for name in ("x", "y"))
    softplus = g.op("Log", g.op("Add", g.op("Exp", x), g.number(1.0)))
    mish = g.op("Mul", x, g.op("Tanh", softplus))
    away = g.op("Abs", g.op("Sub", mish, y))
    square = g.op("Mul", g.op("Mul", away, away), g.number(0.5))
    smooth = g.op("Where", g.op("Less", away, g.number(1.0)), square, g.op("Sub", away, g.number(0.5)))
    hard = g.op("Sub", g.number(1.0), g.op("Sigmoid", x))
    focal = g.op("Mul", g.op("Mul", hard, hard), smooth)
    g.output(g.op("ReduceSum", focal, g.ints(-1), keepdims=0), "sums", F32, ("rows",))
    g.output(focal, "loss", F32, ("rows", width))
    random = np.random.default_rng(1)
    feeds = {name: random.standard_normal((rows, width), F32) for name in "xy"}
    return Example(losses.__doc__ or "", g.model(), feeds)
