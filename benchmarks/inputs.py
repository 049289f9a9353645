"""Inputs for a model, from its recipe in a manifest or else from its signature.

A manifest is a list of entries:

    {"file": "m.onnx",
     "inputs": {"x": {"dtype": "float32", "gen": {"kind": "normal", "std": 1}}},
     "shape_sets": [{"x": [1, 8]}, {"x": {"shape": [2, 8], "gen": {"kind": "zeros"}}}]}

The kinds: `uniform` low high, `normal` std, `randint` low high, `sorted_randint` low high, `ones`, `zeros`,
`const` value, `choice` values, `dim` of. A bound or `of` such as "x.1" is the size of axis 1 of input x.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

Entry = dict[str, Any]
Feeds = dict[str, np.ndarray]


def make_feeds(entry: Entry, shape_set: int, seed: int = 0) -> Feeds:
    """Arrays for each input of the recipe, deterministic in the entry, shape set and seed."""
    shapes: dict[str, list[int]] = {}
    recipes: dict[str, dict[str, Any]] = {}
    for name, recipe in entry["inputs"].items():
        given = entry["shape_sets"][shape_set][name]
        if not isinstance(given, dict):
            given = {"shape": given}
        shapes[name] = given["shape"]
        recipes[name] = given.get("gen", recipe["gen"])

    feeds = {}
    for name, recipe in entry["inputs"].items():
        rng = np.random.default_rng([seed, shape_set, zlib.crc32(name.encode())])
        drawn = _draw(recipes[name], tuple(shapes[name]), rng, shapes)
        feeds[name] = np.asarray(drawn).astype(recipe["dtype"]).reshape(shapes[name])
    return feeds


def _draw(
    recipe: dict[str, Any],
    shape: tuple[int, ...],
    rng: np.random.Generator,
    shapes: dict[str, list[int]],
) -> Any:
    def number(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        name, axis = value.rsplit(".", 1)
        return shapes[name][int(axis)]

    def integers() -> np.ndarray:
        low = number(recipe["low"])
        return rng.integers(low, max(low + 1, number(recipe["high"])), shape)

    match recipe["kind"]:
        case "uniform":
            return rng.uniform(recipe["low"], recipe["high"], shape)
        case "normal":
            return rng.standard_normal(shape) * recipe.get("std", 1.0)
        case "randint":
            return integers()
        case "sorted_randint":
            return np.sort(integers(), axis=-1)
        case "ones":
            return np.ones(shape)
        case "zeros":
            return np.zeros(shape)
        case "const":
            return np.full(shape, recipe["value"])
        case "choice":
            return rng.choice(np.array(recipe["values"]), shape)
        case "dim":
            return np.full(shape, number(recipe["of"]))
        case kind:
            raise ValueError(f"a recipe has the unknown kind {kind!r}")


def entry_of(path: Path) -> Entry:
    """A manifest entry for a model without one: small sizes for dynamic dims, and small values."""
    graph = onnx.load(path, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs: dict[str, Any] = {}
    shape_sets: list[dict[str, list[int]]] = [{}, {}]
    for value in graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        kind = {"f": {"kind": "normal"}, "b": {"kind": "choice", "values": [0, 1]}}
        inputs[value.name] = {
            "dtype": dtype.name,
            "gen": kind.get(dtype.kind, {"kind": "randint", "low": 0, "high": 3}),
        }
        for size, shapes in zip((2, 3), shape_sets, strict=True):
            dims = tensor.shape.dim
            shapes[value.name] = [d.dim_value if d.HasField("dim_value") else size for d in dims]
    return {"file": path.name, "inputs": inputs, "shape_sets": shape_sets}
