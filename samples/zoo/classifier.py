"""A scikit-learn pipeline as skl2onnx writes it: its outputs are a string label and a list of maps."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from zoo.writer import FLOAT, GraphWriter

LABELS = ["setosa", "versicolor", "virginica"]
FEATURES = 4


def classifier() -> onnx.ModelProto:
    """StandardScaler, LogisticRegression and ZipMap over four features and three classes."""
    w = GraphWriter("classifier", seed=5)
    x = w.input("features", FLOAT, [None, FEATURES])
    w.outputs.append(helper.make_tensor_value_info("output_label", TensorProto.STRING, [None]))
    scores = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(FLOAT, []))
    w.outputs.append(helper.make_value_info("output_probability", helper.make_sequence_type_proto(scores)))

    ml = "ai.onnx.ml"
    scale = np.array([1.2, 2.3, 0.57, 1.31], np.float32)
    offset = np.array([5.84, 3.06, 3.76, 1.2], np.float32)
    x = w.op("Scaler", x, domain=ml, offset=offset.tolist(), scale=scale.tolist())
    x = w.op("Cast", x, to=FLOAT)
    label, probability = w.ops(
        "LinearClassifier",
        x,
        results=[None, None],
        domain=ml,
        classlabels_strings=LABELS,
        coefficients=w.normal(len(LABELS) * FEATURES, std=1.0).tolist(),
        intercepts=w.normal(len(LABELS), std=0.5).tolist(),
        multi_class=1,
        post_transform="LOGISTIC",
    )
    probability = w.op("Normalizer", probability, domain=ml, norm="L1")
    w.op("Identity", label, result="output_label")
    w.op("ZipMap", probability, domain=ml, classlabels_strings=LABELS, result="output_probability")
    return w.model(opset=15, ir_version=8, producer="skl2onnx", ml_opset=1)
